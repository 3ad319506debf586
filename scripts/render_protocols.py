"""Render published tables of protocols again from their JSON files.

`python scripts/render_protocols.py [results/protocols/NAME.json ...]`; without files all tables. Nothing is measured.
Numbers stay as they are. Intervals that a file lacks because it precedes Student's interval of single models are
computed from its records, and written to it. `tests/protocols/test_render.py` compares the numbers of all files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from winnow.protocols import ProtocolTable, read_table
from winnow.protocols.curves import LAST_THIRD, RAW, is_late
from winnow.protocols.render import render_csv, render_latex, render_markdown
from winnow.protocols.statistics import Scores, clip_interval
from winnow.protocols.table import RunRecord
from winnow.report.claims import Estimate

Run = tuple[int | None, int | None]
"""Fold and number of a run."""

FOLDER = Path(__file__).resolve().parents[1] / "results" / "protocols"


def tables() -> list[Path]:
    """Return the JSON files of published tables, which are named PROTOCOL-DATASET-BACKBONE."""
    return sorted(FOLDER.glob("*-*-*.json"))


def render(file: Path) -> bool:
    """Write the Markdown, CSV, and LaTeX table of a JSON file; return whether one of them changed."""
    add_intervals(file)
    table = read_table(file)
    texts = {".md": render_markdown(table), ".csv": render_csv(table), ".tex": render_latex(table)}
    paths = {file.with_suffix(suffix): text for suffix, text in texts.items()}
    changed = [path for path, text in paths.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in changed:
        path.write_text(paths[path], encoding="utf-8")
    return bool(changed)


def add_intervals(file: Path) -> None:
    """Add the intervals of single models that follow from the records of a file and that it lacks."""
    table, text = read_table(file), file.read_text(encoding="utf-8")
    content = json.loads(text)

    def finished(method: str) -> set[Run]:
        return {(run.fold, run.run) for run in table.runs if run.method == method}

    for row, written in zip(table.rows, content["rows"], strict=True):
        for cell, one in zip(row.cells, written["cells"], strict=True):
            if lacks_interval(table, cell.dim, cell.estimate):
                found = scores(table, row.method, cell.metric, finished(row.method)).estimate()
                add(one["spread"], clip_interval(found, 0, 100))
    for pair, one in zip(table.pairs, content["pairs"], strict=True):
        if lacks_interval(table, pair.dim, pair.difference):
            both = finished(pair.method) & finished(pair.against)
            ours, theirs = (scores(table, name, pair.metric, both) for name in (pair.method, pair.against))
            add(one["difference"], ours.minus(theirs).estimate())
    if content != json.loads(text):
        file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def lacks_interval(table: ProtocolTable, dim: int, estimate: Estimate) -> bool:
    """Return whether a number is of single models and has no interval."""
    return dim == table.protocol.dim and estimate.low is None


def add(known: dict[str, Any], found: Estimate) -> None:
    """Add the interval of an estimate to the JSON of a number, if it has one."""
    assert abs(found.mean - known["mean"]) < 1e-9, "the records are of other runs than the number"
    if found.interval is not None:
        known |= {"low": found.low, "high": found.high, "interval": found.interval}


def scores(table: ProtocolTable, method: str, metric: str, runs: Collection[Run]) -> Scores:
    """Return the values in percent of a method's recorded runs, which a fold has in the order of their numbers."""
    values: list[list[float]] = [[] for _ in range(table.protocol.folds)]
    for run in sorted((run for run in table.runs if run.method == method), key=lambda run: run.run or 0):
        if (run.fold, run.run) in runs:
            assert run.fold is not None
            values[run.fold - 1].append(100 * recorded(table, run, metric))
    return Scores.of_members(values)


def recorded(table: ProtocolTable, run: RunRecord, metric: str) -> float:
    """Return a metric of a recorded run, or the mean of its validations in the last third of training."""
    protocol = table.protocol
    if not is_late(metric):
        return run.metrics[protocol.split][metric]
    name = metric.removeprefix(LAST_THIRD)
    raw, name = (RAW if name.startswith(RAW) else ""), name.removeprefix(RAW)
    group = "" if protocol.split == "val" or protocol.selects_on_test else "test "
    curve = zip(run.validations["step"], run.validations[f"{raw}{group}{name}"], strict=True)
    late = [value for step, value in curve if 3 * step > 2 * run.steps]
    return sum(late) / len(late)


if __name__ == "__main__":
    for each in [Path(arg).resolve() for arg in sys.argv[1:]] or tables():
        print(f"{each.name}: {'rendered' if render(each) else 'unchanged'}")
