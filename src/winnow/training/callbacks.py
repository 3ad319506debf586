"""Callbacks: what training reports to a console, to TensorBoard, or to your code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from winnow.errors import MissingExtraError

if TYPE_CHECKING:
    from winnow.training.duration import Duration


class Callback:
    """Base class of callbacks; every method does nothing."""

    def message(self, text: str) -> None:
        """Handle a message for the user."""

    def estimate(self, measure: Callable[[], Duration]) -> None:
        """Handle the time that a run will take; `measure` takes about a second.

        It is not called for runs that share a cache.
        """

    def progress(self, title: str) -> Callable[[int, int], None]:
        """Start long work before training.

        Returns a function that is called with (done, total).
        """
        return lambda done, total: None

    def start(self, steps: int, done: int) -> None:
        """Handle the start of training: number of steps, and steps before a resume."""

    def step(self, step: int) -> None:
        """Handle the end of a step."""

    def validated(self, entry: Mapping[str, float], improved: bool, by: str = "MAP@R") -> None:
        """Handle the end of a validation.

        Args:
            entry: Line of the log.
            improved: Whether the weights are the best so far.
            by: Metric that selects the best weights.
        """

    def close(self) -> None:
        """Handle the end of training, also after an error."""


class CallbackList(Callback):
    """Pass every call on to several callbacks."""

    def __init__(self, *callbacks: Callback) -> None:
        self.callbacks = callbacks

    def message(self, text: str) -> None:
        """Pass a message on."""
        for callback in self.callbacks:
            callback.message(text)

    def estimate(self, measure: Callable[[], Duration]) -> None:
        """Pass the estimate on, measured at most once."""
        once = cache(measure)
        for callback in self.callbacks:
            callback.estimate(once)

    def progress(self, title: str) -> Callable[[int, int], None]:
        """Start long work in each callback."""
        reports = [callback.progress(title) for callback in self.callbacks]

        def report(done: int, total: int) -> None:
            for each in reports:
                each(done, total)

        return report

    def start(self, steps: int, done: int) -> None:
        """Pass the start of training on."""
        for callback in self.callbacks:
            callback.start(steps, done)

    def step(self, step: int) -> None:
        """Pass the end of a step on."""
        for callback in self.callbacks:
            callback.step(step)

    def validated(self, entry: Mapping[str, float], improved: bool, by: str = "MAP@R") -> None:
        """Pass the end of a validation on."""
        for callback in self.callbacks:
            callback.validated(entry, improved, by)

    def close(self) -> None:
        """Pass the end of training on."""
        for callback in self.callbacks:
            callback.close()


def check_tensorboard() -> None:
    """Raise `MissingExtraError` if TensorBoard is not installed.

    It is called before training starts.
    """
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise MissingExtraError("tensorboard", "tensorboard", "train.tensorboard=true") from None


class TensorBoard(Callback):
    """Write the values of every validation as TensorBoard scalars.

    Args:
        folder: Folder of the event files.
        resume_step: Step of the checkpoint of a resumed run; scalars logged after it are dropped.
    """

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge = None if resume_step is None else resume_step + 1
        self._writer = SummaryWriter(str(folder), purge_step=purge)

    def validated(self, entry: Mapping[str, float], improved: bool, by: str = "MAP@R") -> None:
        """Write the values of a validation."""
        for name, value in entry.items():
            if name != "step":
                self._writer.add_scalar(name, value, int(entry["step"]))

    def close(self) -> None:
        """Flush the event file."""
        self._writer.close()
