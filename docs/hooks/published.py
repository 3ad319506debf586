"""Published results in `results/`: reports of studies, tables of protocols, and selected rows."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charts import Mark, chart, difference_text, differences
from markup import escaped

from winnow.studies import StudyReport

RESULTS = Path(__file__).resolve().parents[2] / "results"
KINDS = {
    "full": "Published size", "short": "Published size, shorter training",
    "frozen": "Published size, frozen backbone", "small": "Quick size",
}  # fmt: skip
"""Kinds of results and their headings, the largest first; three have a folder of the same name."""


@dataclass(frozen=True)
class Published:
    """One result file of a study."""

    kind: str  # one of `KINDS`
    path: Path
    report: StudyReport

    @property
    def is_complete(self) -> bool:
        """Whether no run is missing."""
        return not (self.report.missing or any(row.get("missing") for row in self.report.rows))

    def pictures(self) -> list[Path]:
        """Return the main figure, if there is one, and its further pictures."""
        main = self.path.with_suffix(".svg")
        further = sorted(self.path.parent.glob(f"{self.path.stem}_*.png"))
        # A picture with a result file of the same name belongs to another study.
        return [
            *([main] if main.is_file() else []),
            *(one for one in further if not one.with_suffix(".json").is_file()),
        ]

    def origin(self) -> str:
        """Return command, commit, machine of the report and of its runs, and the file, in one paragraph."""
        made = _machine(self.report.machine.to_dict())
        trained = dict.fromkeys(_machine(run["machine"]) for run in self.report.runs if "machine" in run)
        where = f", runs on {' and '.join(trained)}" if list(trained) not in ([], [made]) else ""
        commit = self.report.commit
        at = f" at commit `{commit[:10]}{'-dirty' if commit.endswith('-dirty') else ''}`" if commit else ""
        file = self.path.relative_to(RESULTS.parent).as_posix()
        return f"`{self.report.command}`{at} on {made}{where}. Numbers, settings, and versions: `{file}`."


def published(name: str) -> list[Published]:
    """Return the results of a study, the largest size first."""
    stem = name.replace("-", "_")
    files = [RESULTS / folder / f"{stem}.json" for folder in (".", "short", "frozen", "small")]
    found = [read(file) for file in files if file.is_file()]
    return sorted(found, key=lambda one: list(KINDS).index(one.kind))


def read(path: Path) -> Published:
    """Read a result file."""
    report = StudyReport.from_dict(json.loads(path.read_text(encoding="utf-8")))
    folder = path.parent.name
    kind = "small" if report.settings.get("small") else folder if folder in KINDS else "full"
    return Published(kind, path, report)


def protocols() -> str:
    """Return each protocol: a chart of its paired differences, its file, and its folded tables."""
    lines: list[str] = []
    for path in sorted((RESULTS / "protocols").glob("*.md")):
        title, _, body = path.read_text(encoding="utf-8").strip().removeprefix("# ").partition("\n")
        # Tables of one protocol on other copies or with other settings share a title, but not a file.
        lines += [f"### {title} ({path.stem})", ""]
        content = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        if marks := differences(content["pairs"]):
            lines += [chart(marks, label=f"Paired differences, {title}", unit="points of MAP@R"), ""]
            lines += [
                f"**{_finding(marks)}** Dots: paired difference; lines: 95% intervals; n: models.\n{{ .caption }}",
                "",
            ]
        runs = f"Every run with its settings, commit, and machine: `results/protocols/{path.stem}.json`."
        folded = re.sub("^#+ (.*)$", r"**\1**", f"{runs}\n\n{body.strip()}", flags=re.MULTILINE)
        lines += ['??? abstract "Tables and notes"', "", *(f"    {line}".rstrip() for line in folded.splitlines()), ""]
    return "\n".join(lines)


def _finding(marks: Sequence[Mark]) -> str:
    """Return how many differences are clear of 0."""
    known = [mark for mark in marks if mark.low is not None]
    if not known:
        return "No difference has an interval: that needs two runs of every fold."
    clear = sum(mark.ends[0] > 0 or mark.ends[1] < 0 for mark in known)
    return f"Intervals that exclude 0: {clear} of {len(known)}."


def leaderboard() -> str:
    """Return charts of the published differences from GAP: photographs, then poolings on emoji collages."""
    with open(RESULTS / "leaderboard.csv", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["table"] in ("main", "others")]
    rows = [row for row in rows if row["baseline"] == "GAP" and not row["dataset"].startswith("Emoji")]
    marks = []
    for row in rows:
        value, low, high = (float(row[key]) if row[key] else None for key in ("difference", "low", "high"))
        assert value is not None
        text = f"{difference_text(value, low, high)}, n\u00a0=\u00a0{row['n']}"
        role = "gsp-zsr" if row["method"] == "GSP+ZSR" else "gap"
        marks.append(Mark(f"{row['method']}, {row['dataset']}, {row['backbone']}", value, low, high, text, role))
    return chart(marks, label="Differences from GAP on photographs", unit="points of MAP@R")


def poolings() -> str:
    """Return a chart of the poolings on emoji collages, the highest first."""
    with open(RESULTS / "leaderboard.csv", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["table"] == "poolings"]
    marks = [
        Mark(row["method"], *(numbers := [float(row[key]) for key in ("difference", "low", "high")]),
             difference_text(*numbers), {"GSP": "gsp", "GSP+ZSR": "gsp-zsr"}.get(row["method"], "gap"))
        for row in sorted(rows, key=lambda row: -float(row["difference"]))
    ]  # fmt: skip
    return chart(marks, label="Differences from GAP on emoji collages", unit="points of MAP@R")


def selected(name: str, column: str, value: str) -> str:
    """Return the rows of a result with a value in a column, without that column and without empty ones."""
    with open(RESULTS / f"{name}.csv", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row[column] == value]
    columns = [key for key in rows[0] if key != column and any(row[key] for row in rows)]
    numbers = [all(re.fullmatch(r"-?[\d.]*", row[key]) for row in rows) for key in columns]
    lines = ["| " + " | ".join(columns) + " |", "|" + "".join("--:|" if one else "---|" for one in numbers)]
    lines += ["| " + " | ".join(escaped(row[key]) for key in columns) + " |" for row in rows]
    return "\n".join(lines)


def _machine(found: Mapping[str, Any]) -> str:
    return str(found.get("gpu") or f"{found.get('processor')}, {found.get('cores')} cores")
