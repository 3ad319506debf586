"""The bounded cache of features on disk: what is saved, what is removed first, and that it changes no number."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import TINY, MakeFolder
from winnow.data import ArrayImages, CropTransform, load_images
from winnow.errors import ConfigError, OutputError
from winnow.models import Backbone, BackboneConfig, build_backbone
from winnow.training import RunDir, features, load_config, train
from winnow.training.config import first_difference
from winnow.training.features import FeatureStore, cache_limit, cached_chunks, extract_features, fits_cache, trim_cache

CPU = torch.device("cpu")
CROPS = CropTransform(resize=32, size=32)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WINNOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("WINNOW_CACHE_GB", raising=False)
    return tmp_path / "cache" / "features"


@pytest.fixture
def backbone() -> Backbone:
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="random"):
        return build_backbone(BackboneConfig(name="resnet20", weights="random"))


def add_chunk(folder: Path, key: str, used: float, values: int = 1000) -> Path:
    """Write a chunk of one map that was used at a time."""
    store = FeatureStore(folder)
    store.add([key], [torch.zeros(1, values)])
    index = next(one for one in folder.glob("*.json") if key in one.read_text())
    os.utime(index, (used, used))
    return index


def test_the_least_recently_used_features_are_removed_first(cache: Path) -> None:
    old, middle, new = (add_chunk(cache / f"net{n % 2}", f"k{n}", 1000.0 + n) for n in range(3))
    assert [one.index for one in cached_chunks()] == [old, middle, new]
    size = cached_chunks()[0].size
    assert size == old.stat().st_size + old.with_suffix(".npy").stat().st_size
    trim_cache(3 * size)
    assert len(cached_chunks()) == 3
    trim_cache(2 * size)
    assert [one.index for one in cached_chunks()] == [middle, new]
    assert not old.with_suffix(".npy").exists()
    trim_cache(0, in_use={middle})
    assert [one.index for one in cached_chunks()] == [middle]


def test_reading_features_makes_them_recently_used(cache: Path) -> None:
    first, second = (add_chunk(cache / "net", f"k{n}", 1000.0 + n) for n in range(2))
    store = FeatureStore(cache / "net")
    store.get(["k0"])
    assert store.used == {first}
    assert [one.index for one in cached_chunks()] == [second, first]


def test_auto_saves_files_within_half_of_the_limit(
    make_folder: MakeFolder, backbone: Backbone, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = load_images(make_folder())
    one = backbone.eval()(torch.zeros(1, 3, 32, 32)).nbytes
    limit = 2 * len(images) * one / 1e9
    monkeypatch.setenv("WINNOW_CACHE_GB", repr(limit * 0.99))
    assert not fits_cache(backbone, images, CROPS, CPU)
    ram, _ = extract_features(backbone, images, CROPS, CPU, cache="auto")
    assert cached_chunks() == []
    monkeypatch.setenv("WINNOW_CACHE_GB", repr(limit * 1.01))
    disk, _ = extract_features(backbone, images, CROPS, CPU, cache="auto")
    assert len(cached_chunks()) == 1
    monkeypatch.setattr(features, "iter_features", None)  # nothing is computed again
    again, _ = extract_features(backbone, images, CROPS, CPU, cache="auto")
    assert torch.equal(ram.whole(), disk.whole())
    assert torch.equal(ram.whole(), again.whole())
    arrays = ArrayImages(np.zeros((2, 32, 32, 3), np.uint8), np.zeros(2, np.int64), "zeros")
    assert not fits_cache(backbone, arrays, CROPS, CPU)


def test_a_full_disk_leaves_features_in_ram(
    make_folder: MakeFolder, backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OutputError("full")

    images = load_images(make_folder())
    monkeypatch.setattr(FeatureStore, "add", fail)
    found, _ = extract_features(backbone, images, CROPS, CPU, cache="auto")
    assert len(found.whole()) == len(images)
    with pytest.raises(OutputError):
        extract_features(backbone, images, CROPS, CPU, cache="disk")


def test_an_image_of_equal_path_size_and_time_but_other_content_is_another(
    make_folder: MakeFolder, backbone: Backbone
) -> None:
    root = make_folder()
    images = load_images(root)
    path = images.path(0)
    before, state = path.read_bytes(), path.stat()
    extract_features(backbone, images, CROPS, CPU, cache="disk")
    key = features._image_key(images, 0)
    path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert images.cache_key(0) == load_images(root).cache_key(0)
    assert features._image_key(images, 0) != key


@pytest.mark.parametrize("damage", ["bit", "cut", "list without checksum"])
def test_damaged_features_are_computed_again(
    make_folder: MakeFolder, backbone: Backbone, damage: str, recwarn: pytest.WarningsRecorder
) -> None:
    images = load_images(make_folder())
    before = extract_features(backbone, images, CROPS, CPU, cache="disk")[0].whole().clone()
    (chunk,) = cached_chunks()
    maps = chunk.index.with_suffix(".npy")
    content = bytearray(maps.read_bytes())
    if damage == "bit":
        content[len(content) // 2] ^= 1
    elif damage == "cut":
        del content[-100:]
    else:  # as version 0.1.0 wrote it
        chunk.index.write_text(json.dumps(json.loads(chunk.index.read_text())["keys"]))
        content[len(content) // 2] ^= 1
    maps.write_bytes(content)
    after, _ = extract_features(backbone, images, CROPS, CPU, cache="disk")
    assert torch.equal(before, after.whole())
    assert any(maps.name in str(one.message) for one in recwarn) == (damage == "bit")
    again, _ = extract_features(backbone, images, CROPS, CPU, cache="disk")
    assert torch.equal(before, again.whole())


@pytest.mark.parametrize("text", ["-1", "many", "nan", "inf"])
def test_a_limit_that_is_no_size_raises(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINNOW_CACHE_GB", text)
    with pytest.raises(ConfigError, match=f"got '{text}'"):
        cache_limit()


@pytest.mark.slow
def test_the_storage_changes_no_number_and_no_run(make_folder: MakeFolder, tmp_path: Path) -> None:
    data = make_folder()
    pretrained = ["backbone=tf_efficientnet_lite0", "backbone.weights=auto", "train.device=cpu"]
    words = [f"data={data}", *TINY, *pretrained, "image.resize=64", "image.crop=64"]
    metrics = []
    for name, storage in (("a", "ram"), ("b", "auto"), ("c", "auto")):
        config = load_config(None, [*words, f"data.feature_cache={storage}"])
        metrics.append(train(config, RunDir(tmp_path / name)).metrics)
        assert bool(cached_chunks()) == (storage == "auto")
    assert metrics[0] == metrics[1] == metrics[2]
    ram, auto = (load_config(None, [f"data.feature_cache={one}"]).model_dump(mode="json") for one in ("ram", "auto"))
    assert first_difference(ram, auto) is None


def test_random_weights_are_not_saved(make_folder: MakeFolder, tmp_path: Path) -> None:
    train(load_config(None, [f"data={make_folder()}", *TINY]), RunDir(tmp_path / "r"))
    assert cached_chunks() == []
