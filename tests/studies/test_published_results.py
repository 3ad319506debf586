"""Result files of studies: what is published is what the code renders from the recorded runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scripts.render_results import RESULTS, read, renderable, rendered

from winnow.report.tables import to_csv
from winnow.studies import StudyReport
from winnow.studies.render import to_page

FILES = renderable()


def test_every_result_of_a_study_can_be_rendered() -> None:
    found = {file.relative_to(RESULTS).as_posix() for file in FILES}
    assert {"mu.json", "frozen/mu.json", "small/mu.json", "ccp_alternate.json"} <= found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(RESULTS).as_posix())
def test_a_result_file_is_what_its_runs_give(file: Path) -> None:
    report, published = rendered(file), read(file)
    made = json.loads(report.to_json())
    assert made["rows"] == published["rows"]
    assert made.get("claims", []) == published.get("claims", [])
    assert made.get("todo", "") == published.get("todo", "")
    assert to_page(report) == file.with_suffix(".md").read_text(encoding="utf-8")
    assert to_csv(report.rows) == file.with_suffix(".csv").read_text(encoding="utf-8")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(RESULTS).as_posix())
def test_a_result_file_says_where_its_numbers_come_from(file: Path) -> None:
    report = StudyReport.from_dict(read(file))
    assert report.command.startswith("winnow study ")
    assert report.commit
    assert report.machine.cores
    for run in report.runs:
        assert run["config"]
        assert "command" in run
        assert "machine" in run
