"""The files of a protocol's table: Markdown, CSV, LaTeX and JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from winnow.files import write_text
from winnow.protocols.flat import comma_separated, comma_separated_pairs
from winnow.protocols.latex import latex
from winnow.protocols.markdown import markdown
from winnow.protocols.runs import Task
from winnow.protocols.table import Table
from winnow.protocols.told import about, title
from winnow.training.results import collect_provenance

__all__ = ["comma_separated", "comma_separated_pairs", "content", "latex", "markdown", "write_table"]


def write_table(task: Task, table: Table) -> list[Path]:
    """Write `table.md`, `.csv`, `.tex`, `.json` and `pairs.csv` into the task's folder; return their paths.

    Raises:
        OutputError: when one cannot be written.
    """
    texts = {
        "table.md": markdown(task, table), "table.csv": comma_separated(task, table),
        "pairs.csv": comma_separated_pairs(table), "table.tex": latex(task, table),
        "table.json": json.dumps(content(task, table), indent=2) + "\n",
    }  # fmt: skip
    for name, text in texts.items():
        write_text(task.folder / name, text)
    return [task.folder / name for name in texts]


def content(task: Task, table: Table) -> dict[str, Any]:
    """Return everything, with where it comes from."""
    return {
        "title": title(task),
        **collect_provenance().to_dict(),
        "protocol": asdict(task.protocol),
        "set": task.target.name,
        "backbone": task.network,
        "settings": list(task.words),
        "about": about(task, table),
        "rows": [asdict(row) for row in table.rows],
        "pairs": [asdict(pair) for pair in table.pairs],
        "missing": list(table.missing),
        "left_out": dict(table.faults),
        "runs": [dict(record) for record in table.records],
    }
