"""The table of a protocol as comma-separated numbers: everything that can be computed with."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Sequence
from typing import Any

from winnow.protocols.kinds import BACKBONES
from winnow.protocols.notes import missing_images
from winnow.protocols.runs import Task
from winnow.protocols.table import Cell, Table

DOCUMENTS = " documents"


def comma_separated(task: Task, table: Table) -> str:
    """Return a row for each method, with a number in each column; what the documents never report has none."""
    rows: list[dict[str, Any]] = []
    for one in table.rows:
        flat: dict[str, Any] = {
            "method": one.method, "finished": one.finished, "planned": one.planned, "steps": one.steps,
        }  # fmt: skip
        for cell in one.cells:
            flat |= _numbers(cell)
        rows.append(flat)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    kept = [name for name in columns if DOCUMENTS not in name or any(row.get(name) not in (None, "") for row in rows)]
    for row in rows:
        data = (record["data"] for record in table.records if record["method"] == row["method"])
        row |= {"missing images": "; ".join(missing_images(data)), "settings": shlex.join(task.words)}
    return _text([*kept, "missing images", "settings"], rows)


def comma_separated_pairs(table: Table) -> str:
    """Return a row for each method, size and metric that was compared, in points."""
    columns = ["method", "against", "runs of each", "size", "metric", "difference", "std", "low", "high"]
    rows = []
    for p in table.pairs:
        ends = (p.difference.mean, p.difference.std, p.difference.low, p.difference.high)
        rows.append([p.method, p.against, p.models, p.size, p.metric, *map(_rounded, ends)])
    return _text(columns, [dict(zip(columns, row, strict=True)) for row in rows])


def _numbers(cell: Cell) -> dict[str, Any]:
    """Return the columns of a number."""
    over, theirs = cell.spread, cell.document
    found: dict[str, Any] = {
        "": cell.value, " mean": over.mean, " std": over.std, " low": over.low, " high": over.high,
    }  # fmt: skip
    if theirs is not None:
        found |= {
            DOCUMENTS: theirs.value, f"{DOCUMENTS} std": theirs.std, f"{DOCUMENTS} table": theirs.table,
            f"{DOCUMENTS} network": BACKBONES[theirs.backbone].title, f"{DOCUMENTS} doubt": theirs.doubt,
        }  # fmt: skip
    return {f"{cell.size}-D {cell.metric}{end}": _rounded(number) for end, number in found.items()}


def _rounded(number: Any) -> Any:
    return round(number, 4) if isinstance(number, float) else number


def _text(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
