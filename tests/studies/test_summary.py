"""The summary: the documents' numbers paired with and without, ours likewise, and claims checked."""

import json
from pathlib import Path
from typing import Any

import pytest

from winnow.errors import DataError
from winnow.studies import STUDIES, Task, summary, summary_claims
from winnow.studies.summary_ours import from_studies
from winnow.studies.summary_tables import from_tables
from winnow.training import load_config


def test_rows_are_the_tables_own():
    rows = summary.documents()
    assert len([row for row in rows if row["added"] == "CCP"]) == 4 * 4 * 2  # C1, C2, MS, triplet; sets; sizes
    assert len([row for row in rows if row["added"] == "GSP"]) == 7 * 4 * 2
    row = next(r for r in rows if (r["method"], r["set"], r["dim"], r["added"]) == ("c2", "SOP", 512, "CCP"))
    assert (row["MAP@R without"], row["MAP@R with"], row["points"]) == (46.94, 52.19, 5.25)
    assert row["relative, %"] == 11.2


def test_the_claims_are_quoted_and_checked_against_their_tables():
    lines = summary_claims.claims()
    outcomes = [line.rpartition("; ")[2] for line in lines]
    assert outcomes == ["agrees.", "does not agree.", "does not agree.", "agrees.", "agrees.", "does not agree."]
    assert "'at least 1% and up to 11% points' (chapter 6): +0.80 to +12.48; 1 of 32 are under 1;" in lines[1]
    assert "+0.13 to +3.15 with the same loss, +0.79 to +3.64 from the best to the best" in lines[2]
    assert "+0.78 in the mean, -0.04 to +2.14; under 0.1: PNCA on In-shop;" in lines[3]
    assert "up to +2.14 and +0.64" in lines[4]
    assert "+0.03 to +0.87; 4 of 8 are under 0.5" in lines[5]


def test_claims_follow_the_numbers():
    table = summary_claims.fair_table("3.1")
    lifted = {name: {place: value + 1 if name.endswith("+ccp") else value for place, value in row.items()}
              for name, row in table.items()}  # fmt: skip
    assert [line.rpartition("; ")[2] for line in summary_claims.of_ccp(lifted)] == [
        "agrees.", "does not agree.", "agrees."
    ]  # at least 1.8, but up to 13.5 points  # fmt: skip
    spoilt = {**table, "c1+ccp": table["c1"]}
    assert summary_claims.of_ccp(spoilt)[0].endswith("does not agree.")
    second = summary_claims.fair_table("5.1")
    worse = {**second, "ms+gsp-zsr": second["ms"]}
    assert (
        "under 0.1: MS on CUB; MS on Cars196; MS on In-shop; MS on SOP; PNCA on In-shop; does not agree."
        in (summary_claims.of_gsp(worse)[0])
    )


def run(name: str, seed: int, score: float, words: list[str], path: str = "data/cub200_2011") -> dict[str, Any]:
    config = load_config(None, [f"data={path}", *words, f"seed={seed}"]).model_dump()
    return {"method": name, "seed": seed, "config": config, "metrics": {"test": {"MAP@R": score / 100}}}


C2, GSP = ["loss=c2", "pooling=gap"], ["loss=c2", "pooling=gsp", "zsr=0.1"]
CCP = [*C2, "references=ccp", "references.preset=cub", "train.eval_steps=25", "train.patience=60"]


def keep(path: Path, runs: list[dict[str, Any]], seeds: int) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"settings": {"seeds": list(range(seeds))}, "runs": runs}))


def test_ours_count_by_the_settings_of_their_runs(tmp_path):
    runs = [run("plain", seed, 18.0 + seed, C2) for seed in (0, 1)]
    runs += [run("mu 0.3", seed, 21.0 - seed, GSP) for seed in (0, 1)]
    runs += [run("CCP, 8 of 12", 0, 18.5, CCP), run("CCP, 4 of 12", 0, 30.0, [*CCP, "references.proxies_per_class=4"])]
    runs += [run("alone", 0, 30.0, ["loss=c2", "pooling=gsp"]), run("mu 0.2", 0, 30.0, [*GSP, "pooling.mu=0.2"])]
    runs += [run("other loss", 0, 10.0, ["loss=ms", "pooling=gap"])]
    keep(tmp_path / "mu.json", runs, 2)
    keep(tmp_path / "frozen" / "again.json", [run("GAP", 0, 18.0, C2), run("+ CCP", 0, 18.5, CCP)], 1)
    keep(tmp_path / "photos.json", [run("GAP", 0, 18.0, C2, "data/photos"), run("GSP", 0, 20.0, GSP, "data/photos")], 1)
    (tmp_path / "cub_other.json").write_text("[1]")
    (tmp_path / "demo.json").write_text(json.dumps({"runs": [{"method": "GAP", "MAP@R": 0.1}]}))
    rows = {row["added"]: row for row in from_studies(tmp_path)}
    assert len(rows) == len(from_studies(tmp_path)) == 2
    gsp, ccp = rows["GSP"], rows["CCP"]
    assert (gsp["source"], gsp["set"], gsp["method"], gsp["MAP@R without"]) == ("ours, mu", "CUB", "c2", 18.5)
    assert (gsp["points"], gsp["points in doubt"]) == (2.0, 0.71)  # 20.5 after 18.5
    # One seed of two in one study, which is all that another asks for; the second seed of the base has no match.
    assert (ccp["source"], ccp["MAP@R without"], ccp["points"]) == ("ours, mu, frozen/again", 18.0, 0.5)
    assert {"points in doubt", "part of its runs"}.isdisjoint(ccp)


