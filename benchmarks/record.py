"""Measurements of a benchmark: its printed table and its JSON file."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from winnow.files import write_text
from winnow.profiling import Timing
from winnow.training.results import collect_provenance, version_of

_BASELINE_PACKAGES = ("triton", "faiss-cpu", "faiss-gpu", "pytorch-metric-learning", "POT")

# Names in files of version 0.1.0. Keys of JSON files never change: "rival" is the method, "against" the reference.
_OLD_NAMES = (
    (re.compile(r"^1 side by side$"), "1 concurrent run"),
    (re.compile(r"^(\d+) side by side$"), r"\1 concurrent runs"),
    (re.compile(r"^its (.+) kernel alone$"), r"winnow, \1 kernel"),
    (re.compile(r", a regulariser$"), ", regularizer"),
    (re.compile(r"^winnow bench "), "python -m benchmarks "),
    (re.compile(r"^1 clients"), "1 client"),
)


@dataclass(frozen=True)
class Measurement:
    """One method in one case."""

    case: str  # what was measured, such as sizes; measurements of one case are compared
    method: str
    timing: Timing
    peak_bytes: int | None = None  # peak memory above what was in use before; None where it was not measured
    facts: Mapping[str, float] = field(default_factory=dict)  # other values by name, such as an error or a metric


@dataclass(frozen=True)
class Benchmark:
    """A finished benchmark."""

    name: str  # of its file, NAME.json
    title: str
    reference: str  # the method whose time is 1 in the ratios of a case
    settings: Mapping[str, Any]
    rows: Sequence[Measurement]
    notes: Sequence[str] = ()

    def ratio(self, row: Measurement) -> float | None:
        """Return the median time divided by the reference's in the same case.

        The result is None without a reference.
        """
        for other in self.rows:
            if other.case == row.case and other.method == self.reference:
                return row.timing.median / other.timing.median
        return None


def to_table(benchmark: Benchmark) -> Table:
    """Return the measurements by case as a table."""
    facts = list(dict.fromkeys(name for row in benchmark.rows for name in row.facts))
    memory = any(row.peak_bytes is not None for row in benchmark.rows)
    title = escape(f"{benchmark.title}; ratios to {benchmark.reference}")
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("")  # on a narrow terminal names wrap, numbers do not
    for name in ("median", "spread", "ratio", *(["memory"] if memory else []), *facts):
        table.add_column(escape(name).replace(" ", "\n"), justify="right", no_wrap=True, vertical="bottom")
    for case, rows in groupby(benchmark.rows, key=lambda row: row.case):
        table.add_row(f"[bold]{escape(case)}[/]")
        for row in rows:
            method, *numbers = map(escape, _cells(benchmark, row, facts, memory))
            table.add_row(Padding(method, (0, 0, 0, 2)), *numbers)
        table.add_row()
    return table


def _cells(benchmark: Benchmark, row: Measurement, facts: Sequence[str], memory: bool) -> list[str]:
    timing, ratio = row.timing, benchmark.ratio(row)
    cells = [row.method, format_seconds(timing.median)]
    cells.append(f"{100 * (timing.highest - timing.lowest) / timing.median:.0f}%" if timing.runs > 1 else "")
    cells.append("" if ratio is None else f"{ratio:.3g}")
    if memory:
        cells.append("" if row.peak_bytes is None else format_bytes(row.peak_bytes))
    return cells + [f"{row.facts[name]:.3g}" if name in row.facts else "" for name in facts]


def save(benchmark: Benchmark, folder: Path) -> Path:
    """Write FOLDER/NAME.json with measurements, settings, and provenance.

    Raises:
        OutputError: when it cannot be written.
    """
    provenance = collect_provenance().to_dict()
    provenance["command"] = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    provenance["versions"] |= {name: found for name in _BASELINE_PACKAGES if (found := version_of(name)) is not None}
    rows = [
        {
            "case": row.case,
            "rival": row.method,
            "seconds": {
                "median": row.timing.median,
                "lowest": row.timing.lowest,
                "highest": row.timing.highest,
                "runs": row.timing.runs,
            },
            "ratio": benchmark.ratio(row),
            "peak_bytes": row.peak_bytes,
            **({"facts": dict(row.facts)} if row.facts else {}),
        }
        for row in benchmark.rows
    ]
    content = {
        "name": benchmark.name,
        **provenance,
        "settings": dict(benchmark.settings),
        "against": benchmark.reference,
        "rows": rows,
        "notes": list(benchmark.notes),
    }
    path = folder / f"{benchmark.name}.json"
    write_text(path, json.dumps(content, indent=2) + "\n")
    return path


def load(path: Path) -> dict[str, Any]:
    """Return the content of a saved benchmark, with present names."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    content["command"] = _renamed(content["command"])
    for row in content["rows"]:
        row["case"], row["rival"] = _renamed(row["case"]), _renamed(row["rival"])
    return content


def _renamed(name: str) -> str:
    for old, new in _OLD_NAMES:
        name = old.sub(new, name)
    return name


def format_seconds(value: float) -> str:
    """Return a time with three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def format_bytes(value: int) -> str:
    """Return an amount of memory with three digits and a unit."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e3:.3g} kB"
