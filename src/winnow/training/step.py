"""One training step as a unit: all of it on the device, nothing that waits for the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer

from winnow.data import Labels
from winnow.training.phases import advancing

Fill = Callable[[Tensor | None], Tensor]
"""Makes a batch: anew, or given an earlier batch, in its place."""

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Records work without doing it, and returns what does it."""

WARM_UP = 3
"""Steps of every phase before it is captured: kernels are compiled and chosen in them, the optimiser's state made."""

_NEVER = torch.iinfo(torch.int64).max


class FiniteWatch:
    """Remembers the first step with a number that was not finite, without waiting for the device at every step."""

    def __init__(self, device: torch.device) -> None:
        self._first = torch.full((), _NEVER, dtype=torch.int64, device=device)

    def update(self, step: Tensor, *values: Tensor) -> None:
        """Note the numbers of one step: its loss, the norm of its gradient; `step` is an int64 scalar."""
        finite = torch.stack([value.detach().isfinite().all() for value in values]).all()
        self._first.copy_(torch.minimum(self._first, step.masked_fill(finite, _NEVER)))

    def first_bad_step(self) -> int | None:
        """Return the first step with a number that was not finite; waits for the device."""
        step = int(self._first)
        return None if step == _NEVER else step


class Step:
    """Forward, backward, clipping, update, the sums of the losses and the watch over them.

    Without `capture` every step is computed as it comes. With it the first steps of every phase are too; then the
    phase is captured over fixed buffers for images and labels, and from there on replayed.

    Args:
        fabric: Of the run.
        learner: The learner, set up by Fabric.
        optimizer: Likewise; to be captured it must be capturable.
        clip: Largest norm of the whole gradient.
        watch_norm: Whether a gradient that is not finite is a failure; a scaler of 16-bit gradients skips such steps.
        capture: What records a step.

    Attributes:
        watch: The first step that was not finite.
    """

    def __init__(
        self,
        fabric: Fabric,
        learner: nn.Module,
        optimizer: Optimizer,
        *,
        clip: float,
        watch_norm: bool = True,
        capture: Capture | None = None,
    ) -> None:
        self._fabric, self._learner, self._optimizer = fabric, learner, optimizer
        self._clip, self._watch_norm, self._capture = clip, watch_norm, capture
        self._advancing, self._parameters = advancing(learner), list(learner.parameters())
        self._replays: dict[Hashable, Callable[[], None]] = {}
        self._warmed: Counter[Hashable] = Counter()
        self._inputs: Tensor | None = None
        self._numbers: Tensor | None = None
        self._sums: dict[str, Tensor] = {}
        self.watch = FiniteWatch(fabric.device)

    def take(self, step: int, fill: Fill, labels: Labels) -> None:
        """Take a step.

        Args:
            step: Its number.
            fill: Makes its batch.
            labels: (B,) of the batch.
        """
        numbers = torch.from_numpy(np.append(labels, step))  # one copy to the device instead of two
        if self._fabric.device.type == "cuda":
            numbers = numbers.pin_memory()
        if self._capture is None:
            self._compute(fill(None), numbers.to(self._fabric.device, non_blocking=True))
            return
        inputs, numbers = self._load(fill, numbers)
        phase = self._phase()
        if phase not in self._replays:
            if self._warmed[phase] < WARM_UP:
                self._warmed[phase] += 1
                with _tuned():
                    self._compute(inputs, numbers)
                return
            with _tuned():
                self._replays[phase] = self._capture(lambda: self._compute(inputs, numbers))
        self._replays[phase]()
        for module in self._advancing:
            module.advance()

    def again(self) -> None:
        """Repeat the captured step on the batch that is in place, as a benchmark of fixed tensors does."""
        self._replays[self._phase()]()

    def _phase(self) -> Hashable:
        """Return what decides which kernels a step launches: the modules' phases, and which parameters learn."""
        learn = tuple(parameter.requires_grad for parameter in self._parameters)
        return tuple(module.phase for module in self._advancing), learn

    def read_losses(self, steps: int) -> dict[str, float]:
        """Return the mean of every term over the last steps and begin anew; waits for the device."""
        if not self._sums:
            return {}
        values = torch.stack([value.double() for value in self._sums.values()]).tolist()
        for value in self._sums.values():
            value.zero_()
        return {name: value / steps for name, value in zip(self._sums, values, strict=True)}

    def _load(self, fill: Fill, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Bring a batch into the fixed buffers, which are those of the first batch."""
        self._inputs = fill(self._inputs)
        if self._numbers is None:
            self._numbers = numbers.to(self._fabric.device, non_blocking=True, copy=True)
        else:
            self._numbers.copy_(numbers, non_blocking=True)
        return self._inputs, self._numbers

    def _compute(self, inputs: Tensor, numbers: Tensor) -> None:
        losses: dict[str, Tensor] = self._learner(inputs, numbers[:-1])
        self._fabric.backward(losses["loss"])
        norm = self._fabric.clip_gradients(
            self._learner, self._optimizer, max_norm=self._clip, error_if_nonfinite=False
        )
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        for name, value in losses.items():
            if name not in self._sums:
                self._sums[name] = torch.zeros_like(value, requires_grad=False)
            self._sums[name] += value.detach()
        watched = [losses["loss"]] if norm is None or not self._watch_norm else [losses["loss"], norm]
        self.watch.update(numbers[-1], *watched)


@contextmanager
def _tuned() -> Iterator[None]:
    """Let cuDNN try its algorithms on the shapes it meets; those of training never change."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
