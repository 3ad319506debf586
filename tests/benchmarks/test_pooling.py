"""The pooling benchmark: solvers that agree, synthetic features, what is saved and what is skipped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import pooling as module
from benchmarks.pooling import (
    ITERATIONS,
    REFERENCE,
    average,
    gsp_in_pytorch,
    parse_size,
    partial_transport,
    run_pooling,
    sums_alone,
)
from tests.benchmarks.conftest import RunBenchmark
from winnow.errors import ConfigError
from winnow.profiling import Timing
from winnow.studies.iterative_gsp import (
    STEPS,
    PoolFunction,
    PoolingCase,
    closed_form,
    make_problem,
    scalar_root,
    unrolled,
)

CPU = torch.device("cpu")
SMALL = PoolingCase(3, (10, 8, 4))


@pytest.mark.parametrize("solver", [scalar_root, gsp_in_pytorch, unrolled, closed_form])
@pytest.mark.parametrize("eps", [0.5, 5.0])
def test_solvers_agree_with_gsp_in_values_and_gradients(solver: PoolFunction, eps: float) -> None:
    """The iteration has converged at these eps, so it differs by float32 rounding alone."""
    problem = make_problem(PoolingCase(4, (20, 16, 6), eps=eps), CPU)
    exact = problem.double().solve(scalar_root, eps)
    for found, wanted in zip(problem.solve(solver, eps), exact, strict=True):
        for one, other in zip(found, wanted, strict=True):
            assert (one - other).norm() < 2e-5 * other.norm()


def test_the_iteration_takes_as_many_steps_as_in_the_paper() -> None:
    """Few steps are seen to be too few, so that the 100 are really taken."""
    problem = make_problem(SMALL, CPU)
    exact = scalar_root(problem.features, problem.prototypes, 0.3, 5.0).vector
    assert STEPS == 100
    for solver in (unrolled, closed_form):
        few, as_given = (solver(problem.features, problem.prototypes, 0.3, 5.0, *steps).vector for steps in ((2,), ()))
        assert (few - exact).norm() > 1e-3 * exact.norm()
        assert torch.equal(as_given, solver(problem.features, problem.prototypes, 0.3, 5.0, 100).vector)


def test_pot_pools_similarly() -> None:
    problem = make_problem(SMALL, CPU)
    found = partial_transport(problem.features, problem.prototypes, 0.3, 5.0)
    exact = scalar_root(problem.features, problem.prototypes, 0.3, 5.0)
    assert found.attributes is not None
    torch.testing.assert_close(found.attributes.sum(dim=1), torch.ones(3))
    assert (found.vector - exact.vector).norm() < 0.2 * exact.vector.norm()


def test_methods_without_attributes() -> None:
    problem = make_problem(SMALL, CPU)
    torch.testing.assert_close(problem.solve(average, 5.0)[0][0], problem.features.mean(dim=1))
    (pooled,), gradients = problem.solve(sums_alone, 0.0)
    torch.testing.assert_close(pooled, problem.features.mean(dim=1))  # without sharpness all weights are alike
    assert [one.shape for one in gradients] == [(3, 10, 8), (4, 8)]


def test_some_synthetic_features_lie_within_the_unit_ball_and_some_near_prototypes_if_asked() -> None:
    problem = make_problem(PoolingCase(16, (49, 32, 8)), CPU)
    assert 0.1 < (problem.features.norm(dim=2) < 1).float().mean() < 0.3
    near = make_problem(PoolingCase(16, (49, 32, 8), eps=20.0, near=True), CPU)
    gaps = torch.cdist(near.features, near.prototypes).amin(dim=2)
    assert 0.5 <= (gaps < 0.011).float().mean() < 0.52
    assert torch.equal(problem.features, make_problem(PoolingCase(16, (49, 32, 8)), CPU).features)
    assert make_problem(PoolingCase(2, (5, 4, 3), torch.bfloat16), CPU).features.dtype == torch.bfloat16


@pytest.mark.slow
def test_the_command_writes_every_case_and_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run_benchmark: RunBenchmark
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "220")
    words = "pooling --device cpu --batch 2 --batch 3 --size 5x4x3 --size 6x4x2 --repeats 2"
    run_benchmark(words)
    assert "ratios to winnow" in " ".join(capsys.readouterr().out.split())
    found = json.loads((tmp_path / "results/bench/pooling-cpu.json").read_text())
    assert found["settings"]["sizes"] == [[5, 4, 3], [6, 4, 2]]
    rivals: dict[str, list[str]] = {}
    for row in found["rows"]:
        rivals.setdefault(row["case"], []).append(row["rival"])
    usual = [REFERENCE, "average pooling", "costs, log-sum-exp, weighted sum alone", *ITERATIONS]
    first, *others = rivals.values()
    assert first == [*usual, "POT, forward only"]
    assert others == [usual] * 4
    assert "B 3, n 5, d 4, m 3, float32, eps 20, features near prototypes" in rivals
    assert {row["rival"] for row in found["rows"] if "error" in row.get("facts", {})} == {REFERENCE, *ITERATIONS}


def test_a_missing_pot_is_skipped_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    benchmark = run_pooling(device="cpu", batches=[2], sizes=[(5, 4, 3)], repeats=1)
    assert not any("POT" in row.method for row in benchmark.rows)
    assert "POT is not installed" in benchmark.notes[0]


def test_the_memory_floor_reads_features_twice_and_writes_their_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy reads and writes every byte: two gibibytes moved in 2 s here, so a byte takes 2^-30 s."""
    monkeypatch.setattr(module, "measure_graph", lambda work, **_: Timing((work() or 4e-6,)))

    def kernels(work, *, repeats, within):
        work()
        return {name: Timing((1e-6,)) for name in ("pool_kernel", "fill") if within(name)}

    monkeypatch.setattr(module, "kernel_timings", kernels)
    problems = [make_problem(SMALL, CPU), make_problem(SMALL, CPU, seed=1)]
    rivals = {REFERENCE: scalar_root, "average pooling": average}
    rows = {row.method: row for row in module._replayed(SMALL, problems, rivals, 1, Timing((2.0,)))}
    assert [name for name in rows if "kernel" in name] == ["winnow, pool kernel"]
    floor = rows["memory floor"].timing.median
    assert floor == pytest.approx(3 * problems[0].features.nbytes / 2**30)
    assert rows["winnow, replayed"].timing.median == pytest.approx(2e-6)  # one of the two problems in the graph
    assert rows["winnow, replayed"].facts["over floor"] == pytest.approx(2e-6 / floor)


@pytest.mark.parametrize("text", ["49x128", "49x128x64x2", "axbxc", "0x4x4", "", "-1x4x4"])
def test_sizes_that_are_not_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="49x128x64"):
        parse_size(text)


def test_sizes_as_they_are_written() -> None:
    assert parse_size("49x128x64") == (49, 128, 64)
