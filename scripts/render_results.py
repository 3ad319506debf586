"""Render published results of studies again from their JSON files: equal numbers, tables and claims as of today.

`python scripts/render_results.py [results/mu.json ...]`; without files all that can be rendered. Nothing is measured:
command, commit, machine, settings, and runs stay as recorded. `tests/studies/test_published_results.py` fails for a
result that this would change.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from winnow.studies import STUDIES, Study, StudyReport, StudyRequest
from winnow.studies.render import read_content, write_report
from winnow.studies.runner import make_report
from winnow.training.overrides import Overrides
from winnow.training.results import Provenance

RESULTS = Path(__file__).resolve().parents[1] / "results"
FOLDERS = ("", "frozen", "short", "small")
ORIGIN = ("command", "commit", "winnow", "machine", "versions")
COMPUTED = ("claims", "rows", "missing", "todo", "title", "setting")
"""Keys that rendering writes again."""


def renderable() -> list[Path]:
    """Return the result files of studies."""
    files = sorted(file for folder in FOLDERS for file in (RESULTS / folder).glob("*.json"))
    return [file for file in files if file.stem.replace("_", "-") in STUDIES]


def study_of(file: Path) -> Study:
    """Return the study of a result file."""
    return STUDIES[file.stem.replace("_", "-")]


def read(file: Path) -> dict[str, Any]:
    """Return the content of a result file."""
    return read_content(file)


def rendered(file: Path) -> StudyReport:
    """Return the report of a result file."""
    study, kept = study_of(file), read(file)
    scale = study.scales["quick" if kept["settings"]["small"] else "full"]
    measured = study.restore(kept)
    request = StudyRequest(scale, overrides=Overrides.parse(*kept["settings"].get("asked", ())))
    origin = Provenance.from_dict({key: kept[key] for key in ORIGIN if key in kept})
    report = make_report(study, request, measured, origin, note=kept.get("note", ""))
    made = report.to_dict()
    stays = {key: value for key, value in kept.items() if key not in COMPUTED}
    return StudyReport.from_dict({**made, **stays, "name": made["name"], "figures": report.figures})


def render(file: Path) -> bool:
    """Write a result file and its table and figures again; return whether the JSON file changed."""
    report, kept = rendered(file), file.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as place:
        for path in write_report(report, Path(place)):
            if path.suffix in (".md", ".csv", ".svg", ".json"):
                shutil.copyfile(path, file.parent / path.name)
    return file.read_text(encoding="utf-8") != kept


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "agg")
    for each in [Path(arg).resolve() for arg in sys.argv[1:]] or renderable():
        print(f"{each.relative_to(RESULTS)}: {'rendered' if render(each) else 'unchanged'}")
