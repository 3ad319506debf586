"""Gains of CCP and GSP: published tables paired with and without, and recorded results paired by their settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.studies.recorded import RESULTS, read_recorded, recorded_claims
from winnow.errors import DataError
from winnow.protocols.spec import FAIR, TUNING
from winnow.report.claims import Verdict
from winnow.studies import Measurement, StudyRequest, gains
from winnow.studies.gains import GAINS
from winnow.studies.recorded_gains import protocol_rows, study_rows
from winnow.studies.runner import run_study
from winnow.studies.scores import check_claims
from winnow.training import load_config

YES, NO = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED


def test_published_rows_are_those_of_the_tables() -> None:
    rows = gains.published_rows()
    assert len([row for row in rows if row["added"] == "CCP"]) == 4 * 4  # C1, C2, MS, and triplet on four datasets
    assert len([row for row in rows if row["added"] == "GSP"]) == 7 * 4
    row = next(one for one in rows if (one["method"], one["dataset"], one["added"]) == ("c2", "SOP", "CCP"))
    assert (row["MAP@R without"], row["MAP@R with"], row["points"]) == (46.94, 52.19, 5.25)
    assert row["relative, %"] == 11.2
    assert row["source"] == "[Thesis], Table 3.1"


def test_claims_follow_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    published = gains.fair_table

    def verdicts() -> list[Verdict]:
        return [one.verdict for one in check_claims(GAINS.claims, Measurement(rows=()), GAINS.scales["full"])]

    def change(method: str, points: float) -> None:
        def fair_table(number: str) -> Mapping[str, Any]:
            table = published(number)
            return {name: {key: value + points * name.endswith(method) for key, value in values.items()}
                    for name, values in table.items()}  # fmt: skip

        monkeypatch.setattr(gains, "fair_table", fair_table)

    assert verdicts() == [YES, NO, NO, YES, YES, YES, YES, NO]
    change("+ccp", 1.0)  # at least 1.8, but up to 13.5 points
    assert verdicts()[:3] == [YES, NO, YES]
    change("+ccp", -1.0)
    assert verdicts()[:3] == [NO, NO, NO]
    change("ms+gsp-zsr", -5.0)
    assert verdicts()[3:5] == [NO, NO]
    change("c1+xbm+gsp-zsr", 1.0)
    assert verdicts()[5] == NO


def run(name: str, seed: int, score: float, args: list[str], path: str = "data/cub200_2011") -> dict[str, Any]:
    config = load_config(None, [f"data={path}", *args, f"seed={seed}"]).model_dump()
    return {"method": name, "seed": seed, "config": config, "metrics": {"test": {"MAP@R": score / 100}}}


C2, GSP = ["loss=c2", "pooling=gap"], ["loss=c2", "pooling=gsp", "zsr=0.1"]
CCP = [*C2, "references=ccp", "references.preset=cub", "train.eval_steps=25", "train.patience=60"]


def record(path: Path, runs: list[dict[str, Any]], seeds: int) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"settings": {"seeds": list(range(seeds))}, "runs": runs}))


def test_recorded_runs_are_compared_by_their_settings(tmp_path: Path) -> None:
    runs = [run("plain", seed, score, C2) for seed, score in enumerate((18.0, 19.0, 20.0))]
    runs += [run("mu 0.3", seed, score, GSP) for seed, score in enumerate((20.0, 21.0, 22.3))]
    runs += [run("CCP, 8 of 12", 0, 18.5, CCP), run("CCP, 4 of 12", 0, 30.0, [*CCP, "references.proxies_per_class=4"])]
    runs += [run("alone", 0, 30.0, ["loss=c2", "pooling=gsp"]), run("mu 0.2", 0, 30.0, [*GSP, "pooling.mu=0.2"])]
    runs += [run("other loss", 0, 10.0, ["loss=ms", "pooling=gap"])]
    record(tmp_path / "mu.json", runs, 3)
    record(tmp_path / "frozen" / "again.json", [run("GAP", 0, 18.0, C2), run("+ CCP", 0, 18.5, CCP)], 1)
    photos = [run("GAP", 0, 18.0, C2, "data/photos"), run("GSP", 0, 20.0, GSP, "data/photos")]
    record(tmp_path / "photos.json", photos, 1)
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "demo.json").write_text(json.dumps({"runs": [{"method": "GAP", "MAP@R": 0.1}]}))
    gsp, ccp = sorted(study_rows(tmp_path), key=lambda row: -row["n"])
    assert (gsp["numbers"], gsp["dataset"], gsp["method"], gsp["added"]) == ("mu", "CUB", "c2", "GSP")
    assert (gsp["MAP@R without"], gsp["points"], gsp["n"], gsp["verdict"]) == (19.0, 2.1, 3, "Reproduced")
    assert gsp["low"] == pytest.approx(2.1 - 4.303 * 0.1732 / 3**0.5, abs=0.01)  # Student's t with 2 degrees of freedom
    # One study planned three seeds, the other a single one; two seeds of the base have no match.
    assert (ccp["numbers"], ccp["MAP@R without"], ccp["points"]) == ("mu, frozen/again", 18.0, 0.5)
    assert (ccp["runs"], ccp["verdict"]) == ("", "Incomplete")


PROVENANCE = {"command": "winnow protocol", "commit": None, "winnow": "0.1.0", "machine": {}, "versions": {}}


def table_row(name: str, finished: int, planned: int, *cells: tuple[int, float]) -> dict[str, Any]:
    made = [{"size": dim, "metric": "MAP@R", "value": mean + 3, "spread": {"mean": mean}} for dim, mean in cells]
    return {"method": name, "finished": finished, "planned": planned, "steps": 10, "cells": made}


def pair(method: str, dim: int, mean: float, models: int, half: float | None = 1.0) -> dict[str, Any]:
    bounds = {} if half is None else {"low": mean - half, "high": mean + half}
    return {"method": method, "against": "c2", "size": dim, "metric": "MAP@R", "models": models,
            "difference": {"mean": mean, **bounds}}  # fmt: skip


def write_table(
    file: Path, rows: Sequence[dict[str, Any]], pairs: Sequence[dict[str, Any]], *, protocol: Any = FAIR,
    dataset: str = "cub200",
) -> None:  # fmt: skip
    file.parent.mkdir(exist_ok=True)
    content = {**PROVENANCE, "title": "", "protocol": json.loads(protocol.to_json()), "set": dataset, "rows": rows,
               "backbone": "resnet50", "pairs": pairs, "runs": []}  # fmt: skip
    file.write_text(json.dumps(content))


def test_tables_of_protocols_are_compared_at_their_largest_embedding(tmp_path: Path) -> None:
    alone = table_row("c2", 12, 12, (128, 19.0), (512, 24.0))
    gsp = table_row("c2+gsp", 12, 12, (128, 18.0), (512, 25.2))
    ccp = table_row("c2+ccp", 5, 12, (128, 18.0), (512, 23.0))
    others = [table_row("c2+zsr", 12, 12, (512, 30.0)), table_row("ms+ccp", 12, 12)]
    pairs = [pair("c2+ccp", 128, 1.0, 5), pair("c2+ccp", 512, -0.27, 5), pair("c2+gsp", 512, 1.2, 12)]
    write_table(tmp_path / "fair-cub200.json", [alone, gsp, ccp, *others], pairs)
    write_table(tmp_path / "tuning-cub200.json", [alone, gsp], pairs, protocol=TUNING)
    write_table(tmp_path / "fair-photos.json", [alone, gsp], pairs, dataset="photos")
    (tmp_path / "killed.json").write_text(json.dumps({"protocol": "winnow protocol fair", "rows": []}))
    whole, part = protocol_rows(tmp_path)
    assert (whole["numbers"], whole["dataset"], whole["dim"]) == ("fair-cub200", "CUB", 512)
    assert (whole["method"], whole["added"], whole["points"], whole["relative, %"]) == ("c2", "GSP", 1.2, 5.0)
    assert (whole["low"], whole["high"], whole["n"], whole["verdict"]) == (0.2, 2.2, 12, "Reproduced")
    # The mean of all models of c2 would include models that CCP lacks.
    assert (part["added"], part["MAP@R without"], part["MAP@R with"], part["points"]) == ("CCP", 23.27, 23.0, -0.27)
    assert (part["runs"], part["verdict"]) == ("5 of 12", "Incomplete")


def test_a_comparison_without_an_interval_is_incomplete(tmp_path: Path) -> None:
    rows = [table_row("c2", 4, 4, (512, 18.0)), table_row("c2+gsp", 4, 4, (512, 20.0))]
    write_table(tmp_path / "fair.json", rows, [pair("c2+gsp", 512, 2.0, 4, half=None)])
    (row,) = protocol_rows(tmp_path)
    assert (row["points"], row["low"], row["n"], row["verdict"]) == (2.0, None, 4, "Incomplete")


def test_the_study_reads_a_folder_and_draws(tmp_path: Path) -> None:
    record(tmp_path / "mu.json", [run("GAP", 0, 18.0, C2), run("mu 0.3", 0, 17.0, GSP)], 3)
    report = run_study(GAINS, StudyRequest(GAINS.scales["quick"], data=tmp_path))
    (row,) = (one for one in report.rows if one["numbers"] != "published")
    assert (row["points"], row["runs"], row["verdict"]) == (-1.0, "1 of 3", "Incomplete")
    assert len(report.figures[""].subfigs) == 2
    with pytest.raises(DataError, match="folder not found"):
        GAINS.measure(StudyRequest(GAINS.scales["quick"], data=tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    empty = GAINS.measure(StudyRequest(GAINS.scales["quick"], data=tmp_path / "empty"))
    assert len(GAINS.figures(empty)[""].subfigs) == 1


@pytest.mark.slow
def test_the_recorded_result_is_up_to_date() -> None:
    assert recorded_claims(GAINS) == [YES, NO, NO, YES, YES, YES, YES, NO]
    measured = GAINS.measure(StudyRequest(GAINS.scales["full"], data=RESULTS))
    recorded = read_recorded(GAINS)["rows"]
    assert [dict(row) for row in measured.rows] == recorded, "run: winnow study gains --full -o results"
