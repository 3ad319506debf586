"""The summary: the documents' numbers paired with and without, ours likewise, and claims checked."""

import json
from pathlib import Path
from typing import Any

import pytest

from winnow.errors import DataError
from winnow.studies import STUDIES, Task, summary
from winnow.studies.summary_ours import from_studies, from_tables


def test_rows_are_the_tables_own():
    rows = summary.documents()
    assert len([row for row in rows if row["added"] == "CCP"]) == 4 * 4 * 2  # C1, C2, MS, triplet; sets; sizes
    assert len([row for row in rows if row["added"] == "GSP"]) == 7 * 4 * 2
    row = next(r for r in rows if (r["method"], r["set"], r["dim"], r["added"]) == ("c2", "SOP", 512, "CCP"))
    assert (row["MAP@R without"], row["MAP@R with"], row["points"]) == (46.94, 52.19, 5.25)
    assert row["relative, %"] == 11.2


def test_the_documents_claims_are_checked():
    rows = summary.documents()
    assert "bears out" in summary.claim(rows, "CCP")
    assert "below 0.1 points for PNCA on In-shop: the table bears out" in summary.claim(rows, "GSP")
    spoilt = [{**row, "points": -1.0} if row["method"] == "c1" else row for row in rows]
    assert "does not quite bear out" in summary.claim(spoilt, "CCP")
    assert "C1 on CUB" in summary.claim(spoilt, "CCP")


def test_ours_are_read_from_rows_or_runs(tmp_path):
    rows = [
        {"method": "C2", "MAP@R": 20.0, "MAP@R sd": 0.2},
        {"method": "C2 + CCP", "MAP@R": 21.0, "MAP@R sd": 0.4},
        {"method": "MS + CCP", "MAP@R": None},
    ]
    (tmp_path / "cub_losses.json").write_text(json.dumps({"rows": rows}))
    scores = {"GAP": (0.18, 0.2), "GSP + ZSR": (0.2, 0.2), "GSP, background": (0.1, 0.1)}
    runs = [{"method": name, "metrics": {"test": {"MAP@R": one}}} for name, both in scores.items() for one in both]
    (tmp_path / "cub_fold.json").write_text(json.dumps({"runs": runs}))
    (tmp_path / "demo.json").write_text(json.dumps({"runs": runs}))
    (tmp_path / "cub_other.json").write_text("[1]")
    ours, unfinished = from_studies(tmp_path)
    found = {(row["source"], row["method"], row["added"]): (row["points"], row["points in doubt"]) for row in ours}
    assert found == {("ours, cub_losses", "C2", "CCP"): (1.0, 0.4), ("ours, cub_fold", "GAP", "GSP + ZSR"): (1.0, 1.41)}
    assert unfinished == []
    findings = STUDIES["summary"](Task(small=True, data=tmp_path))
    assert "Of our 1 comparisons with CCP 1 go the documents' way." in findings.text
    assert "1 go that way and 0 the other, of 1 whose chance is known: that CCP improves" in findings.text
    assert "what it is added to agrees. Of our 1 comparisons with GSP 1 go" in findings.text
    assert findings.text.endswith("that GSP improves what it is added to cannot be told yet.")
    assert len(findings.figure.subfigs) == 2
    with pytest.raises(DataError, match="no such folder"):
        STUDIES["summary"](Task(small=True, data=tmp_path / "none"))
    (tmp_path / "none").mkdir()
    empty = STUDIES["summary"](Task(small=True, data=tmp_path / "none"))
    assert "None of our results" in empty.text


def test_studies_count_once_all_their_runs_are_finished(tmp_path):
    rows = [
        {"method": "GAP", "MAP@R": 18.0, "missing": ""},
        {"method": "GSP", "MAP@R": 19.0, "missing": "seeds 1, 2"},
        {"method": "GSP + ZSR", "MAP@R": 17.0, "missing": ""},
    ]
    (tmp_path / "cub_poolings.json").write_text(json.dumps({"rows": rows}))
    ours, unfinished = from_studies(tmp_path)
    # Both kinds of GSP stand beside average pooling; one run each says nothing of chance.
    assert [(row["method"], row["added"], row["points"]) for row in ours] == [("GAP", "GSP + ZSR", -1.0)]
    assert "points in doubt" not in ours[0]
    assert unfinished == ["GSP seeds 1, 2 (cub_poolings)"]
    text = STUDIES["summary"](Task(small=True, data=tmp_path)).text
    assert "of 0 whose chance is known: that GSP improves what it is added to cannot be told yet." in text
    assert text.endswith("Left out until their runs are finished: GSP seeds 1, 2 (cub_poolings).")


def cell(size: int, metric: str, mean: float) -> dict[str, Any]:
    return {"size": size, "metric": metric, "value": mean + 3, "spread": {"mean": mean, "std": 0.1}, "document": None}


def method(name: str, finished: int, planned: int, *cells: dict[str, Any]) -> dict[str, Any]:
    return {"method": name, "finished": finished, "planned": planned, "steps": 10, "cells": cells}


