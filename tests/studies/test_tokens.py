"""Bags of tokens: how they are drawn, that both poolings learn, and claims that follow the numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.studies.recorded import read_recorded, recorded_claims
from winnow.errors import DataError
from winnow.report.claims import Verdict
from winnow.studies import StudyRequest, tokens
from winnow.studies.runner import run_study
from winnow.studies.scores import check_claims
from winnow.studies.tokens import HULLS, TOKENS, VALIDATION, Setting, Trained, draw_bags, overlap, train

TINY = Setting(classes=4, bag=20, bags=24, lr=5e-3, steps=300, warm_up=50, prototypes=8, eps=60.0)
YES, NO = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED


def test_bags_hold_tokens_of_their_class_and_of_the_background() -> None:
    bags = draw_bags(Setting(bags=200), torch.Generator().manual_seed(0))
    assert bags.shape == (16, 200, 50)
    background = bags >= 64
    fraction = background.double().mean(dim=2)
    assert abs(float(fraction.mean()) - 0.5) < 0.01
    assert abs(float(fraction.std()) - 0.1) < 0.01
    assert (background.sum(dim=2) >= 1).all()
    assert (~background).any(dim=2).all()
    owner = torch.arange(16)[:, None, None].expand_as(bags)
    assert torch.equal(bags[~background] // 4, owner[~background])
    assert set(bags[background].tolist()) == {64, 65, 66, 67}


def test_gsp_learns_to_ignore_the_background() -> None:
    gap, gsp = train(TINY, "GAP", 0), train(TINY, "GSP", 0)
    assert gsp.tokens.abs().max() <= tokens.BOX + 1e-6
    assert gsp.numbers["MAP@R"] > 0.8
    assert gsp.numbers["overlap"] <= gap.numbers["overlap"]
    assert gsp.numbers["steps"] > TINY.warm_up


def test_overlap_counts_bags_in_hulls_of_other_classes() -> None:
    square = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    labels = torch.tensor([0] * 4 + [1] * 4)
    near = Trained(Setting(classes=2), "GAP", 0, torch.empty(0, 2), torch.cat([square, square + 0.5]), labels)
    assert overlap(near) == 0.25  # one corner of each lies in the other
    assert overlap(replace(near, embedded=torch.cat([square, square + 5]))) == 0


def restored(rows: dict[str, tuple[float, float, float]]) -> Any:
    """Return a measurement with MAP@R, validation, and hulls of every row, 0.1 apart between three seeds."""
    by_seed = {
        str(seed): [
            {"run": name, "MAP@R": score + 0.1 * seed, VALIDATION: val, HULLS: hulls + 0.1 * seed, "steps": 100}
            for name, (score, val, hulls) in rows.items()
        ]
        for seed in range(3)
    }
    return TOKENS.restore({**read_recorded(TOKENS), "by seed": by_seed})


def verdicts(rows: dict[str, tuple[float, float, float]]) -> list[Verdict]:
    return [one.verdict for one in check_claims(TOKENS.claims, restored(rows), TOKENS.scales["full"])]


def test_claims_use_the_margin_that_validation_selects() -> None:
    rows = {"GAP, margin 0.2": (20.0, 20.0, 60.0), "GSP, margin 0.2": (90.0, 90.0, 0.0),
            "GAP, margin 0.5": (90.0, 10.0, 0.0), "GSP, margin 0.5": (10.0, 10.0, 90.0)}  # fmt: skip
    assert verdicts(rows) == [YES] * 5
    swapped = {name: (score, 30.0 - val, hulls) for name, (score, val, hulls) in rows.items()}
    swapped["GSP, margin 0.5"] = (10.0, 100.0, 90.0)
    assert verdicts(swapped) == [NO, NO, YES, NO, NO]


def test_the_table_has_means_and_standard_deviations() -> None:
    (row,) = restored({"GSP, margin 0.5": (50.0, 60.0, 1.0)}).rows
    assert row == {"method": "GSP", "margin": 0.5, "runs": 3, "MAP@R": 50.1, "MAP@R std": 0.1, VALIDATION: 60.0,
                   HULLS: 1.1, "steps": 100}  # fmt: skip


def test_the_recorded_result_has_these_claims() -> None:
    assert recorded_claims(TOKENS) == [YES, NO, YES, Verdict.WITHIN_SEED_NOISE, YES]


@pytest.mark.slow
def test_the_study_stores_its_runs_and_draws_the_first_seed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tokens, "EPOCH", 40)
    tiny = [Setting(classes=4, bag=4, bags=4, steps=80, warm_up=5, margin=margin) for margin in tokens.MARGINS]
    monkeypatch.setattr(tokens, "settings", lambda scale: tiny)
    request = StudyRequest(TOKENS.scales["quick"], tmp_path)
    with pytest.raises(DataError, match="not finished"):
        TOKENS.measure(replace(request, train=False))
    report = run_study(TOKENS, request)
    monkeypatch.setattr(tokens, "train", None)  # stored runs are read
    again = TOKENS.measure(replace(request, train=False))
    assert [dict(row) for row in again.rows] == report.rows
    titles = [axes.get_title(loc="left") for axes in report.figures[""].axes]
    best = {one: max((row for row in report.rows if row["method"] == one), key=lambda row: row[VALIDATION])
            for one in ("GAP", "GSP")}  # fmt: skip
    assert titles == [f"{one}: MAP@R {row['MAP@R']:.1f}%, {row[HULLS]:.1f}% in another hull"
                      for one, row in best.items()]  # fmt: skip
    assert not TOKENS.figures(TOKENS.restore(json.loads(report.to_json()))), "without runs the figure stays as it is"
