"""Output of commands: lines and tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

METRICS = ("MAP@R", "P@1", "P@R")
"""Metrics of every table, in order."""

out = Console()
err = Console(stderr=True)


def echo(*parts: object) -> None:
    """Print a line without markup, because file names may contain brackets."""
    out.print(*parts, markup=False, highlight=False, soft_wrap=True)


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
