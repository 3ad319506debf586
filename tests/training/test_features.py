"""Frozen features in RAM and on disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import MakeFolder
from winnow.data import CropTransform, load_images, resize_short
from winnow.errors import DataError, OutputError
from winnow.models import Backbone, BackboneConfig, build_backbone
from winnow.training import features
from winnow.training.features import FeatureStore, extract_features
from winnow.training.inputs import FeatureInputs

CPU = torch.device("cpu")
CROPS = CropTransform(resize=32, size=32)


@pytest.fixture
def backbone() -> Backbone:
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="random"):
        return build_backbone(BackboneConfig(name="resnet20", weights="random"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WINNOW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "features"


def same(a: FeatureInputs, b: FeatureInputs) -> bool:
    return torch.equal(a.whole(), b.whole()) and np.array_equal(a.labels, b.labels) and a.names == b.names


def test_features_in_ram_on_disk_and_reopened_are_equal(
    make_folder: MakeFolder, backbone: Backbone, cache: Path
) -> None:
    images = load_images(make_folder())
    ram, _ = extract_features(backbone, images, CROPS, CPU)
    disk, _ = extract_features(backbone, images, CROPS, CPU, cache="disk")
    assert len(list(cache.iterdir())) == 1
    again, _ = extract_features(backbone, images, CROPS, CPU, cache="disk")
    assert same(ram, disk)
    assert same(disk, again)


def test_features_equal_the_backbone_output(make_folder: MakeFolder, backbone: Backbone) -> None:
    images = load_images(make_folder())
    made, _ = extract_features(backbone, images, CROPS, CPU)
    picture = torch.from_numpy(np.array(resize_short(images.read(5), 32))).permute(2, 0, 1) / 255
    with torch.no_grad():
        assert torch.allclose(made.whole()[5], backbone(picture[None])[0], atol=1e-3)


def test_damaged_features_are_computed_again(make_folder: MakeFolder, backbone: Backbone, cache: Path) -> None:
    images = load_images(make_folder())
    good, _ = extract_features(backbone, images, CROPS, CPU, cache="disk")
    expected = good.whole()
    file = next(cache.glob("*/*.npy"))
    file.write_bytes(file.read_bytes()[:200])
    again, _ = extract_features(backbone, images, CROPS, CPU, cache="disk")
    assert torch.equal(again.whole(), expected)


@pytest.mark.parametrize("keep", ["ram", "disk"])
def test_labels_and_names_match_features_when_images_are_skipped(
    make_folder: MakeFolder, backbone: Backbone, keep: str
) -> None:
    root = make_folder()
    whole, _ = extract_features(backbone, load_images(root), CROPS, CPU)
    (root / "class_02" / "1.png").write_text("no image")
    made, skipped = extract_features(backbone, load_images(root), CROPS, CPU, cache=keep, on_error="skip")
    assert [name for name, _ in skipped] == [str(Path("class_02") / "1.png")]
    assert len(made.maps) == len(whole.maps) - 1
    for row, name in enumerate(made.names):
        before = whole.names.index(name)
        assert torch.allclose(made.whole()[row], whole.whole()[before], atol=1e-4)
        assert made.labels[row] == whole.labels[before]


def counted(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the images whose features are computed, without the padding of a batch."""
    seen: list[int] = []
    compute = features.compute_in_full_batches

    def counting(backbone: Backbone, images: torch.Tensor, batch: int) -> torch.Tensor:
        seen.append(len(images))
        return compute(backbone, images, batch)

    monkeypatch.setattr(features, "compute_in_full_batches", counting)
    return seen


