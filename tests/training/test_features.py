from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import MakeFolder
from winnow.data import Crops, load_images, resize_short
from winnow.errors import DataError, OutputError
from winnow.models import Backbone, BackboneConfig, build_backbone
from winnow.training import features, kept_features
from winnow.training.features import frozen_inputs
from winnow.training.inputs import FeatureInputs
from winnow.training.kept_features import KeptFeatures

CPU = torch.device("cpu")
CROPS = Crops(resize=32, size=32)


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


def test_features_in_ram_on_disk_and_found_again_are_the_same(
    make_folder: MakeFolder, backbone: Backbone, cache: Path
) -> None:
    images = load_images(make_folder())
    ram, _ = frozen_inputs(backbone, images, CROPS, CPU)
    disk, _ = frozen_inputs(backbone, images, CROPS, CPU, keep="disk")
    assert len(list(cache.iterdir())) == 1
    again, _ = frozen_inputs(backbone, images, CROPS, CPU, keep="disk")
    assert same(ram, disk)
    assert same(disk, again)


def test_features_equal_the_backbones_own(make_folder: MakeFolder, backbone: Backbone) -> None:
    images = load_images(make_folder())
    made, _ = frozen_inputs(backbone, images, CROPS, CPU)
    picture = torch.from_numpy(np.array(resize_short(images.read(5), 32))).permute(2, 0, 1) / 255
    with torch.no_grad():
        assert torch.allclose(made.whole()[5], backbone(picture[None])[0], atol=1e-3)


def test_damaged_features_are_made_again(make_folder: MakeFolder, backbone: Backbone, cache: Path) -> None:
    images = load_images(make_folder())
    good, _ = frozen_inputs(backbone, images, CROPS, CPU, keep="disk")
    expected = good.whole()
    file = next(cache.glob("*/*.npy"))
    file.write_bytes(file.read_bytes()[:200])
    again, _ = frozen_inputs(backbone, images, CROPS, CPU, keep="disk")
    assert torch.equal(again.whole(), expected)


@pytest.mark.parametrize("keep", ["ram", "disk"])
def test_labels_and_names_stay_with_their_features_when_images_are_skipped(
    make_folder: MakeFolder, backbone: Backbone, keep: str
) -> None:
    root = make_folder()
    whole, _ = frozen_inputs(backbone, load_images(root), CROPS, CPU)
    (root / "class_02" / "1.png").write_text("no image")
    made, skipped = frozen_inputs(backbone, load_images(root), CROPS, CPU, keep=keep, on_error="skip")
    assert [name for name, _ in skipped] == [str(Path("class_02") / "1.png")]
    assert len(made.maps) == len(whole.maps) - 1
    for row, name in enumerate(made.names):
        before = whole.names.index(name)
        assert torch.allclose(made.whole()[row], whole.whole()[before], atol=1e-4)
        assert made.labels[row] == whole.labels[before]


