"""The study of collages: which runs it plans, what it says of them, and all of it on a few made-up pictures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from winnow.data.datasets import DATASETS, CIFARCollage
from winnow.data.datasets.cifar import CIFAR100_CLASSES
from winnow.errors import DataError
from winnow.pooling import POOLINGS
from winnow.studies import collage, collage_pictures
from winnow.studies.base import Task, write_findings
from winnow.studies.collage import DISTILLED, FULL, SMALL, TRAINING
from winnow.studies.collage_report import table, told
from winnow.studies.pretraining import Recipe
from winnow.studies.synthetic_images import write_cifar
from winnow.training.objective import check_components, check_objective

TINY = replace(
    SMALL,
    methods=("GAP", "GSP", DISTILLED),
    words=["backbone.train=frozen", "train.max_steps=2", "train.eval_steps=1", "train.device=cpu"],
    recipe=Recipe(epochs=1, batch=20, lr=0.05),
    made=(1, 1),
)


def result(value: float, seed: int = 0) -> dict[str, Any]:
    metrics = {"test": {"MAP@R": value / 100, "P@1": 0.5}}
    return {"config": {"seed": seed}, "steps": 1500, "best_step": 0 if value == 55 else 900, "metrics": metrics}


def test_parts_share_no_classes() -> None:
    collages = DATASETS["cifar_collage"]
    assert isinstance(collages, CIFARCollage)
    parts = {part: set(collages.classes_of(part)) for part in ("train", "val", "test")}
    assert [len(classes) for classes in parts.values()] == [40, 20, 40]
    assert set().union(*parts.values()) == set(CIFAR100_CLASSES)


def test_every_pooling_takes_part_with_both_losses_and_backbones(tmp_path: Path) -> None:
    compared = collage.comparison(FULL, tmp_path, None)
    planned = [compared.plan(method, 0, Task(True, runs=tmp_path)).config for method in compared.methods]
    for config in planned:
        check_components(config)
        check_objective(config)
        assert (config.train.classes_per_batch, config.train.samples_per_class, config.train.lr) == (16, 4, 1e-3)
        assert (config.plateau.factor, config.plateau.patience) == (0.5, 5)
        alone = config.data.path == "cifar_collage_distilled"
        assert config.image.crop == config.image.resize == (32 if alone else 64)
    tried = {(config.pooling.name, config.loss.name, config.backbone.weights) for config in planned}
    files = [str(path) for path in collage.weights_of(tmp_path).values()]
    names = set(POOLINGS) - {"rk_fbp"}  # of no source with collages
    assert tried == {(name, loss, path) for name in names for loss in ("c2", "proxy_nca") for path in files}
    gsp = planned[1]
    assert [getattr(gsp.pooling, key) for key in ("name", "num_prototypes", "mu", "eps")] == ["gsp", 64, 0.2, 10.0]
    assert {config.zsr.weight for config in planned} == {0.0, 0.5}
    names = [
        compared.plan(method, seed, Task(True, runs=tmp_path)).run_dir.path
        for method in compared.methods
        for seed in FULL.seeds
    ]
    assert len(set(names)) == len(names) == 4 * len(collage.METHODS) * len(FULL.seeds)
    # What is trained first: the backbone that has seen no test class, and the pooling in question.
    first = [method.name for method in compared.methods[:4]]
    assert first == [f"{name}, C2, {TRAINING}" for name in ("GAP", "GSP", "GSP + ZSR", DISTILLED)]
    assert [len(config.data.path) for config in planned[:3]] == [len("cifar_collage")] * 3


def test_made_up_files_are_read_as_the_original(tmp_path: Path) -> None:
    write_cifar(tmp_path, train=2, test=1)
    cifar, collages = DATASETS["cifar100"].load(tmp_path), DATASETS["cifar_collage"].load(tmp_path)
    assert np.bincount(cifar.train.labels).tolist() == [2] * 100
    assert [len(images) for images in (collages.train, collages.val or (), collages.test)] == [96, 48, 96]
    assert collages.missing["test"]["found"] == 96
    stamp = (tmp_path / "train.bin").stat().st_mtime_ns
    write_cifar(tmp_path, train=2, test=1)
    assert (tmp_path / "train.bin").stat().st_mtime_ns == stamp


def test_the_whole_study_on_a_few_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collage, "LOSSES", {"C2": collage.LOSSES["C2"]})
    monkeypatch.setattr(collage_pictures, "_SHOWN", 1)
    notes: list[str] = []
    task = Task(small=True, runs=tmp_path / "runs", note=notes.append)
    found = collage.run(task, TINY)
    assert [row["pooling"] for row in found.rows] == list(TINY.methods)
    assert all(row[f"C2, {seen}"] is not None for row in found.rows for seen in collage.weights_of(task.runs))
    assert "missing" not in found.rows[0]
    assert "40 training images of 40 classes" in found.text
    assert "100 training images of 100 classes" in found.text
    assert "which this size is too small to check" in found.text
    assert "other poolings are left to the full size" in found.text
    assert len(found.details["runs"]) == 6
    assert list(found.pictures) == ["heat_maps"]
    assert (tmp_path / "out" / "collage_heat_maps.png") in write_findings("collage", found, tmp_path / "out")
    assert len(found.figure.axes) == 2
    json.dumps(found.details)

    # Again: nothing is trained, not even begun.
    stamps = {path: path.stat().st_mtime_ns for path in task.runs.rglob("*.safetensors")}
    again = collage.run(replace(task, only_finished=True), TINY)
    assert again.rows == found.rows
    assert again.text == found.text
    assert {path: path.stat().st_mtime_ns for path in task.runs.rglob("*.safetensors")} == stamps


def test_without_data_nothing_is_trained_and_all_is_missing(tmp_path: Path) -> None:
    task = Task(small=False, data=tmp_path / "none", runs=tmp_path / "runs", only_finished=True)
    found = collage.run(task, FULL)
    assert "0 of 288 runs are in: `winnow study collage --full`" in found.text
    assert not found.rows
    with pytest.raises(DataError, match="folder of CIFAR"):
        collage.run(replace(task, only_finished=False), FULL)
    assert not list(tmp_path.rglob("config.yaml"))


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"DeLF": 40.0}, "of 1 other poolings none is ahead of GSP (as the documents report)"),
        ({"NetVLAD 8x16": 60.0}, "ahead of GSP is NetVLAD 8x16 (as the documents report)"),
        ({"DeLF": 60.0}, "ahead of GSP is DeLF (unlike what the documents report)"),
        ({"DeLF": None}, "; no other pooling is in."),
        (
            {"GMP": 40.0, "DeLF": None},
            "of 1 other poolings none is ahead of GSP (others are missing, so that it cannot",
        ),
        ({"GAP": 40.0}, "(one seed): GSP +7.0 (unlike what the documents report)"),
        ({"GAP": 28.0}, "(one seed): GSP +19.0 (as the documents report)"),
    ],
)
def test_the_text_stands_beside_the_documents(others: dict[str, float | None], said: str) -> None:
    values = {"GAP": 30.0, "GSP": 47.0, "GSP + ZSR": 48.5, DISTILLED: 55.0} | others
    found = {(TRAINING, "C2"): {name: [] if value is None else [result(value)] for name, value in values.items()}}
    text = told(found, {TRAINING: None}, (0,), "winnow study collage --full", frozen=False, made=False)
    assert said in text
    bound = f"the foreground alone, as pretrained, {55 - values['GAP']:+.1f}"
    assert f"with ZSR {48.5 - values['GAP']:+.1f}; {bound}" in text
    assert ("runs are in" in text) == (None in values.values())
    assert f"Training made nothing better, by validation, of {DISTILLED} (C2, training classes)." in text
    assert "at most 1,500 steps" in text


def test_a_rival_within_the_deviation_of_seeds_is_not_ahead() -> None:
    by_name = {"GAP": [result(30), result(30, 1)], "GSP": [result(45), result(49, 1)], "DeLF": [result(48)]}
    text = told({(TRAINING, "C2"): by_name}, {}, (0, 1), "", frozen=False, made=False)
    assert "(seeds deviate by up to 2.8): GSP +17.0 (as the documents report)" in text
    assert "ahead of GSP is DeLF (as the documents report)" in text


def test_the_table_has_means_deviations_and_the_runs_behind_them() -> None:
    found = {
        (TRAINING, "C2"): {"GAP": [result(20, 0), result(24, 1)], "GSP": []},
        (TRAINING, "PNCA"): {"GAP": [result(30, 0)], "GSP": [result(31, 1)]},
    }
    rows = table(found, (0, 1))
    assert rows[0][f"C2, {TRAINING}"] == 22.0
    assert rows[0][f"C2, {TRAINING}: sd"] == pytest.approx(2.83)
    assert [row["runs"] for row in rows] == ["3 of 4", "1 of 4"]
    assert rows[1][f"C2, {TRAINING}"] is None
    assert f"PNCA, {TRAINING}: sd" not in rows[0]  # no pooling has two seeds there
    found[TRAINING, "PNCA"]["GSP"] = []
    assert [row["pooling"] for row in table(found, (0, 1))] == ["GAP"], "a pooling without runs has no row"


def test_zsr_that_undoes_a_training_is_told() -> None:
    found = {(TRAINING, "C2"): {"GSP": [result(20, 0)], "GSP + ZSR": [result(3, 0)]},
             (TRAINING, "PNCA"): {"GSP": [result(20, 0)], "GSP + ZSR": [result(19, 0)]}}  # fmt: skip
    text = told(found, {}, (0,), "", frozen=False, made=False)
    assert "Beside GSP and with C2 the documents' weight of ZSR overrules the loss" in text
    del found[TRAINING, "C2"]
    assert "overrules" not in told(found, {}, (0,), "", frozen=False, made=False)
