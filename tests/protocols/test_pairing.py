"""Which runs of two methods are compared: those of the same fold and seed that both have, in any order."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from tests.protocols.finished import finish, make_request
from winnow.protocols import make_table
from winnow.protocols.render import render_markdown
from winnow.protocols.statistics import bootstrap_estimate, mean_of_members

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
        wanted = bootstrap_estimate(mean_of_members(differences))
        assert pair.difference.mean == pytest.approx(np.mean([np.mean(fold) for fold in differences]))
        # A wrong pairing would differ by the effect of seeds, up to 20 points.
        assert (pair.difference.std, pair.difference.low, pair.difference.high) == pytest.approx(
            (wanted.std, wanted.low, wanted.high), abs=1e-9
        )
        assert any(p.dim == 16 for p in table.pairs)


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
