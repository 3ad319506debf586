"""The study of iterations: what is kept for a backward, errors that fall with k, a text that follows the numbers."""

import pytest
import torch

from winnow.bench.pooling_rivals import iterate
from winnow.bench.pooling_task import Case
from winnow.functional import gsp_weights
from winnow.studies import Task, iterations
from winnow.studies.iterations_report import told

TINY = Case(2, (9, 6, 4))


def test_what_is_kept_is_counted_once():
    x = torch.ones(1000, requires_grad=True)
    assert iterations.kept_bytes(lambda: x * x) == 4000
    assert iterations.kept_bytes(lambda: x.exp()) == 4000
    assert iterations.kept_bytes(lambda: x + 1) == 0
    assert iterations.kept_bytes(lambda: x.exp().exp()) == 8000


def test_the_iteration_comes_to_the_root():
    costs = torch.rand(2, 4, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact = gsp_weights(costs, 0.3, 5.0).weights
    off = [float(((1 / 9 - iterate(costs, 0.3, 5.0, k)[0]) / 0.3 - exact).abs().max()) for k in (1, 10, 100)]
    assert off[0] > off[1] > off[2]
    assert off[2] < 1e-12


def test_rows_tell_cost_and_error():
    rows = iterations.cost_rows(TINY, torch.device("cpu"), (2, 40), repeats=1)
    by_way = {(row["way"], row["k"]): row for row in rows}
    kept = "kept for backward, MB"
    assert by_way["autodiff", 40][kept] > by_way["autodiff", 2][kept]
    assert by_way["closed form", 40][kept] == by_way["closed form", 2][kept]
    error = "gradient error at eps 5, %"
    assert by_way["closed form", 40][error] < 0.1 < by_way["closed form", 2][error]
    assert by_way["scalar root", None][error] < 0.01
    errors = iterations.find_errors(TINY, (25, 100))
    table = iterations.error_table(errors)
    assert len(table) == len(iterations.EPS) * len(iterations.SHARES)
    assert all(row["weight off after 100, %"] <= row["weight off after 25, %"] + 1e-9 for row in table)


def test_the_text_follows_the_numbers():
    def row(way: str, k: int | None, time: float, kept: float) -> dict[str, object]:
        return {"way": way, "k": k, "time, ms": time, "kept for backward, MB": kept, "gradient error at eps 5, %": 0.1}

    rows = [row("scalar root", None, 1, 1), row("autodiff", 5, 1, 1), row("autodiff", 50, 9, 4)]
    soft = [{"eps": 5.0, "mu": 0.3, "k": 100, "error": 1e-9}]
    text = told([*rows, row("closed form", 5, 1, 1), row("closed form", 50, 1.2, 1)], soft, "cpu")
    assert text.startswith("Times are of a CPU.")
    assert "converge for k > 50" not in text  # it was not looked at
    assert "beside the closed form agrees; that k costs this one little time agrees (up to a factor of 2)" in text
    assert "1 of 1 pairs of eps and mu. The closed" in text
    hard = [*soft, {"eps": 100.0, "mu": 0.3, "k": 100, "error": 94.0}]
    text = told([*rows, row("closed form", 5, 1, 1), row("closed form", 50, 1.2, 3)], hard, "cuda")
    assert text.startswith("Times are of a GPU.")
    assert "beside the closed form does not agree; that k costs this one little time agrees" in text
    text = told([*rows, row("closed form", 5, 1, 1), row("closed form", 50, 2.5, 1)], hard, "cuda")
    assert "beside the closed form agrees; that k costs this one little time does not agree" in text
    assert "94 % at eps 100, mu 0.3" in text


@pytest.mark.parametrize(("error", "outcome"), [(0.03, "agrees"), (4.0, "does not agree")])
def test_convergence_is_checked_at_the_documents_settings(error: float, outcome: str):
    at = {(0.5, 0.3): 1e-9, (5.0, 0.3): error, (100.0, 0.3): 94.0, (5.0, 0.95): 50.0}
    errors = [{"eps": eps, "mu": mu, "k": k, "error": off} for (eps, mu), off in at.items() for k in (50, 100)]
    costs = {"time, ms": 1.0, "kept for backward, MB": 1.0, "gradient error at eps 5, %": 0.1}
    ways = [("scalar root", None), ("autodiff", 5), ("autodiff", 50), ("closed form", 5), ("closed form", 50)]
    text = told([{"way": way, "k": k, **costs} for way, k in ways], errors, "cpu")
    assert f"off by more than {error:.1g} % of the largest there can be, which {outcome} (up to 1 %)" in text


def test_the_study_runs_small(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(iterations, "Case", lambda batch, size: TINY)
    findings = iterations.study(Task(small=True))
    assert {row["way"] for row in findings.rows} == {"scalar root", "autodiff", "closed form", "iteration"}
    assert len(findings.figure.axes) == 3
