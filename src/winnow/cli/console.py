"""Output of commands: lines, tables, and progress bars."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

METRICS = ("MAP@R", "P@1", "P@R")
"""Metrics of every table, in order."""

out = Console()
err = Console(stderr=True)


def echo(*parts: object) -> None:
    """Print a line without markup, because file names may contain brackets."""
    out.print(*parts, markup=False, highlight=False, soft_wrap=True)


def note(text: str, *, dim: bool = False) -> None:
    """Print a line to standard error, without markup and unbroken."""
    err.print(text, style="dim" if dim else None, markup=False, highlight=False, soft_wrap=True)


def show(table: Table) -> None:
    """Print a table; into a file or a pipe at full width, so no name is broken."""
    console = out if out.is_terminal else Console(file=out.file, width=1000)
    console.print(table)


def metrics_table(rows: Mapping[str, Mapping[str, float]], title: str) -> Table:
    """Return a table of metrics in percent, one row per name."""
    names = [*METRICS, *(n for n in next(iter(rows.values())) if n.startswith("R@") and n != "R@1")]
    table = Table(title=escape(title), title_justify="left")
    table.add_column("", overflow="fold", min_width=8)  # names may differ in their last characters only
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for label, metrics in rows.items():
        table.add_row(escape(label), *(f"{100 * metrics[name]:.2f}" for name in names))
    return table


def comparison_rows(rows: list[dict[str, Any]], title: str = "test classes, unseen in training (%)") -> Table:
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
        table.add_row(escape(re.sub(",(?! )", ", ", row["method"])), *cells)  # long names break at a comma
    return table


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


class WorkBars:
    """Progress bars of long work on a terminal, one line per finished piece of work elsewhere.

    Args:
        name: Name of the run, if it is one of several.
        shared: Bars of all runs, which the caller starts and stops.
    """

    def __init__(self, name: str = "", shared: Progress | None = None) -> None:
        self._prefix = f"{name}: " if name else ""
        self._bars = shared or bars()
        self._is_own = shared is None
        self._tasks: set[TaskID] = set()

    def __enter__(self) -> WorkBars:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()  # after an error too: an open bar hides the cursor of the terminal

    def message(self, text: str) -> None:
        """Print a line above the bars."""
        note(self._prefix + text, dim=True)

    def add(self, title: str, total: int | None = None, done: int = 0) -> TaskID:
        """Show a bar."""
        if self._is_own:
            self._bars.start()
        bar = self._bars.add_task(escape(title), total=total, completed=done, info="")
        self._tasks.add(bar)
        return bar

    def update(self, bar: TaskID, done: int | None = None, total: int | None = None, info: str | None = None) -> None:
        """Change a bar."""
        self._bars.update(bar, completed=done, total=total)
        if info is not None:
            self._bars.update(bar, info=info)

    def progress(self, title: str) -> Callable[[int, int], None]:
        """Show a bar for long work; return the function that reports `(done, total)`."""
        bar = self.add(self._prefix + title)

        def report(done: int, total: int) -> None:
            self.update(bar, done, total)
            if done == total:
                self._bars.remove_task(bar)
                self._tasks.discard(bar)
                if not err.is_terminal:
                    note(f"{self._prefix}{title}: {total} done")

        return report

    def line(self, text: str) -> None:
        """Print a line about the run to standard error."""
        note(self._prefix + text)

    def close(self) -> None:
        """Remove the bars."""
        self.clear()
        if self._is_own:
            self._bars.stop()

    def clear(self) -> None:
        """Remove bars of work that never ended, such as work that another run had done."""
        for bar in self._tasks:
            self._bars.remove_task(bar)
        self._tasks.clear()
