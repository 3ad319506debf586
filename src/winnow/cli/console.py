"""Output of commands: lines, tables, and progress bars."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from winnow.cli.terminal import PlainConsole, printable

METRICS = ("MAP@R", "P@1", "P@R")
"""Metrics of every table, in order."""

FIRST_LINE_S, INTERVAL_S = 2.0, 10.0
"""Seconds until the first line about long work, and between the lines, where there is no terminal."""

out = PlainConsole()
err = PlainConsole(stderr=True)


def echo(*parts: object) -> None:
    """Print a line without markup, because file names may contain brackets."""
    out.print(*map(str, parts), markup=False, highlight=False, soft_wrap=True)


def note(text: str, *, dim: bool = False) -> None:
    """Print a line to standard error, without markup and unbroken."""
    err.print(text, style="dim" if dim else None, markup=False, highlight=False, soft_wrap=True)


def echo_prose(text: str) -> None:
    """Print a sentence for the reader, on a terminal broken between words.

    Lines with commands and paths go through `echo`: the terminal breaks them, so they are copied whole.
    """
    echo(at_words(text, out))


def at_words(text: str, console: PlainConsole) -> str:
    """Return a text with line breaks between words for a terminal; elsewhere as it is."""
    if not console.is_terminal:
        return text
    lines = text.splitlines()
    return "\n".join(textwrap.fill(one, console.width, break_long_words=False, break_on_hyphens=False) for one in lines)


def show(table: Table) -> None:
    """Print a table; into a file or a pipe at full width, so no name is broken."""
    console = out if out.is_terminal else PlainConsole(file=out.file, width=1000)
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


def comparison_rows(rows: list[dict[str, Any]], title: str = "test classes, not used for training (%)") -> Table:
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


@dataclass
class Pace:
    """Start of long work, from which its rate and the time left are computed."""

    title: str
    first: int  # units done at the start
    started: float
    due: float  # time of the next line

    def describe(self, done: int, total: int | None, now: float) -> str:
        """Return the rate and the time left; "" before there is a rate."""
        rate = (done - self.first) / max(now - self.started, 1e-9)
        if rate <= 0:
            return ""
        left = "" if total is None else f", {duration((total - done) / rate)} left"
        return f", {rate:.3g}/s{left}"


def duration(seconds: float) -> str:
    """Return a time in seconds, minutes, or hours."""
    if seconds < 0.5:
        return "under 1 s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class RateColumn(ProgressColumn):
    """Units per second."""

    def render(self, task: Task) -> Text:
        """Return the rate of a bar, once there is one."""
        return Text("" if task.speed is None else f"{task.speed:.3g}/s")


def bars() -> Progress:
    """Return progress bars for a terminal; elsewhere they print nothing."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[info]}"),
        console=err,
        disable=not err.is_terminal,
        transient=True,
    )


class WorkBars:
    """Progress bars of long work on a terminal, lines at intervals elsewhere.

    Args:
        name: Name of the run, if it is one of several.
        shared: Bars of all runs, which the caller starts and stops.
    """

    def __init__(self, name: str = "", shared: Progress | None = None) -> None:
        self._prefix = f"{name}: " if name else ""
        self._bars = shared or bars()
        self._is_own = shared is None
        self._paces: dict[TaskID, Pace] = {}

    def __enter__(self) -> WorkBars:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()  # after an error too: an open bar hides the cursor of the terminal

    def message(self, text: str) -> None:
        """Print a sentence above the bars."""
        note(at_words(self._prefix + text, err), dim=True)

    def line(self, text: str) -> None:
        """Print a line about the run to standard error."""
        note(self._prefix + text)

    def add(self, title: str, total: int | None = None, done: int = 0) -> TaskID:
        """Show a bar."""
        if self._is_own:
            self._bars.start()
        bar = self._bars.add_task(escape(printable(title)), total=total, completed=done, info="")
        now = monotonic()
        self._paces[bar] = Pace(title, done, now, now + FIRST_LINE_S)
        return bar

    def update(self, bar: TaskID, done: int | None = None, total: int | None = None, info: str | None = None) -> None:
        """Change a bar."""
        self._bars.update(bar, completed=done, total=total)
        if info is not None:
            self._bars.update(bar, info=printable(info))
        if done is not None and not err.is_terminal and monotonic() >= self._paces[bar].due:
            of = "" if total is None else f"/{total}"
            note(f"{self._paces[bar].title}: {done}{of}{self.pace(bar, done, total)}")

    def pace(self, bar: TaskID, done: int, total: int | None) -> str:
        """Return rate and time left as the end of a progress line."""
        now = monotonic()
        self._paces[bar].due = now + INTERVAL_S
        return self._paces[bar].describe(done, total, now)

    def progress(self, title: str) -> Callable[[int, int], None]:
        """Show a bar for long work; return the function that reports `(done, total)`."""
        bar = self.add(self._prefix + title)

        def report(done: int, total: int) -> None:
            if done < total:
                self.update(bar, done, total)
                return
            self._remove(bar)
            if not err.is_terminal:
                note(f"{self._prefix}{title}: {total} done")

        return report

    def close(self) -> None:
        """Remove the bars."""
        self.clear()
        if self._is_own:
            self._bars.stop()

    def clear(self) -> None:
        """Remove bars of work that never ended, such as work that another run had done."""
        for bar in list(self._paces):
            self._remove(bar)

    def _remove(self, bar: TaskID) -> None:
        if self._paces.pop(bar, None) is not None:
            self._bars.remove_task(bar)
