"""What is kept in `results/` says what the code says today: text and table are told again from the runs it holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scripts.retell_results import RESULTS, retell, retellable, retold


def relative(file: Path) -> str:
    return str(file.relative_to(RESULTS))


@pytest.mark.parametrize("file", retellable(), ids=relative)
def test_a_kept_study_is_told_as_it_would_be_today(file: Path) -> None:
    kept, told = json.loads(file.read_text(encoding="utf-8")), retold(file)
    assert told.text == kept["text"], "python scripts/retell_results.py tells it anew"
    assert json.loads(json.dumps([dict(row) for row in told.rows])) == kept["rows"]
    assert kept["text"] in file.with_suffix(".md").read_text(encoding="utf-8")


def test_results_are_among_those_that_are_told_again() -> None:
    assert {"mu.json", "frozen/mu.json", "small/mu.json", "ccp_alternate.json"} <= set(map(relative, retellable()))


def test_telling_anew_keeps_where_a_result_comes_from(tmp_path: Path) -> None:
    for end in ("json", "md", "csv", "svg"):
        (tmp_path / f"mu.{end}").write_bytes((RESULTS / f"mu.{end}").read_bytes())
    file = tmp_path / "mu.json"
    kept = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**kept, "text": "of before", "rows": []}), encoding="utf-8")
    assert retell(file)
    assert json.loads(file.read_text(encoding="utf-8")) == kept
    assert not retell(file)
