"""What copies of images cost: an unchanged copy nothing, a bad one something; without both sets, a plain error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import MakeFolder
from winnow.data import load_images
from winnow.errors import DataError
from winnow.studies import Task, copies

TINY = ["backbone.name=resnet20", "backbone.weights=random", "image.resize=32", "image.crop=32"]

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")


def test_copies_are_judged_beside_their_originals(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder()
    images = load_images(folder)
    named = {"original": images, "same": images, "WebP 0": copies.Recompressed(images, 0)}
    monkeypatch.setattr(copies, "sets", lambda task: (named, [f"data={folder}", *TINY], None))
    monkeypatch.setattr(copies, "AT_ONCE", 7)  # so that the last part is not full
    found = copies.study(Task(small=True))
    original, same, webp = found.rows
    assert {**same, "set": "original"} == {**original}
    assert original["cosine to the original"] == 1
    assert webp["cosine to the original"] < 1
    assert "- same: +0.00 points." in found.text


def test_recompressed_images_are_like_their_originals_and_have_names_of_their_own(make_folder: MakeFolder) -> None:
    images = load_images(make_folder())
    good, bad = copies.Recompressed(images, 95), copies.Recompressed(images, 1)

    def error(of: copies.Recompressed) -> float:
        original = np.asarray(images.read(0).convert("RGB"), dtype=float)
        return float(np.abs(np.asarray(of.read(0).convert("RGB"), dtype=float) - original).mean())

    assert isinstance(good.read(0), Image.Image)
    assert error(good) < error(bad)
    assert good.name(0) == images.name(0)
    assert len({images.cache_key(0), good.cache_key(0), bad.cache_key(0)}) == 3


def test_recompressed_images_can_be_shrunk_before_but_are_never_enlarged(make_folder: MakeFolder) -> None:
    images = load_images(make_folder())
    short = min(images.read(0).size)
    small, same = (copies.Recompressed(images, 95, short=side) for side in (short // 2, 2 * short))
    assert min(small.read(0).size) == short // 2
    assert same.read(0).size == images.read(0).size
    assert small.cache_key(0) != same.cache_key(0)


def test_without_both_sets_it_says_which_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    copies.ORIGINAL.mkdir(parents=True)
    with pytest.raises(DataError, match="data/cub200_2011 is not there"):
        copies.study(Task(small=False))
