"""The study of CIFAR Collage: planned runs, claims, and a whole run on a few synthetic images."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.studies.grids import made_up
from winnow.data.datasets import DATASETS, CIFARCollage
from winnow.data.datasets.cifar import CIFAR100_CLASSES
from winnow.errors import DataError
from winnow.pooling import POOLINGS
from winnow.report.claims import Verdict
from winnow.studies import StudyRequest, Variant, collage
from winnow.studies.collage import ALL, COLLAGE, DISTILLED, TRAINING
from winnow.studies.pretraining import Recipe
from winnow.studies.runner import plan_grid, run_study
from winnow.studies.scores import check_claims
from winnow.studies.settings import train
from winnow.studies.synthetic_images import write_cifar

FULL = COLLAGE.scales["full"]


def test_splits_have_no_class_in_common() -> None:
    collages = DATASETS["cifar_collage"]
    assert isinstance(collages, CIFARCollage)
    classes = {split: set(collages.classes_of(split)) for split in ("train", "val", "test")}
    assert [len(each) for each in classes.values()] == [40, 20, 40]
    assert set().union(*classes.values()) == set(CIFAR100_CLASSES)


def test_every_pooling_is_trained_with_both_losses_from_both_backbones(tmp_path: Path) -> None:
    request = StudyRequest(FULL, tmp_path, train=False)
    plan = plan_grid(COLLAGE.located(request), request)
    files = collage.weights_of(tmp_path)
    trained = set()
    for variant, _, run in plan:
        config, alone = run.config, variant.name.startswith(DISTILLED)
        assert config.backbone.weights == str(files[ALL if variant.name.endswith(ALL) else TRAINING])
        assert (config.train.classes_per_batch, config.train.samples_per_class, config.train.lr) == (16, 4, 1e-3)
        assert config.data.path == ("cifar_collage_distilled" if alone else "cifar_collage")
        assert config.image.crop == config.image.resize == (32 if alone else 64)
        assert config.zsr.weight == (0.5 if "ZSR" in variant.name else 0)
        trained.add((config.pooling.name, config.loss.name, config.backbone.weights))
    names = set(POOLINGS) - {"rk_fbp"}  # of no source with collages
    assert trained == {
        (name, loss, str(file)) for name in names for loss in ("c2", "proxy_nca") for file in files.values()
    }
    gsp = next(run.config.pooling for variant, _, run in plan if variant.name.startswith("GSP, "))
    assert [getattr(gsp, key) for key in ("name", "num_prototypes", "mu", "eps")] == ["gsp", 64, 0.2, 10.0]


def test_claims_compare_gsp_with_average_pooling_and_the_others() -> None:
    scale = replace(FULL, seeds=(0, 1, 2))

    def score(variant: Variant, seed: int) -> float:
        base = {"GAP": 30.0, "GSP": 47.5, "NetVLAD 8x16": 60.0, DISTILLED: 70.0, "ZSR alone (mu = 1)": 80.0}
        name = variant.name.removesuffix(f", {variant.group}")
        return base.get(name, 40.0) + [-1, 0, 1][seed] * (name == "GSP")

    found = {one.text: one for one in check_claims(COLLAGE.claims, made_up(COLLAGE, scale, score), scale)}
    for place in collage.PLACES:
        gain = found[f"{place}: GSP improves on GAP by 17 points"]
        assert gain.difference is not None
        assert gain.difference.mean == pytest.approx(17.5)
        assert gain.verdict is Verdict.REPRODUCED  # 17 is within 17.5 -+ 2.5
    first = {text: one for text, one in found.items() if "on all other poolings" in text}
    for text, one in first.items():
        best = 40.0 if text.startswith("C2") else 60.0  # NetVLAD is exempt with C2
        assert one.difference is not None
        assert one.difference.mean == pytest.approx(47.5 - best)
        assert one.verdict is (Verdict.REPRODUCED if text.startswith("C2") else Verdict.NOT_REPRODUCED)
    assert len(first) == 4


def test_synthetic_files_are_read_as_cifar(tmp_path: Path) -> None:
    write_cifar(tmp_path, train=2, test=1)
    cifar, collages = DATASETS["cifar100"].load(tmp_path), DATASETS["cifar_collage"].load(tmp_path)
    assert np.bincount(cifar.train.labels).tolist() == [2] * 100
    assert [len(images) for images in (collages.train, collages.val or (), collages.test)] == [96, 48, 96]
    assert collages.missing["test"]["found"] == 96
    stamp = (tmp_path / "train.bin").stat().st_mtime_ns
    write_cifar(tmp_path, train=2, test=1)
    assert (tmp_path / "train.bin").stat().st_mtime_ns == stamp


@pytest.mark.slow
def test_study_pretrains_trains_and_explains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collage, "LOSSES", {"C2": collage.LOSSES["C2"]})
    monkeypatch.setattr(collage, "QUICK", ("GAP", "GSP", DISTILLED))
    monkeypatch.setattr(collage, "SYNTHETIC", (1, 1))
    monkeypatch.setattr(collage, "RECIPES", {"quick": Recipe(epochs=1, batch=20, lr=0.05)})
    monkeypatch.setattr(collage, "EXAMPLES", 1)
    quick = COLLAGE.scales["quick"]
    scale = replace(quick, base=quick.base | train(max_steps=2, eval_steps=1, device="cpu"))
    request = StudyRequest(scale, tmp_path / "runs")
    report = run_study(COLLAGE, request)
    names = [f"{name}, C2, {classes}" for classes in (TRAINING, ALL) for name in ("GAP", "GSP", DISTILLED)]
    assert [row["method"] for row in report.rows] == names
    for row in report.rows:
        runs = [run for run in report.runs if run["method"] == row["method"]]
        assert row["MAP@R"] == round(100 * statistics.mean(run["metrics"]["test"]["MAP@R"] for run in runs), 2)
    pretraining = report.to_dict()["pretraining"]
    assert [(one["images"], one["classes"]) for one in pretraining.values()] == [(40, 40), (100, 100)]
    assert list(report.figures) == ["", "heat_maps"]
    assert len(report.figures[""].axes) == 2
    assert len(report.figures["heat_maps"].axes) == 2 * 3  # a training and a test collage, alone and with two models

    stamps = {path: path.stat().st_mtime_ns for path in request.runs.rglob("*.safetensors")}
    again = run_study(COLLAGE, replace(request, train=False))
    assert again.rows == report.rows
    assert {path: path.stat().st_mtime_ns for path in request.runs.rglob("*.safetensors")} == stamps


@pytest.mark.slow
def test_nothing_is_trained_without_data(tmp_path: Path) -> None:
    request = StudyRequest(FULL, tmp_path / "runs", tmp_path / "none")
    with pytest.raises(DataError, match="no run of the study collage is finished"):
        run_study(COLLAGE, replace(request, train=False))
    with pytest.raises(DataError, match="CIFAR"):
        run_study(COLLAGE, request)
    assert not list(tmp_path.rglob("config.yaml"))