def counted(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the images that features are computed of, without those that fill a batch up."""
    seen: list[int] = []
    compute = features.in_full_batches

    def counting(backbone: Backbone, images: torch.Tensor, batch: int) -> torch.Tensor:
        seen.append(len(images))
        return compute(backbone, images, batch)

    monkeypatch.setattr(features, "in_full_batches", counting)
    return seen


def test_other_weights_or_crops_make_other_features_and_another_image_only_its_own(
    make_folder: MakeFolder, backbone: Backbone, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_folder()
    images = load_images(root)
    seen = counted(backbone, monkeypatch)
    frozen_inputs(backbone, images, CROPS, CPU, keep="disk")
    assert sum(seen) == len(images)
    frozen_inputs(backbone, images, Crops(resize=32, size=28), CPU, keep="disk")
    assert sum(seen) == 2 * len(images)
    first = images.read(0)
    first.transpose(Image.Transpose.FLIP_TOP_BOTTOM).save(root / images.name(0), compress_level=0)
    changed, _ = frozen_inputs(backbone, load_images(root), CROPS, CPU, keep="disk")
    assert sum(seen) == 2 * len(images) + 1
    assert same(changed, frozen_inputs(backbone, load_images(root), CROPS, CPU)[0])
    assert len(list(cache.iterdir())) == 2
    next(backbone.parameters()).data.mul_(2)
    frozen_inputs(backbone, load_images(root), CROPS, CPU, keep="disk")
    assert len(list(cache.iterdir())) == 3


def test_sets_with_images_in_common_share_their_features(
    make_folder: MakeFolder, backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = load_images(make_folder())
    first, second = images.of_classes([0, 1]), images.of_classes([2, 1])
    seen = counted(backbone, monkeypatch)
    frozen_inputs(backbone, first, CROPS, CPU, keep="disk")
    made, _ = frozen_inputs(backbone, second, CROPS, CPU, keep="disk")
    assert sum(seen) == len(images.of_classes([0, 1, 2]))
    assert same(made, frozen_inputs(backbone, second, CROPS, CPU)[0])


def test_a_stopped_process_loses_no_more_than_a_piece(
    make_folder: MakeFolder, backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = load_images(make_folder())
    monkeypatch.setattr(kept_features, "PIECE_BYTES", 1)  # a piece for every batch

    def stop(done: int, total: int) -> None:
        if done >= 2 * features.CPU_BATCH:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        frozen_inputs(backbone, images, CROPS, CPU, keep="disk", progress=stop)
    shown: list[tuple[int, int]] = []
    made, _ = frozen_inputs(backbone, images, CROPS, CPU, keep="disk", progress=lambda *two: shown.append(two))
    assert shown[-1] == (len(images) - 2 * features.CPU_BATCH,) * 2
    assert same(made, frozen_inputs(backbone, images, CROPS, CPU)[0])


def test_features_that_another_process_made_meanwhile_do_no_harm(make_folder: MakeFolder, backbone: Backbone) -> None:
    images = load_images(make_folder())
    theirs: list[FeatureInputs] = []

    def meanwhile(done: int, total: int) -> None:
        if not theirs:
            theirs.append(frozen_inputs(backbone, images, CROPS, CPU, keep="disk")[0])

    mine, _ = frozen_inputs(backbone, images, CROPS, CPU, keep="disk", progress=meanwhile)
    expected, _ = frozen_inputs(backbone, images, CROPS, CPU)
    assert same(mine, expected)
    assert same(theirs[0], expected)


def test_images_that_cannot_be_read_are_skipped_again_when_all_others_are_kept(
    make_folder: MakeFolder, backbone: Backbone
) -> None:
    root = make_folder()
    (root / "class_02" / "1.png").write_text("no image")
    first = frozen_inputs(backbone, load_images(root), CROPS, CPU, keep="disk", on_error="skip")
    second = frozen_inputs(backbone, load_images(root), CROPS, CPU, keep="disk", on_error="skip")
    assert len(first[1]) == 1
    assert first[1] == second[1]
    assert same(first[0], second[0])
    with pytest.raises(DataError, match="class_02"):
        frozen_inputs(backbone, load_images(root), CROPS, CPU, keep="disk")


def test_a_place_that_cannot_be_written_is_named_and_leaves_no_half_a_piece(
    make_folder: MakeFolder, backbone: Backbone, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: object, maps: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OutputError, match=r"No space left.*WINNOW_CACHE"):
        frozen_inputs(backbone, load_images(make_folder()), CROPS, CPU, keep="disk")
    assert list(cache.glob("*/*")) == list(cache.glob("*/.*")) == []


def test_what_killed_processes_left_is_cleared_away_but_not_what_is_being_written(tmp_path: Path) -> None:
    old, new = tmp_path / ".partial-old", tmp_path / ".partial-new"
    for file in (old, new):
        file.write_bytes(b"1")
    os.utime(old, (0, 0))
    KeptFeatures(tmp_path)
    assert not old.exists()
    assert new.exists()
