"""What commands print: tables, notes and progress bars."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from winnow.report.figures import METRICS
from winnow.training.monitor import Monitor

out = Console()
err = Console(stderr=True)


def say(*parts: object) -> None:
    """Print a line as it is: file names may hold what rich takes for markup."""
    out.print(*parts, markup=False, highlight=False, soft_wrap=True)


def bars() -> Progress:
    """Return progress bars for a terminal; elsewhere they stay silent."""
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


class ConsoleMonitor(Monitor):
    """Progress bars on a terminal, a line per validation elsewhere.

    Args:
        name: Of the run, where it is one of several.
        shared: The bars of all of them, which somebody else starts and stops.
    """

    def __init__(self, name: str = "", shared: Progress | None = None) -> None:
        self._name, self._prefix = name, f"{name}: " if name else ""
        self._progress = shared or bars()
        self._own = shared is None
        self._tasks: set[TaskID] = set()
        self._training: TaskID | None = None
        self._started = not self._own

    def __enter__(self) -> ConsoleMonitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()  # also after an error, or the terminal would stay without its cursor

    def _begin(self) -> None:
        if not self._started:
            self._progress.start()
            self._started = True

    def note(self, text: str) -> None:
        """Print a line above the bars."""
        err.print(self._prefix + text, style="dim", markup=False, highlight=False, soft_wrap=True)

    def task(self, title: str) -> Callable[[int, int], None]:
        """Show a bar for a piece of work."""
        self._begin()
        bar = self._progress.add_task(escape(self._prefix + title), total=None, info="")
        self._tasks.add(bar)

        def tell(done: int, total: int) -> None:
            self._progress.update(bar, completed=done, total=total)
            if done == total:
                self._progress.remove_task(bar)
                self._tasks.discard(bar)
                if not err.is_terminal:
                    err.print(f"{self._prefix}{title}: {total} done", markup=False, highlight=False, soft_wrap=True)

        return tell

    def start(self, steps: int, done: int) -> None:
        """Show the bar of training."""
        self._begin()
        self._clear()
        title = escape(self._name) or "training"
        self._training = self._progress.add_task(title, total=steps, completed=done, info="")
        self._tasks.add(self._training)

    def step(self, step: int) -> None:
        """Move the bar of training."""
        if self._training is not None:
            self._progress.update(self._training, completed=step)

    def validated(self, entry: dict[str, Any], improved: bool, by: str = "MAP@R") -> None:
        """Show the last validation beside the bar, or print it."""
        text = f"val {by} {100 * entry[f'val/{by}']:.2f}{' (best)' if improved else ''}"
        if err.is_terminal and self._training is not None:
            self._progress.update(self._training, info=text)
        else:
            loss = f" loss {entry['loss']:.4f}" if "loss" in entry else ""
            line = f"{self._prefix}step {entry['step']}:{loss} {text}"
            err.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Take the bars away."""
        if self._own:
            self._progress.stop()
            self._started = False
        else:
            self._clear()
        self._training = None

    def _clear(self) -> None:
        """Take away bars of work that never ended, such as what another run had done already."""
        for bar in self._tasks:
            self._progress.remove_task(bar)
        self._tasks.clear()


def show(table: Table) -> None:
    """Print a table: as wide as the terminal; into a file or a pipe as wide as it is, so that no name is broken."""
    console = out if out.is_terminal else Console(file=out.file, width=1000)
    console.print(table)


def metrics_table(rows: Mapping[str, Mapping[str, float]], title: str) -> Table:
    """Return a table of metrics in percent, a row for each name."""
    names = [*METRICS, *(n for n in next(iter(rows.values())) if n.startswith("R@") and n != "R@1")]
    table = Table(title=escape(title), title_justify="left")
    table.add_column("", overflow="fold", min_width=8)  # names may differ in their last letters only
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for label, metrics in rows.items():
        table.add_row(escape(label), *(f"{100 * metrics[name]:.2f}" for name in names))
    return table


def comparison_rows(rows: list[dict[str, Any]], title: str = "test classes, never seen in training (%)") -> Table:
    """Return a table of methods: mean and standard deviation over seeds, in percent."""
    table = Table(title=escape(title), title_justify="left")
    table.add_column("", overflow="fold", min_width=8)
    for name in METRICS:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = []
        for name in METRICS:
            spread = row[f"{name} std"]
            cells.append(f"{100 * row[name]:.2f}" + ("" if spread is None else f" ± {100 * spread:.2f}"))
        table.add_row(escape(re.sub(",(?! )", ", ", row["method"])), *cells)  # long names break there
    return table