def test_cache_key_is_weights_crop_and_image(
    make_folder: MakeFolder, backbone: Backbone, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_folder()
    images = load_images(root)
    seen = counted(backbone, monkeypatch)
    extract_features(backbone, images, CROPS, CPU, cache="disk")
    assert sum(seen) == len(images)
    extract_features(backbone, images, CropTransform(resize=32, size=28), CPU, cache="disk")
    assert sum(seen) == 2 * len(images)
    first = images.read(0)
    first.transpose(Image.Transpose.FLIP_TOP_BOTTOM).save(root / images.name(0), compress_level=0)
    changed, _ = extract_features(backbone, load_images(root), CROPS, CPU, cache="disk")
    assert sum(seen) == 2 * len(images) + 1
    assert same(changed, extract_features(backbone, load_images(root), CROPS, CPU)[0])
    assert len(list(cache.iterdir())) == 2
    next(backbone.parameters()).data.mul_(2)
    extract_features(backbone, load_images(root), CROPS, CPU, cache="disk")
    assert len(list(cache.iterdir())) == 3


def test_overlapping_image_sets_share_features(
    make_folder: MakeFolder, backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = load_images(make_folder())
    first, second = images.select_classes([0, 1]), images.select_classes([2, 1])
    seen = counted(backbone, monkeypatch)
    extract_features(backbone, first, CROPS, CPU, cache="disk")
    made, _ = extract_features(backbone, second, CROPS, CPU, cache="disk")
    assert sum(seen) == len(images.select_classes([0, 1, 2]))
    assert same(made, extract_features(backbone, second, CROPS, CPU)[0])


def test_interruption_loses_at_most_one_chunk(
    make_folder: MakeFolder, backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = load_images(make_folder())
    monkeypatch.setattr(features, "CHUNK_BYTES", 1)  # a piece for every batch

    def stop(done: int, total: int) -> None:
        if done >= 2 * features.CPU_BATCH:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract_features(backbone, images, CROPS, CPU, cache="disk", progress=stop)
    shown: list[tuple[int, int]] = []
    made, _ = extract_features(backbone, images, CROPS, CPU, cache="disk", progress=lambda *two: shown.append(two))
    assert shown[-1] == (len(images) - 2 * features.CPU_BATCH,) * 2
    assert same(made, extract_features(backbone, images, CROPS, CPU)[0])


def test_features_of_a_concurrent_process_are_compatible(make_folder: MakeFolder, backbone: Backbone) -> None:
    images = load_images(make_folder())
    theirs: list[FeatureInputs] = []

    def meanwhile(done: int, total: int) -> None:
        if not theirs:
            theirs.append(extract_features(backbone, images, CROPS, CPU, cache="disk")[0])

    mine, _ = extract_features(backbone, images, CROPS, CPU, cache="disk", progress=meanwhile)
    expected, _ = extract_features(backbone, images, CROPS, CPU)
    assert same(mine, expected)
    assert same(theirs[0], expected)


def test_unreadable_images_are_skipped_again_when_all_others_are_cached(
    make_folder: MakeFolder, backbone: Backbone
) -> None:
    root = make_folder()
    (root / "class_02" / "1.png").write_text("no image")
    first = extract_features(backbone, load_images(root), CROPS, CPU, cache="disk", on_error="skip")
    second = extract_features(backbone, load_images(root), CROPS, CPU, cache="disk", on_error="skip")
    assert len(first[1]) == 1
    assert first[1] == second[1]
    assert same(first[0], second[0])
    with pytest.raises(DataError, match="class_02"):
        extract_features(backbone, load_images(root), CROPS, CPU, cache="disk")


def test_full_disk_names_the_folder_and_leaves_no_partial_chunk(
    make_folder: MakeFolder, backbone: Backbone, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: object, maps: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OutputError, match=r"No space left.*WINNOW_CACHE"):
        extract_features(backbone, load_images(make_folder()), CROPS, CPU, cache="disk")
    assert list(cache.glob("*/*")) == list(cache.glob("*/.*")) == []


def test_only_abandoned_partial_files_are_removed(tmp_path: Path) -> None:
    old, new = tmp_path / ".partial-old", tmp_path / ".partial-new"
    for file in (old, new):
        file.write_bytes(b"1")
    os.utime(old, (0, 0))
    FeatureStore(tmp_path)
    assert not old.exists()
    assert new.exists()
