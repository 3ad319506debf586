"""Who is told how training goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from winnow.errors import MissingExtraError


class Monitor:
    """Does nothing; the command line and TensorBoard fill these in."""

    def note(self, text: str) -> None:
        """Say something the user should know."""

    def task(self, title: str) -> Callable[[int, int], None]:
        """Begin a piece of long work; returns what to call with (done, total)."""
        return lambda done, total: None

    def start(self, steps: int, done: int) -> None:
        """Begin training, with so many steps at most, some of them done already."""

    def step(self, step: int) -> None:
        """Another step is taken."""

    def validated(self, entry: dict[str, Any], improved: bool, by: str = "MAP@R") -> None:
        """A validation is done; `entry` is its line in the log, `by` the metric that decides which is the best."""

    def close(self) -> None:
        """Training is over, well or badly."""


class Both(Monitor):
    """Tells two monitors."""

    def __init__(self, first: Monitor, second: Monitor) -> None:
        self.first, self.second = first, second

    def note(self, text: str) -> None:
        """Pass on."""
        self.first.note(text)
        self.second.note(text)

    def task(self, title: str) -> Callable[[int, int], None]:
        """Pass on."""
        first, second = self.first.task(title), self.second.task(title)

        def tell(done: int, total: int) -> None:
            first(done, total)
            second(done, total)

        return tell

    def start(self, steps: int, done: int) -> None:
        """Pass on."""
        self.first.start(steps, done)
        self.second.start(steps, done)

    def step(self, step: int) -> None:
        """Pass on."""
        self.first.step(step)
        self.second.step(step)

    def validated(self, entry: dict[str, Any], improved: bool, by: str = "MAP@R") -> None:
        """Pass on."""
        self.first.validated(entry, improved, by)
        self.second.validated(entry, improved, by)

    def close(self) -> None:
        """Pass on."""
        self.first.close()
        self.second.close()


def require_tensorboard() -> None:
    """Say how to get TensorBoard where it is missing; asked before any work is done."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise MissingExtraError("tensorboard", "tensorboard", "train.tensorboard=true") from None


class TensorBoard(Monitor):
    """Writes every validation's numbers as TensorBoard scalars.

    Args:
        folder: Where the event files go.
        resume_step: The checkpoint's step in a resumed run: what was logged after it is dropped.
    """

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge = None if resume_step is None else resume_step + 1
        self._writer = SummaryWriter(str(folder), purge_step=purge)

    def validated(self, entry: dict[str, Any], improved: bool, by: str = "MAP@R") -> None:
        """Log one validation."""
        for name, value in entry.items():
            if name != "step":
                self._writer.add_scalar(name, value, entry["step"])

    def close(self) -> None:
        """Flush the event file."""
        self._writer.close()
