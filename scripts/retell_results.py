"""Tell kept studies again from the runs they hold: text, table and figure as the code would write them today.

`python scripts/retell_results.py [results/mu.json ...]`, all that can be told where none is named. Where a result comes
from (command, commit, machine) stays as it was: nothing is measured. `tests/studies/test_kept_results.py` fails for a
result that this would change.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

from winnow.studies import STUDIES, Findings, Task, write_findings
from winnow.studies.base import takes_settings

RESULTS = Path(__file__).resolve().parents[1] / "results"
FOLDERS = ("", "frozen", "short", "small")
ORIGIN = ("command", "commit", "winnow", "machine", "versions")

NEED_FOLDERS = {"average-pooling", "ccp-geometry", "collage", "learned", "reranking", "zero-shot"}
"""Studies that go by more than the results of their runs: models, or what networks were pretrained on."""

MADE_OTHERWISE = {"poolings.json"}
"""Results of settings that their study has no more, as their text says."""


def retellable() -> list[Path]:
    """Return the result files that tell their runs with their settings, of studies that go by these alone."""
    files = sorted(file for folder in FOLDERS for file in (RESULTS / folder).glob("*.json"))
    files = [file for file in files if str(file.relative_to(RESULTS)) not in MADE_OTHERWISE]
    return [file for file in files if _goes_by_runs(_study(file)) and _has_settings(_read(file))]


def retold(file: Path) -> Findings:
    """Return what a study finds in the runs of a result file, with the note that was given to it."""
    name, kept = _study(file), _read(file)
    small = kept["settings"]["small"]
    runs = Path("studies/runs") / f"{name}-{'small' if small else 'full'}"
    with tempfile.TemporaryDirectory() as place, chdir(place):  # runs tell of folders from where a command was given
        task = Task(small, runs=runs, only_finished=True, words=kept["settings"].get("asked", ()), recorded=[file])
        told = STUDIES[name](task)
    note = kept.get("note")
    return told if note is None else replace(told, text=f"{told.text}\n\n{note}")


def retell(file: Path) -> bool:
    """Write what a study says today over its kept result; return whether anything changed."""
    kept, told = _read(file), retold(file)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_findings(file.stem, told, folder)
        content = _read(folder / file.name) | {key: kept[key] for key in (*ORIGIN, "note") if key in kept}
        changed = content != kept
        for end in ("md", "csv", "svg"):
            shutil.copyfile(folder / f"{file.stem}.{end}", file.with_suffix(f".{end}"))
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return changed


def _study(file: Path) -> str:
    return file.stem.replace("_", "-")


def _read(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def _goes_by_runs(name: str) -> bool:
    return name in STUDIES and name not in NEED_FOLDERS and takes_settings(STUDIES[name])


def _has_settings(kept: dict[str, Any]) -> bool:
    return bool(kept.get("runs")) and all("config" in run for run in kept["runs"])


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "agg")
    for path in [Path(word).resolve() for word in sys.argv[1:]] or retellable():
        print(f"{path.name}: {'told anew' if retell(path) else 'as it was'}")
