"""Which runs of two methods are compared: those of the same fold and seed that both have, in whatever order."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from tests.protocols.finished import finish, plan
from winnow.protocols import make_table
from winnow.protocols.statistics import mean_of_members, spread
from winnow.protocols.write import markdown

METHODS = ("c2+gsp", "c2", "ms")


def made_up(method: str, model: int, run: int) -> float:
    """Folds and seeds differ by much, methods by 0.01, and a bit more in some runs."""
    share = random.Random(f"{model} {run}").random() / 5
    return 0.2 + share + 0.01 * METHODS.index(method) + (0.003 if (model + run) % 3 == 0 and method == "ms" else 0)


@pytest.mark.parametrize("order", range(3))
def test_runs_are_paired_by_fold_and_seed_and_only_those_that_both_have(tmp_path: Path, order: int) -> None:
    task = plan("fair", tmp_path, *METHODS)
    lacking = {("ms", 2, 3), ("c2+gsp", 2, 1), ("c2+gsp", 4, 2), ("c2", 1, 1)}
    trials = task.trials()
    for trial in trials:
        if (trial.method, trial.model, trial.run) not in lacking:
            finish(trial, made_up(trial.method, trial.model, trial.run))
    random.Random(order).shuffle(trials)
    table = make_table(task, trials)
    assert {(pair.method, pair.against) for pair in table.pairs} == {("c2+gsp", "c2"), ("ms", "c2+gsp")}
    for method, against in (("c2+gsp", "c2"), ("ms", "c2+gsp")):
        shared = [
            [r for r in (1, 2, 3) if not {(method, f, r), (against, f, r)} & lacking] for f in range(1, 5)
        ]  # fmt: skip
        differences = [
            [100 * (made_up(method, f, r) - made_up(against, f, r)) for r in runs]
            for f, runs in enumerate(shared, start=1)
        ]
        pair = next(p for p in table.pairs if (p.method, p.against, p.size, p.metric) == (method, against, 4, "MAP@R"))
        assert pair.models == sum(map(len, shared))
        wanted = spread(mean_of_members(differences))
        assert pair.difference.mean == pytest.approx(np.mean([np.mean(fold) for fold in differences]))
        # A wrong pairing would differ by what seeds do, up to 20 points.
        assert (pair.difference.std, pair.difference.low, pair.difference.high) == pytest.approx(
            (wanted.std, wanted.low, wanted.high), abs=1e-9
        )
        assert any(p.size == 16 for p in table.pairs)
    assert "over the same folds and seeds" in markdown(task, table)


@pytest.mark.parametrize("protocol", ["conventional", "tuning", "ablation"])
def test_a_single_model_has_no_folds_and_an_interval_from_three_runs_on(tmp_path: Path, protocol: str) -> None:
    task = plan(protocol, tmp_path, "c2", "c2+gsp")
    trials = task.trials()
    for run in (1, 2, 3):
        for trial in trials:
            if trial.run == run:
                finish(trial, 0.2 + 0.01 * run + (0.001 * run**2 if trial.method != "c2" else 0))
        page = markdown(task, table := make_table(task, trials))
        assert "fold" not in page
        pair = next(p for p in table.pairs if p.metric == "MAP@R")
        assert pair.models == run
        assert pair.difference.mean == pytest.approx(0.1 * np.mean(np.arange(1, run + 1) ** 2))
        over = table.rows[0].cells[0].spread
        assert (over.std is None) == (run < 2)
        assert (over.low is None) == (pair.difference.low is None) == (run < 3)
        assert ("An interval needs three runs." in page) == (run < 3)
        assert ("in brackets" in page) == ("leaves it open" in page) == (run == 3)
        assert ("± deviation" in page) == (run > 1)
        assert ("of the finished runs" in page) == (run < 3)
        assert ("of 3 runs" in page) == (run == 3)
