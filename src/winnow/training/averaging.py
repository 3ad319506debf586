"""Exponential moving average of the weights of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from winnow.models import Embedder, Head

Weights = dict[str, Tensor]


class WeightAverage:
    r"""Bias-corrected exponential moving average of all floating-point weights and buffers of a module.

    With decay $d$ and weights $w_i$ after update $i$ since the last restart:

    $$a_t = \frac{1 - d}{1 - d^t} \sum_{i=1}^{t} d^{\,t-i} w_i, \qquad
      a_t = a_{t-1} + \frac{1 - d}{1 - d^t} (w_t - a_{t-1})$$

    The first average after a restart is $a_1 = w_1$. Training does not see the average. `update` reads the number of
    the step from the device and waits for nothing, so a CUDA graph replays it.

    Reference: Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992.

    Args:
        module: Module whose weights are averaged, on its final device.
        decay: Decay d; the average spans about 1 / (1 - d) steps.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._decay = decay
        state = {key: one.detach() for key, one in module.state_dict(keep_vars=True).items()}
        first_keys: dict[int, str] = {}  # tied weights are averaged once
        for key, one in state.items():
            if one.is_floating_point():
                first_keys.setdefault(one.data_ptr() or id(one), key)
        self._keys = list(first_keys.values())
        self._weights = [state[key] for key in self._keys]
        self._averages = [one.clone() for one in self._weights]
        self._first = torch.zeros((), dtype=torch.int64, device=self._weights[0].device)  # step of the last restart

    @torch.no_grad()
    def update(self, step: Tensor) -> None:
        """Add the weights after a step, whose number is an int64 scalar on the device."""
        count = (step - self._first + 1).double()
        gain = (1 - self._decay) / (1 - self._decay**count)
        changes = torch._foreach_sub(self._weights, self._averages)
        for change in changes:
            change.mul_(gain.to(change.dtype))
        torch._foreach_add_(self._averages, changes)

    @torch.no_grad()
    def restart(self, step: int) -> None:
        """Begin a new average at the present weights; the update at `step` is its first."""
        torch._foreach_copy_(self._averages, self._weights)
        self._first.fill_(step)

    def weights(self) -> Weights:
        """Return the averages by the names of the weights; `update` changes these tensors in place."""
        return dict(zip(self._keys, self._averages, strict=True))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the module the average, and its own weights back afterward."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        """Exchange values; a CUDA graph needs every tensor at its address."""
        for weight, average in zip(self._weights, self._averages, strict=True):
            own = weight.clone()
            weight.copy_(average)
            average.copy_(own)

    def state_dict(self) -> Weights:
        """Return the averages and the step of the last restart."""
        return {**self.weights(), _FIRST: self._first}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        for key, average in zip(self._keys, self._averages, strict=True):
            average.copy_(state[key])
        self._first.copy_(state[_FIRST])


_FIRST = "first step"


class AveragedTeacher:
    """Teacher of self-distillation: a model with the average of its own weights, in inference mode.

    It has an average of its own, so its decay does not depend on that of the evaluated weights.

    Args:
        model: Model that is trained, on its final device.
        decay: Decay of the average.

    Attributes:
        average: Average of the weights and buffers of the model.
    """

    def __init__(self, model: Embedder | Head, decay: float) -> None:
        self._model, self.average = model, WeightAverage(model, decay)

    @torch.no_grad()
    def embed(self, inputs: Tensor) -> Tensor:
        """Return the embeddings of a batch; the model, its buffers, and random numbers stay as they are."""
        mode = self._model.training
        self._model.eval()  # no dropout, running statistics of batch norm, and no collected prototypes
        try:
            embeddings: Tensor = functional_call(self._model, self.average.weights(), (inputs,))
        finally:
            self._model.train(mode)
        return embeddings
