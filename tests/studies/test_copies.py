"""Image copies: an unchanged copy costs nothing, a bad one changes features, and missing folders are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import MakeFolder
from winnow.data import load_images
from winnow.errors import DataError
from winnow.models import Embedder
from winnow.studies import StudyRequest, copies
from winnow.studies.copies import COPIES, COSINE
from winnow.training import load_config
from winnow.training.build import make_crops
from winnow.training.features import extract_features
from winnow.training.overrides import Overrides

TINY = ["backbone.name=resnet20", "backbone.weights=random", "image.resize=32", "image.crop=32"]

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")


def test_copies_are_compared_with_their_originals(make_folder: MakeFolder) -> None:
    folder = make_folder()
    images = load_images(folder)
    named = {"original": images, "same": images, "WebP 0": copies.Recompressed(images, 0)}
    rows = copies.measure_copies(named, None, Overrides.parse(f"data={folder}", *TINY), lambda text: None)
    original, same, webp = rows
    assert same == {**original, "copy": "same"}
    assert original[COSINE] == 1 > webp[COSINE]
    assert len(COPIES.figures(COPIES.restore({"rows": rows, "settings": {}}))[""].axes) == 2


def test_features_are_normalized_means_of_local_features(
    make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, config = load_images(make_folder()), load_config(None, ["data=emoji", *TINY])
    backbone, crops = Embedder.create(config).backbone.eval(), make_crops(config)
    monkeypatch.setattr(copies, "BATCH", 7)  # the last batch is smaller
    found = copies.average_features(images, backbone, crops, lambda text: None)
    maps = extract_features(backbone, images, crops, torch.device("cpu"))[0].whole().numpy()
    means = maps.reshape(len(images), maps.shape[1], -1).mean(axis=2)
    assert found.numpy() == pytest.approx(means / np.linalg.norm(means, axis=1, keepdims=True), abs=1e-5)


def test_lower_quality_changes_pixels_more_and_has_another_cache_key(make_folder: MakeFolder) -> None:
    images = load_images(make_folder())
    good, bad = copies.Recompressed(images, 95), copies.Recompressed(images, 1)

    def error(of: copies.Recompressed) -> float:
        original = np.asarray(images.read(0).convert("RGB"), dtype=float)
        return float(np.abs(np.asarray(of.read(0).convert("RGB"), dtype=float) - original).mean())

    assert isinstance(good.read(0), Image.Image)
    assert error(good) < error(bad)
    assert good.name(0) == images.name(0)
    assert len({images.cache_key(0), good.cache_key(0), bad.cache_key(0)}) == 3


def test_large_images_are_resized_and_small_ones_are_not(make_folder: MakeFolder) -> None:
    images = load_images(make_folder())
    short = min(images.read(0).size)
    small, same = (copies.Recompressed(images, 95, short=side) for side in (short // 2, 2 * short))
    assert min(small.read(0).size) == short // 2
    assert same.read(0).size == images.read(0).size
    assert small.cache_key(0) != same.cache_key(0)


def test_a_missing_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    copies.ORIGINAL.mkdir(parents=True)
    with pytest.raises(DataError, match=r"^data/cub200_2011: folder not found"):
        COPIES.measure(StudyRequest(COPIES.scales["full"]))
