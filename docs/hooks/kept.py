"""What was measured and kept in `results/` beside studies: tables of protocols."""

from __future__ import annotations

import csv
import re

from markup import escaped
from measured import RESULTS


def protocols() -> str:
    """The kept tables of protocols; what is still missing is listed in them, with its command."""
    lines: list[str] = []
    for path in sorted((RESULTS / "protocols").glob("*.md")):
        # Tables of one protocol on other copies or with other settings share a title, but not a file.
        titled = path.read_text(encoding="utf-8").strip().replace("\n", f" ({path.stem})\n", 1)
        lines += [re.sub("^#", "###", titled, flags=re.MULTILINE), ""]
        lines += [f"Every run with its settings, commit and machine: `results/protocols/{path.stem}.json`.", ""]
    return "\n".join(lines)


def selected(name: str, column: str, value: str) -> str:
    """The rows of a kept table that have a value in a column, without that column and those that are empty there."""
    with open(RESULTS / f"{name}.csv", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row[column] == value]
    columns = [key for key in rows[0] if key != column and any(row[key] for row in rows)]
    numbers = [all(re.fullmatch(r"-?[\d.]*", row[key]) for row in rows) for key in columns]
    lines = ["| " + " | ".join(columns) + " |", "|" + "".join("--:|" if one else "---|" for one in numbers)]
    lines += ["| " + " | ".join(escaped(row[key]) for key in columns) + " |" for row in rows]
    return "\n".join(lines)
