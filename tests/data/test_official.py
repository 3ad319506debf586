"""Copies of datasets are compared with samples of their official archives."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data import synthetic_datasets
from winnow.data import FileImages
from winnow.data.datasets import CIFAR10, CUB200, DATASETS
from winnow.data.datasets.cars196 import official_classes
from winnow.data.datasets.cub200 import SIZES
from winnow.data.datasets.official import (
    OfficialImage,
    class_files,
    describe_copy,
    digest_image,
    image_size,
    read_sample,
)
from winnow.training.run import summarize_data

COUNT = 4


def make(root: Path) -> FileImages:
    """Write two classes of noise; each image has another size."""
    rng = np.random.default_rng(0)
    paths = [f"{label}/{number}.png" for label in "ab" for number in range(3)]
    for number, path in enumerate(paths):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 255, (20 + number, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / path)
    return FileImages(root, paths, np.repeat([0, 1], 3), ("a", "b"))


@pytest.fixture
def images(tmp_path: Path) -> FileImages:
    return make(tmp_path / "official")


@pytest.fixture
def sample(images: FileImages) -> list[OfficialImage]:
    found = [path for label in (0, 1) for path in class_files(images, label)[:2]]
    sizes = [image_size(path) or (0, 0) for path in found]
    return [
        OfficialImage("train", number // 2, (path.stem,), path.stat().st_size, *size, digest_image(path))
        for number, (path, size) in enumerate(zip(found, sizes, strict=True))
    ]


def test_an_equal_copy_is_recognized(images: FileImages, sample: list[OfficialImage]) -> None:
    assert describe_copy({"train": images}, sample) == f"images equal the official archive: {COUNT} of {COUNT} sampled"


def test_renamed_images_are_recognized_by_their_size(images: FileImages, sample: list[OfficialImage]) -> None:
    renamed = [replace(one, names=("other",)) for one in sample]
    assert "equal" in describe_copy({"train": images}, renamed)
    assert "none of 4" in describe_copy({"train": images}, [replace(one, size=1) for one in renamed])
    assert "none of 4" in describe_copy({"test": images}, sample)


def test_resized_and_compressed_images_are_named(images: FileImages, sample: list[OfficialImage]) -> None:
    for path in class_files(images, 0):
        Image.open(path).save(path.with_suffix(".jpg"))
        path.unlink()
    compressed = FileImages(images.root, [f"a/{number}.jpg" for number in range(3)], np.zeros(3, dtype=int), ("a", "b"))
    text = describe_copy({"train": compressed}, sample)
    assert text.startswith("images differ from the official archive: 2 of 2 sampled; same width and height")
    for path in class_files(compressed, 0):
        Image.open(path).resize((16, 8)).save(path)
    text = describe_copy({"train": compressed}, sample)
    assert "2 of 2 sampled; 8 px short side, official 20-21 px" in text
    for path in class_files(compressed, 0):
        path.write_bytes(b"no image")
    assert "2 of 2 sampled; they cannot be read" in describe_copy({"train": compressed}, sample)


def test_one_replaced_image_is_counted(images: FileImages, sample: list[OfficialImage]) -> None:
    first, second = class_files(images, 1)[:2]
    first.write_bytes(second.read_bytes())
    assert "differ from the official archive: 1 of 4 sampled" in describe_copy({"train": images}, sample)


@pytest.mark.parametrize("name", ["cub200", "cars196"])
def test_the_samples_fit_their_datasets(name: str) -> None:
    sample, dataset = read_sample(name), DATASETS[name]
    assert dataset.sample == sample
    assert len(sample) == len({one.digest for one in sample}) == 64
    sizes = {"cub200": SIZES, "cars196": official_classes()[1]}[name]
    assert len(sizes) == sum(dataset.classes.values())
    for one in sample:
        assert 0 <= one.label < dataset.classes[one.part]
        assert min(one.width, one.height) > 0 < one.size
        assert OfficialImage.from_row(one.to_row()) == one
    assert {one.part for one in sample} == set(dataset.counts)
    assert read_sample("sop") == ()


def test_a_dataset_states_how_its_images_differ(tmp_path: Path) -> None:
    synthetic_datasets.cub(tmp_path)
    birds = CUB200(train=6, test=6, classes=2)
    assert birds.load(tmp_path).splits(folds=2, on_test=True).archive == ()
    picture = next(tmp_path.rglob("Bird_3_0001.jpg"))
    birds.sample = (OfficialImage("test", 0, (picture.stem,), 5000, 400, 300, "0" * 16),)
    splits = birds.load(tmp_path).splits(on_test=True)
    text = "cub200: images differ from the official archive: 1 of 1 sampled; 8 px short side, official 300 px"
    assert splits.archive == (text,)
    assert text in splits.notes
    assert summarize_data(splits, None).to_dict()["archive"] == [text]


def test_the_pickles_of_cifar_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from winnow.data.datasets.cifar import file_md5

    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for name in names:
        batch = {b"data": np.zeros((10, 3072), dtype=np.uint8), b"labels": list(range(10)), b"name": name}
        (tmp_path / name).write_bytes(pickle.dumps(batch))
    small = CIFAR10(train=50, test=10)
    assert "files differ from the official archive: data_batch_1" in small.load(tmp_path).notes[0]
    monkeypatch.setattr(CIFAR10, "checksums", {name: file_md5(tmp_path / name) for name in names})
    assert "files equal the official archive: 6 of 6" in small.load(tmp_path).notes[0]
    shutil.copy(tmp_path / "data_batch_2", tmp_path / "data_batch_3")
    assert "official archive: data_batch_3" in small.load(tmp_path).notes[0]
