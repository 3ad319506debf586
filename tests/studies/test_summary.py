"""The summary: the documents' numbers paired with and without, ours likewise, and claims checked."""

import json

from winnow.studies import STUDIES, Task, summary


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
        {"method": "C2", "MAP@R": 20.0},
        {"method": "C2 + CCP", "MAP@R": 21.0},
        {"method": "MS + CCP", "MAP@R": None},
    ]
    (tmp_path / "cub_losses.json").write_text(json.dumps({"rows": rows}))
    scores = {"GAP": (0.18, 0.2), "GSP + ZSR": (0.2, 0.2), "GSP, background": (0.1, 0.1)}
    runs = [{"method": name, "metrics": {"test": {"MAP@R": one}}} for name, both in scores.items() for one in both]
    (tmp_path / "cub_fold.json").write_text(json.dumps({"runs": runs}))
    (tmp_path / "demo.json").write_text(json.dumps({"runs": runs}))
    (tmp_path / "cub_other.json").write_text("[1]")
    found = {(row["source"], row["method"], row["added"]): row["points"] for row in summary.ours(tmp_path)}
    assert found == {("ours, cub_losses", "C2", "CCP"): 1.0, ("ours, cub_fold", "GAP", "GSP + ZSR"): 1.0}
    findings = STUDIES["summary"](Task(small=True, data=tmp_path))
    assert "Of our 2 comparisons at hand 2 go the same way" in findings.text
    assert len(findings.figure.subfigs) == 2
    empty = STUDIES["summary"](Task(small=True, data=tmp_path / "none"))
    assert "None of our results" in empty.text