def test_parts_are_in_the_table_as_such(tmp_path):
    keep(tmp_path / "mu.json", [run("GAP", 0, 18.0, C2), run("mu 0.3", 0, 17.0, GSP)], 3)
    findings = STUDIES["summary"](Task(small=True, data=tmp_path))
    (row,) = (row for row in findings.rows if row["source"].startswith("ours"))
    assert (row["points"], row["part of its runs"]) == (-1.0, "1 of 3")
    assert "- CCP: no comparison is at hand; cannot be told." in findings.text
    assert "- GSP: better in 0 of 1. Of the 0 that were made more than once" in findings.text
    assert len(findings.figure.subfigs) == 2
    with pytest.raises(DataError, match="no such folder"):
        STUDIES["summary"](Task(small=True, data=tmp_path / "none"))
    (tmp_path / "none").mkdir()
    empty = STUDIES["summary"](Task(small=True, data=tmp_path / "none"))
    assert empty.text.endswith("--data names the folder they are in.")
    assert max(len(line.split()) for line in findings.text.split("\n")) < 120


def cell(size: int, metric: str, mean: float) -> dict[str, Any]:
    return {"size": size, "metric": metric, "value": mean + 3, "spread": {"mean": mean, "std": 0.1}, "document": None}


def method(name: str, finished: int, planned: int, *cells: dict[str, Any]) -> dict[str, Any]:
    return {"method": name, "finished": finished, "planned": planned, "steps": 10, "cells": cells}


def write(path: Path, judged: str, on: str, *methods: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    pairs = [
        {"method": "c2+ccp", "against": "c2", "size": size, "metric": metric, "models": 5,
         "difference": {"mean": mean, "low": mean - 1, "high": mean + 1}}
        for size, metric, mean in ((128, "MAP@R", 1.0), (512, "MAP@R", -0.27), (512, "P@1", 2.0))
    ]  # fmt: skip
    path.write_text(json.dumps({"protocol": {"judged": judged}, "set": on, "rows": methods, "pairs": pairs}))


def test_tables_of_protocols_count_once_all_runs_are_finished(tmp_path):
    folder = tmp_path / "protocols"
    alone = method("c2", 12, 12, cell(128, "MAP@R", 19.0), cell(512, "MAP@R", 24.0), cell(512, "P@1", 60.0))
    with_gsp = method("c2+gsp", 12, 12, cell(128, "MAP@R", 18.0), cell(512, "MAP@R", 25.2), cell(512, "P@1", 50.0))
    part = method("c2+ccp", 5, 12, cell(128, "MAP@R", 18.0), cell(512, "MAP@R", 23.0))
    none = [
        method("c2+zsr", 12, 12, cell(512, "MAP@R", 30.0)),
        method("c2+gsp-alone", 12, 12),
        method("ms+ccp", 12, 12),
    ]
    write(folder / "fair-cub200.json", "test", "cub200", alone, with_gsp, part, *none)
    best = [method("c1+ccp", 2, 3, cell(512, "MAP@R", 20.0)), method("c1+ccp+gsp", 3, 3, cell(512, "MAP@R", 30.0))]
    write(folder / "conventional-cars196.json", "test", "cars196", *best)
    write(folder / "tuning-cub200.json", "val", "cub200", alone, with_gsp)
    write(folder / "fair-photos.json", "test", "photos", alone, with_gsp)
    (folder / "killed.json").write_text(json.dumps({"protocol": "winnow protocol fair", "rows": []}))
    row, part = from_tables(folder)
    assert (row["source"], row["set"], row["dim"]) == ("ours, fair-cub200", "CUB", 512)
    assert (row["method"], row["added"], row["points"], row["relative, %"]) == ("c2", "GSP", 1.2, 5.0)
    # Of the five models that both have: the mean of all of c2 would be of others too.
    assert (part["added"], part["part of its runs"], part["points"], part["MAP@R with"]) == (
        "CCP",
        "5 of 12",
        -0.27,
        23.0,
    )
    assert part["MAP@R without"] == 23.27
    text = STUDIES["summary"](Task(small=True, data=tmp_path)).text
    assert "- GSP: better in 1 of 1. Of the 0 that were made more than once, by more than chance: 0 better" in text
    assert "- CCP: better in 0 of 1." in text


def test_what_is_mostly_worse_does_not_agree() -> None:
    def lines(*points: float) -> list[str]:
        return summary.told([{"added": "CCP", "points": one, "points in doubt": 0.1} for one in points]).split("\n")

    assert lines(1, -1, -1)[2].endswith("1 better, 2 worse; does not agree.")
    assert lines(1, 1, -1)[2].endswith("2 better, 1 worse; agrees in 2 of 3 alone.")
    assert lines(1, 1)[2].endswith("agrees.")
    assert lines(0.05, -0.05)[2].endswith("cannot be told.")


def test_one_comparison_does_not_speak_for_all() -> None:
    def row(points: float, doubt: float) -> dict[str, Any]:
        return {"source": "ours, x", "method": "c2", "added": "GSP", "points": points, "relative, %": points,
                "points in doubt": doubt}  # fmt: skip

    def outcome(*rows: dict[str, Any]) -> str:
        return summary.told(rows).rpartition("worse; ")[2]

    assert outcome(row(2.0, 0.5), row(1.0, 0.5)) == "agrees."
    assert outcome(row(2.0, 0.5), row(0.1, 0.5)) == "agrees in 1 of 2 alone."
    assert outcome(row(-2.0, 0.5), row(0.1, 0.5)) == "does not agree."
    assert outcome(row(0.2, 0.5)) == "cannot be told."


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
        (row,) = from_tables(tmp_path)
        assert ("part of its runs" not in row) == counted
        if counted:
            assert row["source"] == "ours, fair, 8 of 12 runs"
            assert row["points in doubt"] == 0.5
