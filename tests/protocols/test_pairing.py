"""Which runs of two methods are compared: those of the same fold and seed that both have, in any order."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from tests.protocols.finished import finish, make_request
from winnow.protocols import ProtocolTable, make_table
from winnow.protocols.render import render_markdown
from winnow.protocols.statistics import Scores

METHODS = ("c2+gsp-zsr", "c2", "ms")


def score(method: str, fold: int, run: int) -> float:
    """Return a synthetic MAP@R: folds and seeds differ by much, methods by 0.01, and by more in some runs."""
    common = random.Random(f"{fold} {run}").random() / 5
    return 0.2 + common + 0.01 * METHODS.index(method) + (0.003 if (fold + run) % 3 == 0 and method == "ms" else 0)


@pytest.mark.parametrize("order", range(3))
def test_only_runs_that_both_have_are_paired_by_fold_and_seed(tmp_path: Path, order: int) -> None:
    request = make_request("fair", tmp_path, *METHODS)
    lacking = {("ms", 2, 3), ("c2+gsp-zsr", 2, 1), ("c2+gsp-zsr", 4, 2), ("c2", 1, 1)}
    runs = request.plan()
    for run in runs:
        if run.key not in lacking:
            finish(run, score(*run.key))
    random.Random(order).shuffle(runs)
    table = make_table(request, runs)
    assert {(pair.method, pair.against) for pair in table.pairs} == {("c2+gsp-zsr", "c2"), ("ms", "c2+gsp-zsr")}
    for method, against in (("c2+gsp-zsr", "c2"), ("ms", "c2+gsp-zsr")):
        shared = [
            [r for r in (1, 2, 3) if not {(method, f, r), (against, f, r)} & lacking] for f in range(1, 5)
        ]  # fmt: skip
        differences = [
            [100 * (score(method, f, r) - score(against, f, r)) for r in numbers]
            for f, numbers in enumerate(shared, start=1)
        ]
        pair = next(p for p in table.pairs if (p.method, p.against, p.dim, p.metric) == (method, against, 4, "MAP@R"))
        assert pair.models == pair.difference.n == sum(map(len, shared))
        wanted = Scores.of_members(differences).estimate()
        assert pair.difference.mean == pytest.approx(np.mean([np.mean(fold) for fold in differences]))
        # A wrong pairing would differ by the effect of seeds, up to 20 points.
        assert (pair.difference.std, pair.difference.low, pair.difference.high) == pytest.approx(
            (wanted.std, wanted.low, wanted.high), abs=1e-9
        )
        assert any(p.dim == 16 for p in table.pairs)


def test_one_run_of_each_fold_decides_a_claim_about_single_models(tmp_path: Path) -> None:
    request = make_request("fair", tmp_path, "c2", "ms")
    runs = request.plan()
    finished = [run for run in runs if run.run == 1]
    for run in finished[:-1]:
        finish(run, score(*run.key))
    table = make_table(request, runs)
    assert not table.decides("ms", "c2")  # three of four folds
    assert not table.pairs
    finish(finished[-1], score(*finished[-1].key))
    table = make_table(request, runs)
    assert table.decides("ms", "c2")
    differences = [100 * (score("ms", f, 1) - score("c2", f, 1)) for f in range(1, 5)]
    wanted = ttest_1samp(differences, 0).confidence_interval(0.95)
    for dim, metric, factor in ((4, "MAP@R", 1), (4, "P@1", 2)):
        pair = next(p for p in table.pairs if (p.dim, p.metric) == (dim, metric))
        assert pair.difference.interval == "student"
        found = (pair.difference.low, pair.difference.high)
        assert found == pytest.approx((factor * wanted.low, factor * wanted.high), rel=1e-9)
    concatenated = next(p for p in table.pairs if (p.dim, p.metric) == (16, "MAP@R"))
    assert concatenated.difference.low is None
    page = render_markdown(table)
    assert "by Student's t over the models, with one degree of freedom fewer than models" in page
    assert "bootstrap" not in page
    content = json.loads(table.to_json())
    assert [pair["difference"].get("interval") for pair in content["pairs"] if pair["metric"] == "MAP@R"] == [
        "student", None,
    ]  # fmt: skip
    assert ProtocolTable.from_json(table.to_json()) == table
    extra = next(run for run in runs if run.key == ("ms", 1, 2))
    finish(extra, score(*extra.key))
    assert make_table(request, runs).decides("ms", "c2")  # it is paired with no run of c2
    extra = next(run for run in runs if run.key == ("c2", 1, 2))
    finish(extra, score(*extra.key))
    assert not make_table(request, runs).decides("ms", "c2")  # two pairs of one fold, one of the others


@pytest.mark.parametrize("protocol", ["conventional", "tuning", "ablation"])
def test_a_protocol_of_one_fold_has_intervals_from_three_runs_on(tmp_path: Path, protocol: str) -> None:
    request = make_request(protocol, tmp_path, "c2", "c2+gsp-zsr")
    runs = request.plan()
    for number in (1, 2, 3):
        for run in runs:
            if run.run == number:
                finish(run, 0.2 + 0.01 * number + (0.001 * number**2 if run.method != "c2" else 0))
        page = render_markdown(table := make_table(request, runs))
        pair = next(p for p in table.pairs if p.metric == "MAP@R")
        assert pair.models == number
        assert pair.difference.mean == pytest.approx(0.1 * np.mean(np.arange(1, number + 1) ** 2))
        estimate = table.rows[0].cells[0].estimate
        assert (estimate.std is None) == (number < 2)
        assert (estimate.low is None) == (pair.difference.low is None) == (number < 3)
        assert ("requires three finished runs" in page) == (number < 3)
        assert ("Brackets" in page) == ("Bold" in page) == (number == 3)
        assert ("±" in page) == (number > 1)
        assert (f"{2 * number} of 6 runs finished." in page) == (number < 3)
