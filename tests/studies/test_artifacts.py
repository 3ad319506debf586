"""Runs of studies that train in a way of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from winnow.errors import ConfigError, DataError
from winnow.studies.artifacts import StoredRun, keep_run, require_run
from winnow.studies.base import Task
from winnow.training import load_config


def test_a_run_is_trained_once_and_read_as_it_was(tmp_path: Path) -> None:
    made = StoredRun(
        {"score": 0.1 + 0.2, "problems": [1, None]}, {"points": torch.rand(3, 2)[:, :1], "labels": torch.arange(3)}
    )
    trained: list[StoredRun] = []

    def train() -> StoredRun:
        trained.append(made)
        return made

    asked = {"method": "a", "seed": 0, "share": (0.5, 0.1)}
    task = Task(small=True, runs=tmp_path / "runs")
    finished = Task(small=True, runs=tmp_path / "runs", only_finished=True)
    assert keep_run(finished, "a-seed0", asked, train) is None
    with pytest.raises(DataError, match="a-seed0"):
        require_run(finished, "a-seed0", asked, train)
    assert not trained
    for each in (task, task, finished):
        kept = require_run(each, "a-seed0", asked, train)
        assert kept.numbers == made.numbers
        assert kept.tensors.keys() == made.tensors.keys()
        assert all(torch.equal(kept.tensors[key], made.tensors[key]) for key in made.tensors)
    assert len(trained) == 1
    with pytest.raises(ConfigError, match=r"a-seed0\.safetensors"):
        keep_run(task, "a-seed0", {**asked, "seed": 1}, train)


def test_a_setting_that_a_run_did_not_know_has_its_default(tmp_path: Path) -> None:
    config = load_config(None, ["data=photos"]).model_dump(mode="json")
    older = {
        **config,
        "train": {key: value for key, value in config["train"].items() if key != "freeze_backbone_steps"},
    }
    task = Task(small=True, runs=tmp_path)
    keep_run(task, "a", {"config": older}, lambda: StoredRun({"score": 1}))
    kept = keep_run(task, "a", {"config": config}, lambda: StoredRun({"score": 2}))
    assert kept is not None
    assert kept.numbers == {"score": 1}
    keep_run(task, "unknown", {"config": {**config, "bogus": 1}}, lambda: StoredRun({}))
    with pytest.raises(ConfigError, match=r"unknown\.safetensors: bogus: unknown config key"):
        keep_run(task, "unknown", {"config": config}, lambda: StoredRun({}))
    other = {**config, "train": {**config["train"], "freeze_backbone_steps": 7}}
    with pytest.raises(ConfigError, match="other data or settings"):
        keep_run(task, "a", {"config": other}, lambda: StoredRun({"score": 2}))
