"""Study of iterations: bytes saved for backward, errors that fall with k, and claims that follow the numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.studies.recorded import read_recorded, recorded_claims
from winnow.functional import gsp_weights
from winnow.report.claims import Verdict
from winnow.studies import StudyRequest, iterations, timing
from winnow.studies.iterations import AUTODIFF, CLOSED, ITERATIONS, ROOT, SAVED, STEP, TIME, iterated
from winnow.studies.iterative_gsp import PoolingCase, iterate
from winnow.studies.runner import run_study
from winnow.studies.scores import check_claims
from winnow.studies.timing import saved_bytes

TINY = PoolingCase(2, (9, 6, 4))
YES, NO = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED


def test_saved_storage_counts_once() -> None:
    x = torch.ones(1000, requires_grad=True)
    assert saved_bytes(lambda: x * x) == 4000
    assert saved_bytes(lambda: x.exp()) == 4000
    assert saved_bytes(lambda: x + 1) == 0
    assert saved_bytes(lambda: x.exp().exp()) == 8000


def test_the_iteration_converges_to_the_root() -> None:
    costs = torch.rand(2, 4, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact = gsp_weights(costs, 0.3, 5.0).weights
    off = [float(((1 / 9 - iterate(costs, 0.3, 5.0, k)[0]) / 0.3 - exact).abs().max()) for k in (1, 10, 100)]
    assert off[0] > off[1] > off[2]
    assert off[2] < 1e-12


def test_rows_have_costs_and_errors() -> None:
    rows = {row["solver"]: row for row in iterations.cost_rows(TINY, torch.device("cpu"), (2, 40), repeats=1)}
    assert list(rows) == [ROOT, *(iterated(method, k) for method in (AUTODIFF, CLOSED) for k in (2, 40))]
    assert rows["autodiff, k 40"][SAVED] > rows["autodiff, k 2"][SAVED]
    assert rows["closed form, k 40"][SAVED] == rows["closed form, k 2"][SAVED]
    error = "gradient error at eps 5, %"
    assert rows["closed form, k 40"][error] < 0.1 < rows["closed form, k 2"][error]
    assert rows[ROOT][error] < 0.01


def test_errors_fall_with_k_at_every_eps_and_mu() -> None:
    rows = iterations.error_rows(iterations.find_errors(TINY, (25, 100)), (25, 100))
    assert len(rows) == len(iterations.EPS) * len(iterations.FRACTIONS)
    assert all(row["weight error after 100, %"] <= row["weight error after 25, %"] + 1e-9 for row in rows)


def verdicts(auto: float, closed: float, usual: float, saved: float, error: float) -> list[Verdict]:
    """Return the verdicts for costs at k = 200, with 1 ms and 1 MB at k = 5, and a training step of 20 ms."""
    content: dict[str, Any] = read_recorded(ITERATIONS)
    costs = {(AUTODIFF, 5): (1, 1), (AUTODIFF, 200): (auto, 4), (CLOSED, 5): (1, 1), (CLOSED, 100): (usual, 1),
             (CLOSED, 200): (closed, saved)}  # fmt: skip
    content["rows"] = [{"solver": iterated(*key), TIME: time, SAVED: size} for key, (time, size) in costs.items()]
    content["rows"].append({"solver": STEP, TIME: 20.0})
    content["rows"] += [{"solver": f"iteration, eps {eps:g}, mu 0.3", "eps": eps} for eps in (0.5, 5.0)]
    content["errors"] = [{"eps": eps, "mu": 0.3, "k": 50, "error": error} for eps in (0.5, 5.0)]
    return [one.verdict for one in check_claims(ITERATIONS.claims, ITERATIONS.restore(content), ITERATIONS.scales.full)]


def test_claims_follow_the_numbers() -> None:
    assert verdicts(auto=9, closed=1.2, usual=1.2, saved=1, error=1e-9) == [YES] * 5
    assert verdicts(auto=2, closed=3.1, usual=2.1, saved=3, error=4.0) == [NO] * 5
    assert verdicts(auto=9, closed=3.1, usual=1.9, saved=1, error=4.0) == [YES, NO, YES, YES, NO]


def test_the_recorded_result_has_these_claims() -> None:
    assert recorded_claims(ITERATIONS) == [YES, NO, NO, YES, YES]


@pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")
def test_the_study_measures_claims_and_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterations, "PoolingCase", lambda batch, size: PoolingCase(batch, TINY.size))
    monkeypatch.setattr(timing, "STEP_SIZES", {True: ("resnet20", 32, 1)})
    report = run_study(ITERATIONS, StudyRequest(ITERATIONS.scales["quick"]))
    rows = {row["solver"]: row for row in report.rows}
    assert rows[ROOT][iterations.OF_STEP] == pytest.approx(100 * rows[ROOT][TIME] / rows[STEP][TIME])
    assert {one.verdict for one in report.claims} <= {"Reproduced", "Not reproduced"}
    assert report.settings["step"] == "resnet20 at 32 pixels, a batch of 8"
    assert len(report.figures[""].axes) == 3
