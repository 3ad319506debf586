"""The benchmark of losses: every loss and regulariser is in it, and its rivals compute what they are named after."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from winnow.bench.losses import run_losses
from winnow.bench.losses_rivals import AGAINST, rival
from winnow.cli import run
from winnow.losses import LOSSES
from winnow.regularizers import REGULARIZERS


def test_the_command_times_every_loss_and_regulariser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = "bench losses --device cpu --classes 12 --batch 50 --dim 8 --repeats 1"
    monkeypatch.setattr(sys, "argv", ["winnow", *words.split()])
    with pytest.raises(SystemExit) as end:
        run()
    assert not end.value.code
    found = json.loads((tmp_path / "results/bench/losses-cpu.json").read_text())
    assert found["settings"]["batch"] == 12, "every query is of another class"
    cases = {row["case"].removesuffix(", a regulariser") for row in found["rows"]}
    assert cases == {*LOSSES, *REGULARIZERS} - {"none"}
    assert {row["case"] for row in found["rows"] if row["rival"] == AGAINST} == set(LOSSES)


def test_a_rival_compares_the_same_vectors() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, references = torch.randn(5, 6, generator=generator), torch.randn(9, 6, generator=generator)
    labels, of = torch.tensor([0, 3, 4, 7, 8]), torch.arange(9)
    anchor = rival("proxy_anchor", references, num_classes=9, per_class=1)
    contrastive = rival("c1", references, num_classes=9, per_class=1)
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
    monkeypatch.setattr("winnow.bench.losses_rivals.find_spec", lambda name: None)
    bench = run_losses(device="cpu", classes=6, width=4, batch=3, repeats=1)
    assert {row.rival for row in bench.rows} == {bench.against} == {"winnow"}
