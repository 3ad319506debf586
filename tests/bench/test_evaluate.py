"""The evaluation benchmark: rivals that judge alike, tasks of the sizes asked for, missing rivals left out."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

from winnow.bench import evaluate as module
from winnow.bench.evaluate import Case, made_up_task, run_evaluate
from winnow.bench.evaluate_rivals import AGAINST, METRICS, plain_torch, rivals
from winnow.cli import run
from winnow.errors import WinnowError
from winnow.evaluation import retrieval_metrics

CPU = torch.device("cpu")


@pytest.mark.parametrize("case", [Case(300, 16, 5), Case(400, 8, 40), Case(70, 16, 5, gallery=500)], ids=str)
def test_all_rivals_find_the_same(case: Case) -> None:
    task = made_up_task(case, CPU)
    competing, notes = rivals(CPU)
    assert list(competing) == ["winnow", AGAINST, "torch"]
    assert not notes
    wanted = retrieval_metrics(
        task.queries, task.query_labels, gallery=task.gallery, gallery_labels=task.gallery_labels
    )
    for name, rival in competing.items():
        assert rival(task) == pytest.approx({metric: wanted[metric] for metric in METRICS}, abs=1e-6), name


def test_tasks_are_of_their_sizes_unit_length_and_neither_trivial_nor_hopeless() -> None:
    task = made_up_task(Case(2000, 32, 5), CPU)
    assert task.queries.shape == (2000, 32)
    torch.testing.assert_close(task.queries.norm(dim=1), torch.ones(2000))
    assert 0.2 < plain_torch(task)["MAP@R"] < 0.95
    assert torch.equal(task.queries, made_up_task(Case(2000, 32, 5), CPU).queries)
    apart = made_up_task(Case(50, 8, 5, gallery=600), CPU)
    assert apart.gallery is not None
    assert (len(apart.queries), len(apart.gallery)) == (50, 600)


def test_the_command_writes_every_case_and_rival(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "220")
    words = "bench evaluate --device cpu --count 200 --dim 8 --dim 12 --gallery 300 --deep 100 --repeats 2"
    monkeypatch.setattr(sys, "argv", ["winnow", *words.split()])
    with pytest.raises(SystemExit) as end:
        run()
    assert not end.value.code
    printed = " ".join(capsys.readouterr().out.split())
    assert "ratios to pytorch-metric-learning" in printed
    found = json.loads((tmp_path / "results/bench/evaluate-cpu.json").read_text())
    assert found["command"] == f"winnow {words}"
    assert len(found["rows"]) == 4 * 3
    assert [row["case"] for row in found["rows"][::3]] == [
        "200 x 8, classes of 5",
        "200 x 12, classes of 5",
        "100 x 8, classes of 5",
        "200 in 300 x 8, classes of 5",
    ]
    assert all(row["seconds"]["runs"] == 2 for row in found["rows"])
    assert all(set(row["facts"]) == {"MAP@R"} for row in found["rows"])


def test_a_rival_that_is_not_installed_is_left_out_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr("winnow.bench.evaluate_rivals.find_spec", lambda name: None if name == "faiss" else real(name))
    bench = run_evaluate(device="cpu", count=60, widths=[4], deep=0, repeats=1)
    assert [row.rival for row in bench.rows] == ["winnow", "torch"]
    assert bench.against == "torch"
    assert "not installed" in bench.notes[0]


def test_rivals_that_do_not_agree_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    competing = {"one": lambda task: dict.fromkeys(METRICS, 0.5), "other": lambda task: dict.fromkeys(METRICS, 0.6)}
    monkeypatch.setattr(module, "rivals", lambda device: (competing, []))
    with pytest.raises(WinnowError, match=r"do not agree on P@1 \(one 0\.50000, other 0\.60000\)"):
        run_evaluate(device="cpu", count=60, widths=[4], deep=0, repeats=1)
