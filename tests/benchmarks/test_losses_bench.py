"""The benchmark of losses: it has every loss and regularizer, and baselines compute the loss they are named after."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.losses import _PAIR_LOSSES, _PROXY_LOSSES, PML, pml_loss, run_losses
from tests.benchmarks.conftest import RunBenchmark
from winnow.losses import LOSSES
from winnow.regularizers import REGULARIZERS


@pytest.fixture(autouse=True)
def _known_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the measurement of memory, which collects garbage before each of dozens of calls."""
    monkeypatch.setattr("benchmarks.losses.peak_memory", lambda work, device: 7)


def test_the_command_times_every_loss_and_regularizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_benchmark: RunBenchmark
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "losses --device cpu --classes 12 --batch 50 --dim 8 --repeats 1"
    run_benchmark(words)
    found = json.loads((tmp_path / "results/bench/losses-cpu.json").read_text())
    assert found["settings"]["batch"] == 12, "every query is of another class"
    cases = {row["case"].removesuffix(", regularizer") for row in found["rows"]}
    assert cases == {*LOSSES, *REGULARIZERS} - {"none"}
    assert {row["peak_bytes"] for row in found["rows"]} == {7}
    assert {row["case"] for row in found["rows"] if row["rival"] == PML} == {*_PAIR_LOSSES, *_PROXY_LOSSES}


def test_a_baseline_compares_the_same_vectors() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, references = torch.randn(5, 6, generator=generator), torch.randn(9, 6, generator=generator)
    labels, of = torch.tensor([0, 3, 4, 7, 8]), torch.arange(9)
    anchor = pml_loss("proxy_anchor", references, num_classes=9, per_class=1)
    contrastive = pml_loss("c1", references, num_classes=9, per_class=1)
    assert anchor is not None
    assert contrastive is not None
    ours = LOSSES.build({"name": "proxy_anchor", "alpha": 32.0, "margin": 0.1}, num_classes=9, width=6, batch=5)
    torch.testing.assert_close(
        anchor(queries, labels, references, of), ours(queries, labels, ref_emb=references, ref_labels=of)
    )
    nearer = references.clone()
    nearer[0] = queries[0]
    assert contrastive(queries, labels, nearer, of) < contrastive(queries, labels, references, of)


def test_without_the_other_library_winnow_is_timed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.losses.find_spec", lambda name: None)
    benchmark = run_losses(device="cpu", classes=6, dim=4, batch=3, repeats=1)
    assert {row.method for row in benchmark.rows} == {benchmark.reference} == {"winnow"}
