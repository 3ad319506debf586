"""Progress of long work on the console: bars on a terminal, lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from winnow.cli.console import err
from winnow.training.callbacks import Callback


def bars() -> Progress:
    """Return progress bars for a terminal; elsewhere they print nothing."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[info]}"),
        console=err,
        disable=not err.is_terminal,
        transient=True,
    )


class ConsoleCallback(Callback):
    """Progress bars on a terminal, one line per validation elsewhere.

    Args:
        name: Name of the run, if it is one of several.
        shared: Bars of all runs, which the caller starts and stops.
    """

    def __init__(self, name: str = "", shared: Progress | None = None) -> None:
        self._name, self._prefix = name, f"{name}: " if name else ""
        self._progress = shared or bars()
        self._own = shared is None
        self._tasks: set[TaskID] = set()
        self._training: TaskID | None = None
        self._started = not self._own

    def __enter__(self) -> ConsoleCallback:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()  # after an error too: an open bar hides the cursor of the terminal

    def _start(self) -> None:
        if not self._started:
            self._progress.start()
            self._started = True

    def message(self, text: str) -> None:
        """Print a line above the bars."""
        err.print(self._prefix + text, style="dim", markup=False, highlight=False, soft_wrap=True)

    def progress(self, title: str) -> Callable[[int, int], None]:
        """Show a bar for long work."""
        self._start()
        bar = self._progress.add_task(escape(self._prefix + title), total=None, info="")
        self._tasks.add(bar)

        def report(done: int, total: int) -> None:
            self._progress.update(bar, completed=done, total=total)
            if done == total:
                self._progress.remove_task(bar)
                self._tasks.discard(bar)
                if not err.is_terminal:
                    err.print(f"{self._prefix}{title}: {total} done", markup=False, highlight=False, soft_wrap=True)

        return report

    def start(self, steps: int, done: int) -> None:
        """Show the bar of training."""
        self._start()
        self._clear()
        title = escape(self._name) or "training"
        self._training = self._progress.add_task(title, total=steps, completed=done, info="")
        self._tasks.add(self._training)

    def step(self, step: int) -> None:
        """Advance the bar of training."""
        if self._training is not None:
            self._progress.update(self._training, completed=step)

    def validated(self, entry: Mapping[str, float], improved: bool, by: str = "MAP@R") -> None:
        """Show the last validation next to the bar, or print it."""
        text = f"val {by} {100 * entry[f'val/{by}']:.2f}{' (best)' if improved else ''}"
        if err.is_terminal and self._training is not None:
            self._progress.update(self._training, info=text)
        else:
            loss = f" loss {entry['loss']:.4f}" if "loss" in entry else ""
            line = f"{self._prefix}step {entry['step']}:{loss} {text}"
            err.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the bars."""
        if self._own:
            self._progress.stop()
            self._started = False
        else:
            self._clear()
        self._training = None

    def _clear(self) -> None:
        """Remove bars of work that never ended, such as work that another run had done."""
        for bar in self._tasks:
            self._progress.remove_task(bar)
        self._tasks.clear()