def write(path: Path, judged: str, on: str, *methods: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    pairs = [
        {"method": "c2+gsp-alone", "against": "c2", "size": size, "metric": metric, "models": 5,
         "difference": {"mean": mean, "low": mean - 1, "high": mean + 1}}
        for size, metric, mean in ((128, "MAP@R", 1.0), (512, "MAP@R", -0.27), (512, "P@1", 2.0))
    ]  # fmt: skip
    path.write_text(json.dumps({"protocol": {"judged": judged}, "set": on, "rows": methods, "pairs": pairs}))


def test_tables_of_protocols_count_once_all_runs_are_finished(tmp_path):
    folder = tmp_path / "protocols"
    alone = method("c2", 12, 12, cell(128, "MAP@R", 19.0), cell(512, "MAP@R", 24.0), cell(512, "P@1", 60.0))
    with_gsp = method("c2+gsp", 12, 12, cell(128, "MAP@R", 18.0), cell(512, "MAP@R", 25.2), cell(512, "P@1", 50.0))
    part = method("c2+gsp-alone", 5, 12, cell(128, "MAP@R", 90.0), cell(512, "MAP@R", 90.0))
    none = [method("c2+zsr", 12, 12, cell(512, "MAP@R", 30.0)), method("c2+ccp", 0, 12), method("ms+ccp", 12, 12)]
    write(folder / "fair-cub200.json", "test", "cub200", alone, with_gsp, part, *none)
    best = [method("c1+ccp", 2, 3, cell(512, "MAP@R", 20.0)), method("c1+ccp+gsp", 3, 3, cell(512, "MAP@R", 30.0))]
    write(folder / "conventional-cars196.json", "test", "cars196", *best)
    write(folder / "tuning-cub200.json", "val", "cub200", alone, with_gsp)
    write(folder / "fair-photos.json", "test", "photos", alone, with_gsp)
    (folder / "killed.json").write_text(json.dumps({"protocol": "winnow protocol fair", "rows": []}))
    findings = STUDIES["summary"](Task(small=True, data=tmp_path))
    (row,) = (row for row in findings.rows if row["source"].startswith("ours"))
    assert (row["source"], row["set"], row["dim"]) == ("ours, fair-cub200", "CUB", 512)
    assert (row["method"], row["added"], row["points"], row["relative, %"]) == ("c2", "GSP", 1.2, 5.0)
    assert "Of our 1 comparisons with GSP 1 go the documents' way." in findings.text
    assert findings.text.endswith(
        "Left out until their runs are finished: c1+ccp 2 of 3 and c1+ccp+gsp 3 of 3 runs (conventional-cars196); "
        "c2 12 of 12 and c2+gsp-alone 5 of 12 runs, over 5 of each -0.27 points (fair-cub200)."
    )


def test_one_comparison_does_not_speak_for_all() -> None:
    def row(points: float, doubt: float) -> dict[str, Any]:
        return {"source": "ours, x", "method": "c2", "added": "GSP", "points": points, "relative, %": points,
                "points in doubt": doubt}  # fmt: skip

    def outcome(*rows: dict[str, Any]) -> str:
        return summary.told(rows)[-1].rpartition("what it is added to ")[2]

    assert outcome(row(2.0, 0.5), row(1.0, 0.5)) == "agrees."
    assert outcome(row(2.0, 0.5), row(0.1, 0.5)) == "agrees in 1 of 2 alone."
    assert outcome(row(-2.0, 0.5), row(0.1, 0.5)) == "does not agree."
    assert outcome(row(0.2, 0.5)) == "cannot be told yet."


def test_a_table_with_runs_missing_counts_once_it_has_an_interval(tmp_path: Path) -> None:
    def table(finished: int, low: float | None) -> dict[str, Any]:
        def cell(mean: float) -> list[dict[str, Any]]:
            return [{"size": 512, "metric": "MAP@R", "spread": {"mean": mean}}]

        pair = {"method": "c2+gsp", "against": "c2", "size": 512, "metric": "MAP@R", "models": finished,
                "difference": {"mean": 2.0, "low": low, "high": None if low is None else 2.5}}  # fmt: skip
        rows = [{"method": name, "finished": finished, "planned": 12, "cells": cell(mean)}
                for name, mean in (("c2", 18.0), ("c2+gsp", 20.0))]  # fmt: skip
        return {"protocol": {"judged": "test"}, "set": "cub200", "rows": rows, "pairs": [pair]}

    for finished, low, counted in ((8, 1.5, True), (4, None, False), (2, 1.5, False)):
        (tmp_path / "fair.json").write_text(json.dumps(table(finished, low)))
        rows, unfinished = from_tables(tmp_path)
        assert len(rows) == counted
        assert len(unfinished) == (not counted)
        if counted:
            assert rows[0]["source"] == "ours, fair, 8 of 12 runs"
            assert rows[0]["points in doubt"] == 0.5
