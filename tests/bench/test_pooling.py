"""The pooling benchmark: rivals that pool as winnow does, made-up features, what is written and what is left out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from winnow.bench import pooling as module
from winnow.bench import pooling_rivals as ways
from winnow.bench.pooling import AGAINST, run_pooling
from winnow.bench.pooling_task import Case, made_up_task, parse_size
from winnow.bench.timing import Timing
from winnow.cli import run
from winnow.errors import ConfigError

CPU = torch.device("cpu")
SMALL = Case(3, (10, 8, 4))


@pytest.mark.parametrize("rival", [ways.winnow, ways.winnow_in_torch, ways.unrolled, ways.closed_form])
@pytest.mark.parametrize("eps", [0.5, 5.0])
def test_rivals_that_solve_gsp_agree_with_it_in_values_and_gradients(rival: ways.Rival, eps: float) -> None:
    """The iteration has converged at these eps, so it differs by float32 rounding alone."""
    task = made_up_task(Case(4, (20, 16, 6), eps=eps), CPU)
    exact = task.wide().solve(ways.winnow, eps)
    for found, wanted in zip(task.solve(rival, eps), exact, strict=True):
        for one, other in zip(found, wanted, strict=True):
            assert (one - other).norm() < 2e-5 * other.norm()


def test_the_iteration_takes_as_many_steps_as_the_documents() -> None:
    """Few steps are seen to be too few, so that the 100 are really taken."""
    task = made_up_task(SMALL, CPU)
    exact = ways.winnow(task.features, task.prototypes, 0.3, 5.0).vector
    assert ways.STEPS == 100
    for rival in (ways.unrolled, ways.closed_form):
        few, as_given = (rival(task.features, task.prototypes, 0.3, 5.0, *steps).vector for steps in ((2,), ()))
        assert (few - exact).norm() > 1e-3 * exact.norm()
        assert torch.equal(as_given, rival(task.features, task.prototypes, 0.3, 5.0, 100).vector)


def test_pot_pools_similarly() -> None:
    task = made_up_task(SMALL, CPU)
    found = ways.partial_transport(task.features, task.prototypes, 0.3, 5.0)
    exact = ways.winnow(task.features, task.prototypes, 0.3, 5.0)
    assert found.attributes is not None
    torch.testing.assert_close(found.attributes.sum(dim=1), torch.ones(3))
    assert (found.vector - exact.vector).norm() < 0.2 * exact.vector.norm()


def test_rivals_without_attributes() -> None:
    task = made_up_task(SMALL, CPU)
    torch.testing.assert_close(task.solve(ways.average, 5.0)[0][0], task.features.mean(dim=1))
    (pooled,), gradients = task.solve(ways.sums_alone, 0.0)
    torch.testing.assert_close(pooled, task.features.mean(dim=1))  # without sharpness all weights are alike
    assert [one.shape for one in gradients] == [(3, 10, 8), (4, 8)]


def test_some_made_up_features_lie_within_the_unit_ball_and_some_near_prototypes_if_asked() -> None:
    task = made_up_task(Case(16, (49, 32, 8)), CPU)
    assert 0.1 < (task.features.norm(dim=2) < 1).float().mean() < 0.3
    near = made_up_task(Case(16, (49, 32, 8), eps=20.0, near=True), CPU)
    gaps = torch.cdist(near.features, near.prototypes).amin(dim=2)
    assert 0.5 <= (gaps < 0.011).float().mean() < 0.52
    assert torch.equal(task.features, made_up_task(Case(16, (49, 32, 8)), CPU).features)
    assert made_up_task(Case(2, (5, 4, 3), torch.bfloat16), CPU).features.dtype == torch.bfloat16


def test_the_command_writes_every_case_and_rival(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "220")
    words = "bench pooling --device cpu --batch 2 --batch 3 --size 5x4x3 --size 6x4x2 --repeats 2"
    monkeypatch.setattr(sys, "argv", ["winnow", *words.split()])
    with pytest.raises(SystemExit) as end:
        run()
    assert not end.value.code
    assert "ratios to winnow" in " ".join(capsys.readouterr().out.split())
    found = json.loads((tmp_path / "results/bench/pooling-cpu.json").read_text())
    assert found["settings"]["sizes"] == [[5, 4, 3], [6, 4, 2]]
    rivals: dict[str, list[str]] = {}
    for row in found["rows"]:
        rivals.setdefault(row["case"], []).append(row["rival"])
    usual = [AGAINST, "average pooling", "costs, log-sum-exp, weighted sum alone", *module._STEPS]
    first, *others = rivals.values()
    assert first == [*usual, "POT, forward only"]
    assert others == [usual] * 4
    assert "B 3, n 5, d 4, m 3, float32, eps 20, features near prototypes" in rivals
    assert {row["rival"] for row in found["rows"] if "error" in row.get("facts", {})} == {AGAINST, *module._STEPS}


def test_pot_is_left_out_with_a_note_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "find_spec", lambda name: None)
    bench = run_pooling(device="cpu", batches=[2], sizes=[(5, 4, 3)], repeats=1)
    assert not any("POT" in row.rival for row in bench.rows)
    assert "POT is not installed" in bench.notes[0]


def test_the_memory_floor_reads_features_twice_and_writes_their_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy reads and writes every byte: two gibibytes moved in 2 s here, so a byte takes 2^-30 s."""
    monkeypatch.setattr(module, "measure_graph", lambda work, **_: Timing((work() or 4e-6,)))

    def kernels(work, *, repeats, within):
        work()
        return {name: Timing((1e-6,)) for name in ("pool_kernel", "fill") if within(name)}

    monkeypatch.setattr(module, "kernel_timings", kernels)
    tasks = [made_up_task(SMALL, CPU), made_up_task(SMALL, CPU, seed=1)]
    rivals = {AGAINST: ways.winnow, "average pooling": ways.average}
    rows = {row.rival: row for row in module._replayed(SMALL, tasks, rivals, 1, Timing((2.0,)))}
    assert [name for name in rows if "kernel" in name] == ["its pool kernel alone"]
    floor = rows["memory floor"].timing.median
    assert floor == pytest.approx(3 * tasks[0].features.nbytes / 2**30)
    assert rows["winnow, replayed"].timing.median == pytest.approx(2e-6)  # one of the two tasks in the graph
    assert rows["winnow, replayed"].facts["over floor"] == pytest.approx(2e-6 / floor)


@pytest.mark.parametrize("text", ["49x128", "49x128x64x2", "axbxc", "0x4x4", "", "-1x4x4"])
def test_sizes_that_are_not_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="such as 49x128x64"):
        parse_size(text)


def test_sizes_as_they_are_written() -> None:
    assert parse_size("49x128x64") == (49, 128, 64)
