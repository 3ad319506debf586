"""The evaluation benchmark: methods that agree, tasks of the requested sizes, missing packages skipped."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from benchmarks import evaluate as module
from benchmarks.evaluate import METRICS, PML, Case, evaluate_with_torch, find_methods, make_task, run_evaluate
from tests.benchmarks.conftest import RunBenchmark
from winnow.errors import WinnowError
from winnow.evaluation import retrieval_metrics

CPU = torch.device("cpu")


@pytest.mark.parametrize("case", [Case(300, 16, 5), Case(400, 8, 40), Case(70, 16, 5, gallery=500)], ids=str)
def test_all_methods_agree(case: Case) -> None:
    task = make_task(case, CPU)
    methods, notes = find_methods(CPU)
    assert list(methods) == ["winnow", PML, "torch"]
    assert not notes
    wanted = retrieval_metrics(
        task.queries, task.query_labels, gallery=task.gallery, gallery_labels=task.gallery_labels
    )
    for name, method in methods.items():
        assert method(task) == pytest.approx({metric: wanted[metric] for metric in METRICS}, abs=1e-6), name


def test_tasks_are_of_their_sizes_unit_length_and_neither_trivial_nor_hopeless() -> None:
    task = make_task(Case(2000, 32, 5), CPU)
    assert task.queries.shape == (2000, 32)
    torch.testing.assert_close(task.queries.norm(dim=1), torch.ones(2000))
    assert 0.2 < evaluate_with_torch(task)["MAP@R"] < 0.95
    assert torch.equal(task.queries, make_task(Case(2000, 32, 5), CPU).queries)
    apart = make_task(Case(50, 8, 5, gallery=600), CPU)
    assert apart.gallery is not None
    assert (len(apart.queries), len(apart.gallery)) == (50, 600)


@pytest.mark.slow
def test_the_command_writes_every_case_and_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run_benchmark: RunBenchmark
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "220")
    words = "evaluate --device cpu --count 200 --dim 8 --dim 12 --gallery 300 --deep 100 --repeats 2"
    run_benchmark(words)
    printed = " ".join(capsys.readouterr().out.split())
    assert "ratios to pytorch-metric-learning" in printed
    found = json.loads((tmp_path / "results/bench/evaluate-cpu.json").read_text())
    assert found["command"] == f"python -m benchmarks {words}"
    assert len(found["rows"]) == 4 * 3
    assert [row["case"] for row in found["rows"][::3]] == [
        "200 x 8, classes of 5",
        "200 x 12, classes of 5",
        "100 x 8, classes of 5",
        "200 in 300 x 8, classes of 5",
    ]
    assert all(row["seconds"]["runs"] == 2 for row in found["rows"])
    assert all(set(row["facts"]) == {"MAP@R"} for row in found["rows"])


def test_a_missing_package_is_skipped_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr("benchmarks.evaluate.find_spec", lambda name: None if name == "faiss" else real(name))
    benchmark = run_evaluate(device="cpu", count=60, dims=[4], deep=0, repeats=1)
    assert [row.method for row in benchmark.rows] == ["winnow", "torch"]
    assert benchmark.reference == "torch"
    assert "not installed" in benchmark.notes[0]


def test_methods_that_disagree_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    methods = {"one": lambda task: dict.fromkeys(METRICS, 0.5), "other": lambda task: dict.fromkeys(METRICS, 0.6)}
    monkeypatch.setattr(module, "find_methods", lambda device: (methods, []))
    with pytest.raises(WinnowError, match=r"disagree on P@1 \(one 0\.50000, other 0\.60000\)"):
        run_evaluate(device="cpu", count=60, dims=[4], deep=0, repeats=1)
