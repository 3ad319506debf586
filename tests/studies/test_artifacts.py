"""Results that studies store in a form of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from winnow.errors import ConfigError, DataError
from winnow.studies import Scale, StudyRequest
from winnow.studies.artifacts import StoredRun, keep_run, require_run
from winnow.training import load_config


def test_a_run_is_trained_once_and_read_as_it_was(tmp_path: Path) -> None:
    made = StoredRun(
        {"score": 0.1 + 0.2, "problems": [1, None]}, {"points": torch.rand(3, 2)[:, :1], "labels": torch.arange(3)}
    )
    trained: list[StoredRun] = []

    def train() -> StoredRun:
        trained.append(made)
        return made

    settings = {"method": "a", "seed": 0, "fractions": (0.5, 0.1)}
    request = StudyRequest(Scale("quick"), tmp_path / "runs")
    finished = replace(request, train=False)
    assert keep_run(finished, "a-seed0", settings, train) is None
    with pytest.raises(DataError, match="a-seed0"):
        require_run(finished, "a-seed0", settings, train)
    assert not trained
    for each in (request, request, finished):
        stored = require_run(each, "a-seed0", settings, train)
        assert stored.numbers == made.numbers
        assert stored.tensors.keys() == made.tensors.keys()
        assert all(torch.equal(stored.tensors[key], made.tensors[key]) for key in made.tensors)
    assert len(trained) == 1
    with pytest.raises(ConfigError, match=r"a-seed0\.safetensors"):
        keep_run(request, "a-seed0", {**settings, "seed": 1}, train)


def test_a_newer_setting_has_its_default_in_older_runs(tmp_path: Path) -> None:
    config = load_config(None, ["data=photos"]).model_dump(mode="json")
    older = {
        **config,
        "train": {key: value for key, value in config["train"].items() if key != "freeze_backbone_steps"},
    }
    request = StudyRequest(Scale("quick"), tmp_path)
    keep_run(request, "a", {"config": older}, lambda: StoredRun({"score": 1}))
    stored = keep_run(request, "a", {"config": config}, lambda: StoredRun({"score": 2}))
    assert stored is not None
    assert stored.numbers == {"score": 1}
    keep_run(request, "unknown", {"config": {**config, "bogus": 1}}, lambda: StoredRun({}))
    with pytest.raises(ConfigError, match=r"unknown\.safetensors: bogus: unknown config key"):
        keep_run(request, "unknown", {"config": config}, lambda: StoredRun({}))
    other = {**config, "train": {**config["train"], "freeze_backbone_steps": 7}}
    with pytest.raises(ConfigError, match="other data or settings"):
        keep_run(request, "a", {"config": other}, lambda: StoredRun({"score": 2}))
