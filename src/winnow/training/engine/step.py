"""One training step, captured as a CUDA graph where possible.

No operation waits for the device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer

from winnow.data import Labels

Fill = Callable[[Tensor | None], Tensor]
"""Returns a batch. Given an earlier batch, it overwrites that tensor and returns it."""

Gradients = Callable[[Tensor, Tensor], dict[str, Tensor]]
"""Adds the gradient of a batch, inputs and labels, to all parameters; returns the terms of the loss."""

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Records work without running it and returns the function that replays it."""

WARM_UP = 3
"""Eager steps before a graph is captured. They compile and select kernels and create the optimizer state."""

_NEVER = torch.iinfo(torch.int64).max


@runtime_checkable
class GraphAware(Protocol):
    """Module with host-side state that CUDA graph replay does not update.

    A replayed step repeats the kernels of one `forward` and runs none of its Python code. Such a module

    - updates in `forward`, while a graph is captured, only device tensors such as index and count buffers. In eager
      mode `forward` also updates the host state, so custom training loops need no extra call;
    - updates the host state in `after_replay`, which is called after every replay and only then;
    - returns in `graph_key` which kernels `forward` launches. One graph is captured for each key.

    [`GSP`][winnow.pooling.GSP] is an example: it counts its memory on the host, and its key is whether that is full.
    """

    @property
    def graph_key(self) -> Hashable:
        """Return a key that identifies the kernels `forward` launches."""
        ...

    def after_replay(self) -> None:
        """Update the host state after a replay of `forward`."""
        ...


def graph_aware_modules(model: nn.Module) -> list[GraphAware]:
    """Return the modules of a model that implement `GraphAware`."""
    return [module for module in model.modules() if isinstance(module, GraphAware)]


class FiniteCheck:
    """First step with a non-finite value, tracked on the device."""

    def __init__(self, device: torch.device) -> None:
        self._first = torch.full((), _NEVER, dtype=torch.int64, device=device)

    def update(self, step: Tensor, *values: Tensor) -> None:
        """Check the values of one step, such as its loss and gradient norm.

        `step` is an int64 scalar.
        """
        finite = torch.stack([value.detach().isfinite().all() for value in values]).all()
        self._first.copy_(torch.minimum(self._first, step.masked_fill(finite, _NEVER)))

    def first_bad_step(self) -> int | None:
        """Return the first step with a non-finite value, or None; waits for the device."""
        step = int(self._first)
        return None if step == _NEVER else step


class TrainingStep:
    """Forward, backward, clipping, update, loss sums, and check for finite values.

    Without `capture` every step runs eagerly. With `capture` the first `WARM_UP` steps of every graph key run eagerly
    on fixed buffers for inputs and labels. The next step is captured, and from then on replayed.

    Args:
        fabric: Fabric of the run.
        objective: Objective after `fabric.setup`.
        optimizer: Optimizer after `fabric.setup`; must be capturable if `capture` is given.
        max_grad_norm: Largest norm of the whole gradient.
        check_norm: Whether a non-finite gradient norm is a failure. A gradient scaler skips such steps instead.
        gradients: Computes losses and gradients; None for one forward and backward pass of the whole batch.
        capture: Records a step; None runs every step eagerly.
        after_update: Called with the number of the step (on the device) after the update, and captured with it.

    Attributes:
        finite: Check for non-finite values.
    """

    def __init__(
        self,
        fabric: Fabric,
        objective: nn.Module,
        optimizer: Optimizer,
        *,
        max_grad_norm: float,
        check_norm: bool = True,
        gradients: Gradients | None = None,
        capture: Capture | None = None,
        after_update: Callable[[Tensor], None] | None = None,
    ) -> None:
        self._fabric, self._objective, self._optimizer = fabric, objective, optimizer
        self._max_grad_norm, self._check_norm, self._capture = max_grad_norm, check_norm, capture
        self._after_update = after_update
        self._gradients = gradients or self._one_pass
        self._graph_aware, self._parameters = graph_aware_modules(objective), list(objective.parameters())
        self._replays: dict[Hashable, Callable[[], None]] = {}
        self._warm_up_steps: Counter[Hashable] = Counter()
        self._inputs: Tensor | None = None
        self._numbers: Tensor | None = None
        self._sums: dict[str, Tensor] = {}
        self.finite = FiniteCheck(fabric.device)

    def run(self, step: int, fill: Fill, labels: Labels) -> None:
        """Run one step, eagerly or by replaying its graph.

        Args:
            step: Number of the step.
            fill: Makes the batch.
            labels: Labels (B,) of the batch.
        """
        numbers = torch.from_numpy(np.append(labels, step))  # one copy to the device instead of two
        if self._fabric.device.type == "cuda":
            numbers = numbers.pin_memory()
        if self._capture is None:
            self._compute(fill(None), numbers.to(self._fabric.device, non_blocking=True))
            return
        inputs, numbers = self._load(fill, numbers)
        key = self._graph_key()
        if key not in self._replays:
            if self._warm_up_steps[key] < WARM_UP:
                self._warm_up_steps[key] += 1
                with _cudnn_benchmark():
                    self._compute(inputs, numbers)
                return
            with _cudnn_benchmark():
                self._replays[key] = self._capture(lambda: self._compute(inputs, numbers))
        self._replays[key]()
        for module in self._graph_aware:
            module.after_replay()

    def replay(self) -> None:
        """Replay the captured step on the batch in its buffers, for benchmarks."""
        self._replays[self._graph_key()]()

    def _graph_key(self) -> Hashable:
        """Return keys of graph-aware modules and the trained parameters."""
        trained = tuple(parameter.requires_grad for parameter in self._parameters)
        return tuple(module.graph_key for module in self._graph_aware), trained

    def read_losses(self, steps: int) -> dict[str, float]:
        """Return the mean of every loss term over the last steps and reset the sums.

        The call waits for the device.
        """
        if not self._sums:
            return {}
        values = torch.stack([value.double() for value in self._sums.values()]).tolist()
        for value in self._sums.values():
            value.zero_()
        return {name: value / steps for name, value in zip(self._sums, values, strict=True)}

    def _load(self, fill: Fill, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Copy a batch into the fixed buffers, which are the tensors of the first batch."""
        self._inputs = fill(self._inputs)
        if self._numbers is None:
            self._numbers = numbers.to(self._fabric.device, non_blocking=True, copy=True)
        else:
            self._numbers.copy_(numbers, non_blocking=True)
        return self._inputs, self._numbers

    def _one_pass(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Compute losses and gradients of the whole batch at once."""
        losses: dict[str, Tensor] = self._objective(inputs, labels)
        self._fabric.backward(losses["loss"])
        return losses

    def _compute(self, inputs: Tensor, numbers: Tensor) -> None:
        losses = self._gradients(inputs, numbers[:-1])
        norm = self._fabric.clip_gradients(
            self._objective, self._optimizer, max_norm=self._max_grad_norm, error_if_nonfinite=False
        )
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._after_update is not None:
            self._after_update(numbers[-1])
        for name, value in losses.items():
            if name not in self._sums:
                self._sums[name] = torch.zeros_like(value, requires_grad=False)
            self._sums[name] += value.detach()
        checked = [losses["loss"]] if norm is None or not self._check_norm else [losses["loss"], norm]
        self.finite.update(numbers[-1], *checked)


@contextmanager
def _cudnn_benchmark() -> Iterator[None]:
    """Let cuDNN select algorithms by timing them.

    Shapes of training batches never change.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
