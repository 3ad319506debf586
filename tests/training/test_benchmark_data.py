"""Training on benchmark datasets by name: folds, queries with a gallery, and missing images in the result."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.conftest import TINY
from tests.data import synthetic_datasets
from winnow import Embedder
from winnow.cli.main import app
from winnow.data.datasets import CUB200, DATASETS, InShop
from winnow.errors import ConfigError, DataError
from winnow.training import RunDir, load_config, train
from winnow.training.build import load_splits
from winnow.training.run import evaluate_run
from winnow.training.run_dir import ImageSetFingerprint

QUICK = [*TINY, "train.max_steps=4", "train.eval_steps=2"]


@pytest.fixture
def inshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small In-shop dataset; one gallery image is missing and recorded as missing."""
    small = InShop(train=32, queries=12, gallery=12, train_classes=8, test_classes=6)
    monkeypatch.setitem(DATASETS._datasets, "inshop", small)
    root = tmp_path / "inshop"
    synthetic_datasets.inshop(root, size=32)
    next((root / "Img/img/WOMEN/Dresses/id_00000009").glob("02*")).unlink()
    small.accept_missing(root, small.check(root)[1])
    return root


def by_hand(embedder: Embedder, root: Path, ks: tuple[int, ...]) -> dict[str, float]:
    """Compute R@k of queries in a gallery with loops."""
    found = DATASETS["inshop"].load(root)
    assert found.gallery is not None
    queries, gallery = (
        embedder.encode([images.read(i) for i in range(len(images))]) for images in (found.test, found.gallery)
    )
    hits: dict[int, list[float]] = {k: [] for k in ks}
    for query, label in zip(queries, found.test.labels, strict=True):
        order = np.argsort(((gallery - query) ** 2).sum(axis=1), kind="stable")
        right = found.gallery.labels[order] == label
        for k in ks:
            hits[k].append(float(right[:k].any()))
    return {f"R@{k}": float(np.mean(values)) for k, values in hits.items()}


@pytest.mark.parametrize("settings", [["data.fold=1"], ["data.val_classes=test"]], ids=["fold", "conventional"])
@pytest.mark.parametrize("mode", ["frozen", "full"])
def test_queries_are_searched_in_their_gallery(inshop: Path, tmp_path: Path, settings: list[str], mode: str) -> None:
    words = [*QUICK, "data=inshop", f"data.root={inshop}", f"backbone.train={mode}", "train.save_embeddings=true"]
    folder = RunDir(tmp_path / "run")
    with pytest.warns(UserWarning, match="random"):
        result = train(load_config(None, [*words, *settings]), folder)
    test = result.metrics["test"]
    for metrics in (test, result.metrics["val"], result.untrained["test"], result.untrained["val"]):
        assert [name for name in metrics if name.startswith("R@")] == ["R@1", "R@10", "R@20", "R@30", "R@40"]
    assert {name: value for name, value in test.items() if name.startswith("R@")} == pytest.approx(
        by_hand(Embedder.from_pretrained(folder.model_folder), inshop, (1, 10, 20, 30, 40)), abs=1e-6
    )
    kept = json.loads(folder.result_file.read_text())["data"]
    assert kept["queries"] == 12
    assert kept["images"]["gallery"] == 11
    assert kept["missing"]["gallery"]["expected"] == 12
    assert "id_00000009/02_1_front.jpg" in kept["missing"]["gallery"]["names"][0]
    embeddings, labels = folder.read_embeddings()
    assert len(embeddings) == len(labels) == 23
    loaded = DATASETS["inshop"].load(inshop)
    assert loaded.gallery is not None
    names = [part.name(i) for part in (loaded.test, loaded.gallery) for i in range(len(part))]
    assert folder.read_images() == ImageSetFingerprint.compute(labels, names)
    if settings == ["data.val_classes=test"]:
        assert kept["images"]["train"] == 32
        assert result.metrics["val"]["MAP@R"] == pytest.approx(test["MAP@R"])
    else:
        assert kept["classes"] == {"train": 6, "val": 2, "test": 6, "gallery": 6}
    assert evaluate_run(folder).metrics()["R@1"] == pytest.approx(test["R@1"])
    told = json.loads(CliRunner().invoke(app, ["evaluate", str(folder.path), "--json"]).stdout)
    assert told["queries"] == 12
    assert told["missing"] == kept["missing"]


def test_contradictory_data_settings_are_rejected(inshop: Path, tmp_path: Path) -> None:
    named = ["data=inshop", f"data.root={inshop}"]
    assert len(load_splits(load_config(None, [*named, "data.num_folds=2", "data.fold=2"])).val.class_names) == 4
    for words, told in (
        ([*named, "data.train_classes=1-4", "data.val_classes=5-8"], r"data\.train_classes: inshop has its own"),
        ([*named, "data.val_classes=5-8"], r"data\.val_classes: inshop has its own"),
        ([*named, "data.fold=5"], r"data\.fold=5: expected 1-4"),
        (["data=emoji", "data.fold=1"], r"data\.fold: requires a benchmark dataset"),
        ([f"data={tmp_path}", "data.root=x"], r"data\.root: requires a benchmark dataset"),
    ):
        with pytest.raises(ConfigError, match=told):
            load_splits(load_config(None, words))
    with pytest.raises(DataError, match=r"folder of In-shop"):
        load_splits(load_config(None, ["data=inshop", f"data.root={tmp_path / 'nowhere'}"]))


def test_dataset_name_selects_the_default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS._datasets, "cub200", CUB200(train=24, test=24, classes=8))
    monkeypatch.setenv("WINNOW_DATA", str(tmp_path))
    synthetic_datasets.cub(tmp_path / "cub200", classes=16)
    splits = load_splits(load_config(None, ["data=cub200"]))
    assert splits.val.class_names == ("007.Bird_7", "008.Bird_8")
    assert splits.ks == (1, 2, 4, 8)
