"""Summary: verdicts counted by result and source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.studies.recorded import RESULTS, read_recorded
from winnow.errors import DataError
from winnow.studies import STUDIES, StudyRequest
from winnow.studies.runner import run_study
from winnow.studies.summary import NEW, PUBLISHED, SUMMARY, count_verdicts

THESIS = "[Thesis], Fig. 1"


def record(
    file: Path, verdicts: dict[str, list[str]], *, small: bool, rows: list[dict[str, Any]] | None = None
) -> None:
    file.parent.mkdir(exist_ok=True)
    claims = [{"source": source, "verdict": one} for source, found in verdicts.items() for one in found]
    file.write_text(json.dumps({"claims": claims, "rows": rows or [], "settings": {"small": small}}))


def test_verdicts_are_counted_by_result_and_source(tmp_path: Path) -> None:
    record(tmp_path / "m_eps.json", {THESIS: ["Reproduced", "Incomplete"], "new": ["Incomplete"]}, small=False)
    record(tmp_path / "small" / "m_eps.json", {THESIS: ["Not reproduced", "Reproduced"]}, small=True)
    gain = {"source": THESIS, "verdict": "Within seed noise"}
    record(tmp_path / "gains.json", {}, small=False, rows=[gain, {"source": THESIS}])
    record(tmp_path / "unknown.json", {THESIS: ["Reproduced"]}, small=False)
    rows = count_verdicts(tmp_path, ["gains", "m-eps"])
    columns = ("Reproduced", "Within seed noise", "Not reproduced", "Incomplete", "claims")
    found = {(row["result"], row["source"] or row["size"]): [row[column] for column in columns] for row in rows}
    assert found == {
        (PUBLISHED, ""): [2, 1, 1, 1, 5],
        (PUBLISHED, "published size"): [1, 1, 0, 1, 3],
        (PUBLISHED, "quick size"): [1, 0, 1, 0, 2],
        (NEW, ""): [0, 0, 0, 1, 1],
        ("gains", THESIS): [0, 1, 0, 0, 1],
        ("m_eps", THESIS): [1, 0, 0, 1, 2],
        ("m_eps", "new"): [0, 0, 0, 1, 1],
        ("small/m_eps", THESIS): [1, 0, 1, 0, 2],
    }
    assert [row["size"] for row in rows[5:]] == ["published size", "published size", "quick size"]


def test_the_study_reads_a_folder_and_draws_a_bar_for_each_row(tmp_path: Path) -> None:
    record(tmp_path / "mu.json", {THESIS: ["Reproduced"]}, small=False)
    report = run_study(SUMMARY, StudyRequest(SUMMARY.scales["quick"], data=tmp_path))
    assert [row["result"] for row in report.rows] == [PUBLISHED, PUBLISHED, "mu"]
    names = [label.get_text() for axes in report.figures[""].axes for label in axes.get_yticklabels()]
    assert names == [PUBLISHED, f"{PUBLISHED}, published size", f"mu: {THESIS}"]
    with pytest.raises(DataError, match="no results of studies found"):
        SUMMARY.measure(StudyRequest(SUMMARY.scales["quick"], data=tmp_path / "none"))


def test_the_recorded_summary_is_up_to_date() -> None:
    measured = SUMMARY.measure(StudyRequest(SUMMARY.scales["full"], data=RESULTS))
    assert [dict(row) for row in measured.rows] == read_recorded(SUMMARY)["rows"], (
        "run: winnow study summary --full -o results"
    )


def test_every_claim_of_a_recorded_result_is_counted_once() -> None:
    claims = 0
    for name in STUDIES:
        for folder in ("", "short", "frozen", "small"):
            file = RESULTS / folder / f"{name.replace('-', '_')}.json"
            if name != SUMMARY.name and file.is_file():
                content = json.loads(file.read_text(encoding="utf-8"))
                claims += len(content.get("claims", ())) + sum("verdict" in row for row in content["rows"])
    rows = read_recorded(SUMMARY)["rows"]
    assert sum(row["claims"] for row in rows if not row["size"]) == claims
    assert sum(row["claims"] for row in rows if row["source"]) == claims
