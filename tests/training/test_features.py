from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import MakeFolder
from winnow.data import Crops, load_images, resize_short
from winnow.models import Backbone, BackboneConfig, build_backbone
from winnow.training.features import frozen_inputs
from winnow.training.inputs import FeatureInputs

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
    return torch.equal(a.maps, b.maps) and np.array_equal(a.labels, b.labels) and a.names == b.names


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
        assert torch.allclose(made.maps[5], backbone(picture[None])[0], atol=1e-3)


def test_damaged_features_are_made_again(make_folder: MakeFolder, backbone: Backbone, cache: Path) -> None:
    images = load_images(make_folder())
    good, _ = frozen_inputs(backbone, images, CROPS, CPU, keep="disk")
    expected = good.maps.clone()
    file = next(cache.iterdir()) / "maps.npy"
    file.write_bytes(file.read_bytes()[:200])
    again, _ = frozen_inputs(backbone, images, CROPS, CPU, keep="disk")
    assert torch.equal(again.maps, expected)


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
        assert torch.allclose(made.maps[row], whole.maps[before], atol=1e-4)
        assert made.labels[row] == whole.labels[before]


def test_other_weights_images_or_crops_make_other_features(
    make_folder: MakeFolder, backbone: Backbone, cache: Path
) -> None:
    root = make_folder()
    frozen_inputs(backbone, load_images(root), CROPS, CPU, keep="disk")
    frozen_inputs(backbone, load_images(root), Crops(resize=32, size=28), CPU, keep="disk")
    (root / "class_00" / "0.png").unlink()
    frozen_inputs(backbone, load_images(root), CROPS, CPU, keep="disk")
    next(backbone.parameters()).data.mul_(2)
    frozen_inputs(backbone, load_images(root), CROPS, CPU, keep="disk")
    assert len(list(cache.iterdir())) == 4


def test_features_that_another_process_made_meanwhile_stay(
    make_folder: MakeFolder, backbone: Backbone, cache: Path
) -> None:
    images = load_images(make_folder())
    theirs: list[int] = []

    def meanwhile(done: int, total: int) -> None:
        if not theirs:
            frozen_inputs(backbone, images, CROPS, CPU, keep="disk")
            theirs.append((next(f for f in cache.iterdir() if f.name[0] != ".") / "maps.npy").stat().st_ino)

    mine, _ = frozen_inputs(backbone, images, CROPS, CPU, keep="disk", progress=meanwhile)
    assert [(folder / "maps.npy").stat().st_ino for folder in cache.iterdir()] == theirs
    assert same(mine, frozen_inputs(backbone, images, CROPS, CPU)[0])
