"""A benchmark's rows: the table that is printed and the JSON file that is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from winnow.bench.timing import Timing
from winnow.files import write_text
from winnow.training.results import collect_provenance, version_of

_RIVALS = ("triton", "faiss-cpu", "faiss-gpu", "pytorch-metric-learning", "POT")


@dataclass(frozen=True)
class Row:
    """One rival in one case.

    Attributes:
        case: What was measured, such as the sizes; rows of one case are compared with each other.
        rival: Who did it.
        timing: How long it took.
        peak_bytes: Memory at its height above what was there before; None where it was not measured.
        facts: Further figures by name, such as an error or a metric.
    """

    case: str
    rival: str
    timing: Timing
    peak_bytes: int | None = None
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Bench:
    """A finished benchmark.

    Attributes:
        name: Its file is NAME.json.
        title: What stands above the table.
        against: The rival whose time is 1 in the ratios of its case.
        settings: What was asked for.
        rows: In the order they are shown.
        notes: What a reader should know, such as a rival that is not installed.
    """

    name: str
    title: str
    against: str
    settings: Mapping[str, Any]
    rows: Sequence[Row]
    notes: Sequence[str] = ()

    def ratio(self, row: Row) -> float | None:
        """The median time of a row over that of `against` in the same case; None where that is missing."""
        for other in self.rows:
            if other.case == row.case and other.rival == self.against:
                return row.timing.median / other.timing.median
        return None


def bench_table(bench: Bench) -> Table:
    """Return the rows as a table, case by case: medians, slowest less fastest run, ratios, memory and facts."""
    facts = list(dict.fromkeys(name for row in bench.rows for name in row.facts))
    memory = any(row.peak_bytes is not None for row in bench.rows)
    table = Table(
        title=escape(f"{bench.title}; ratios to {bench.against}"), title_justify="left", box=None, pad_edge=False
    )
    table.add_column("")  # on a narrow terminal names break, figures never
    for name in ("median", "spread", "ratio", *(["memory"] if memory else []), *facts):
        table.add_column(escape(name).replace(" ", "\n"), justify="right", no_wrap=True, vertical="bottom")
    for case, rows in groupby(bench.rows, key=lambda row: row.case):
        table.add_row(f"[bold]{escape(case)}[/]")
        for row in rows:
            rival, *figures = map(escape, _cells(bench, row, facts, memory))
            table.add_row(Padding(rival, (0, 0, 0, 2)), *figures)
        table.add_row()
    return table


def _cells(bench: Bench, row: Row, facts: Sequence[str], memory: bool) -> list[str]:
    timing, ratio = row.timing, bench.ratio(row)
    cells = [row.rival, show_seconds(timing.median)]
    cells.append(f"{100 * (timing.highest - timing.lowest) / timing.median:.0f}%" if timing.runs > 1 else "")
    cells.append("" if ratio is None else f"{ratio:.3g}")
    if memory:
        cells.append("" if row.peak_bytes is None else show_bytes(row.peak_bytes))
    return cells + [f"{row.facts[name]:.3g}" if name in row.facts else "" for name in facts]


def save_bench(bench: Bench, folder: Path) -> Path:
    """Write FOLDER/NAME.json with the rows, the settings, the command, the commit, the machine and the versions.

    Raises:
        OutputError: when it cannot be written.
    """
    origin = collect_provenance().to_dict()
    origin["versions"] |= {name: found for name in _RIVALS if (found := version_of(name)) is not None}
    rows = [
        {
            "case": row.case,
            "rival": row.rival,
            "seconds": {
                "median": row.timing.median,
                "lowest": row.timing.lowest,
                "highest": row.timing.highest,
                "runs": row.timing.runs,
            },
            "ratio": bench.ratio(row),
            "peak_bytes": row.peak_bytes,
            **({"facts": dict(row.facts)} if row.facts else {}),
        }
        for row in bench.rows
    ]
    content = {
        "name": bench.name,
        **origin,
        "settings": dict(bench.settings),
        "against": bench.against,
        "rows": rows,
        "notes": list(bench.notes),
    }
    path = folder / f"{bench.name}.json"
    write_text(path, json.dumps(content, indent=2) + "\n")
    return path


def show_seconds(value: float) -> str:
    """Return a time with a unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def show_bytes(value: int) -> str:
    """Return an amount of memory with a unit that suits it."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e3:.3g} kB"
