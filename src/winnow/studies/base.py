"""What every study is given and what it hands back."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnow.files import write_text
from winnow.report.style import save
from winnow.training.provenance import provenance
from winnow.training.shared import Shared

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """What a study is asked for.

    Attributes:
        small: Minutes on two CPU cores instead of the documents' sizes.
        data: Folder of the study's data; None for where it usually is.
        runs: Folder of its training runs, for a study that trains several: finished ones are kept there.
        only_finished: Train nothing more; make the table of what is there.
        note: Told how it goes.
        shared: What its runs have in common with those of other studies, such as features of the embedded set.
    """

    small: bool
    data: Path | None = None
    runs: Path = Path("studies/runs")
    only_finished: bool = False
    note: Callable[[str], None] = lambda text: None
    shared: Shared = field(default_factory=Shared)

    def command(self, name: str) -> str:
        """Return what runs a study in this size."""
        return f"winnow study {name} {'--small' if self.small else '--full'}"


@dataclass(frozen=True)
class Findings:
    """What a study found.

    Attributes:
        title: Of the table and the figure.
        text: A paragraph: what was done, and what came out.
        rows: The table.
        figure: The picture.
        settings: What was asked for.
        details: Further numbers, for the JSON file alone.
    """

    title: str
    text: str
    rows: Sequence[Row]
    figure: Figure
    settings: Mapping[str, Any]
    details: Mapping[str, Any] = field(default_factory=dict)


Study = Callable[[Task], Findings]
"""The first line of its docstring says what it is, one that begins with `Cost:` how long it takes."""


def cost(study: Study) -> str:
    """Return how long a study takes, as its docstring says; empty where it does not."""
    lines = [line.strip() for line in (study.__doc__ or "").splitlines()]
    return next((line.removeprefix("Cost: ") for line in lines if line.startswith("Cost: ")), "")


def write_findings(name: str, findings: Findings, folder: Path) -> list[Path]:
    """Write NAME.csv, .md, .svg, .png and .json into a folder; return their paths.

    Raises:
        OutputError: when one cannot be written.
    """
    paths = {end: folder / f"{name}.{end}" for end in ("csv", "md", "svg", "png", "json")}
    columns = list(dict.fromkeys(column for row in findings.rows for column in row))
    table = io.StringIO()
    writer = csv.DictWriter(table, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(findings.rows)
    write_text(paths["csv"], table.getvalue())
    write_text(paths["md"], f"# {findings.title}\n\n{findings.text}\n\n{markdown_rows(findings.rows, columns)}")
    save(findings.figure, paths["svg"])
    save(findings.figure, paths["png"])
    content = {"name": name, "title": findings.title, **provenance(), "settings": dict(findings.settings),
               "text": findings.text, "rows": [dict(row) for row in findings.rows], **findings.details}  # fmt: skip
    write_text(paths["json"], json.dumps(content, indent=2) + "\n")
    return list(paths.values())


def markdown_rows(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return rows as a Markdown table; numbers with four digits, what is missing as a dash."""

    def cell(value: Any) -> str:
        if value is None or value == "":
            return "–"
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        return text.replace("|", "\\|")

    lines = ["| " + " | ".join(map(cell, columns)) + " |", "|---" * len(columns) + "|"]
    lines += ["| " + " | ".join(cell(row.get(column)) for column in columns) + " |" for row in rows]
    return "\n".join(lines) + "\n"
