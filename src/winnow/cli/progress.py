"""Progress of training on the console: bars on a terminal, lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rich.progress import Progress, TaskID

from winnow.cli.console import WorkBars, bars, duration, err
from winnow.training.callbacks import Callback

if TYPE_CHECKING:
    from winnow.training.duration import Duration

__all__ = ["ConsoleCallback", "bars"]


def describe_duration(found: Duration) -> str:
    """Return the expected time of a run in one line."""
    features = f"{duration(found.features)} for the features of {found.images:,} images, then " if found.images else ""
    step = f"{found.step:.2g} s" if found.step >= 0.001 else "1 ms"
    first, last = (duration(found.step * steps) for steps in (found.first_stop, found.steps))
    limit = f"{last} for {found.steps:,} steps"
    if found.first_stop < found.steps:
        limit = f"{first} for {found.first_stop:,} steps if nothing improves, at most {limit}"
    return f"time: about {features}{step} a step: {limit}; validation comes on top"


class ConsoleCallback(Callback):
    """Progress bars of a training run.

    Args:
        name: Name of the run, if it is one of several.
        shared: Bars of all runs, which the caller starts and stops.
    """

    def __init__(self, name: str = "", shared: Progress | None = None) -> None:
        self._title = name or "training"
        self._bars = WorkBars(name, shared)
        self._training: TaskID | None = None
        self._steps = 0

    def __enter__(self) -> ConsoleCallback:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def message(self, text: str) -> None:
        """Print a line above the bars."""
        self._bars.message(text)

    def estimate(self, measure: Callable[[], Duration]) -> None:
        """Print how long the run will take; measuring takes seconds itself."""
        self._bars.add("measuring the expected time")
        found = measure()
        self._bars.clear()
        self._bars.message(describe_duration(found))

    def progress(self, title: str) -> Callable[[int, int], None]:
        """Show a bar for long work before or after training."""
        return self._bars.progress(title)

    def start(self, steps: int, done: int) -> None:
        """Show the bar of training."""
        self._bars.clear()
        self._steps = steps
        self._training = self._bars.add(self._title, steps, done)

    def step(self, step: int) -> None:
        """Advance the bar of training."""
        if self._training is not None:
            self._bars.update(self._training, step, self._steps)

    def validated(self, entry: Mapping[str, float], improved: bool, by: str = "MAP@R") -> None:
        """Show the last validation next to the bar, or print it with rate and time left."""
        text = f"val {by} {100 * entry[f'val/{by}']:.2f}{' (best)' if improved else ''}"
        if "turned" in entry:
            text += f", proxies turned {entry['turned']:.1f}°"
        if "zsr/guess" in entry:
            text += f", ZSR {entry['zsr']:.2f} (guessing: {entry['zsr/guess']:.2f})"
        if err.is_terminal and self._training is not None:
            self._bars.update(self._training, info=text)
            return
        loss = f" loss {entry['loss']:.4f}" if "loss" in entry else ""
        step = int(entry["step"])
        pace = "" if self._training is None else self._bars.pace(self._training, step, self._steps)
        self._bars.line(f"step {step}:{loss} {text}{pace}")

    def close(self) -> None:
        """Remove the bars."""
        self._training = None
        self._bars.close()
