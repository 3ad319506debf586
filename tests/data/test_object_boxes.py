"""Bounding boxes: mapped to the network input as the pixels are, and read from the files of datasets."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.data import synthetic_datasets
from tests.data.conftest import Arrays
from winnow.data import CropTransform, FileImages, ImageCache, boxes_in_crop, load_images
from winnow.data.datasets import CUB200, SOP, Cars196
from winnow.data.emoji import load_emoji
from winnow.errors import DataError


def slow_box(size: tuple[int, int], box: tuple[int, int, int, int], crops: CropTransform) -> np.ndarray:
    """Paint a box white, send the picture through resize and crop, and measure what is white."""
    width, height = size
    left, top, right, bottom = box
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[top:bottom, left:right] = 255
    store = ImageCache(Arrays([pixels]), resize=crops.resize, cache="none")
    crop = crops.test(store, [0])[0, 0].numpy()
    # The sum of a row through the box is its width, also where the edge lies within a pixel.
    columns, rows = crop.max(axis=0), crop.max(axis=1)
    x, y = np.flatnonzero(columns > 0.5), np.flatnonzero(rows > 0.5)
    return np.array([x[0], y[0], x[-1] + 1, y[-1] + 1])


@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_boxes_move_as_the_pixels_do(data: st.DataObject) -> None:
    side = st.integers(40, 160)
    width, height = data.draw(side), data.draw(side)
    crops = CropTransform(resize=data.draw(st.integers(32, 96)), size=data.draw(st.integers(16, 32)))
    # A box around the center, so that some of it is in every crop; sides that the resize does not blur away.
    left, top = data.draw(st.integers(0, width // 2 - 8)), data.draw(st.integers(0, height // 2 - 8))
    right = data.draw(st.integers(width // 2 + 8, width))
    bottom = data.draw(st.integers(height // 2 + 8, height))
    fractions = torch.tensor([[left / width, top / height, right / width, bottom / height]])
    found = boxes_in_crop(fractions, [(width, height)], crops)[0].numpy() * crops.size
    expected = slow_box((width, height), (left, top, right, bottom), crops)
    np.testing.assert_allclose(found, expected, atol=1.0)  # half a pixel at the threshold, and the rounded long side


def test_boxes_of_whole_pixels_are_exact() -> None:
    crops = CropTransform(resize=20, size=10)
    box = torch.tensor([[6 / 30, 8 / 20, 18 / 30, 20 / 20]])
    # The crop begins at column (30 - 10) / 2 and at row (20 - 10) / 2.
    assert boxes_in_crop(box, [(30, 20)], crops).tolist() == [pytest.approx([0, 0.3, 0.8, 1])]
    doubled = boxes_in_crop(box, [(60, 40)], crops)
    torch.testing.assert_close(doubled, boxes_in_crop(box, [(30, 20)], crops))


def test_crops_beyond_the_image_and_boxes_beyond_the_crop() -> None:
    crops = CropTransform(resize=10, size=20)
    assert boxes_in_crop(torch.tensor([[0.0, 0, 1, 1]]), [(10, 10)], crops).tolist() == [[0.25, 0.25, 0.75, 0.75]]
    far = boxes_in_crop(torch.tensor([[0.0, 0, 0.05, 1]]), [(400, 100)], CropTransform(resize=10, size=10))
    assert (far[0, 2] - far[0, 0]).item() == 0


def test_a_very_long_image_loses_its_ends_before_the_resize() -> None:
    crops = CropTransform(resize=4, size=4)
    size = (2000, 10)  # 160 columns around the center are kept, and 4 x 4 pixels of 64 x 4
    box = torch.tensor([[995 / 2000, 0, 1005 / 2000, 1]], dtype=torch.float64)
    assert boxes_in_crop(box, [size], crops).tolist() == [pytest.approx([0, 0, 1, 1])]
    half = torch.tensor([[1000 / 2000, 0.5, 1, 1]], dtype=torch.float64)
    assert boxes_in_crop(half, [size], crops).tolist() == [pytest.approx([0.5, 0.5, 1, 1])]


def test_sizes_are_those_of_upright_images(tmp_path: Path) -> None:
    picture = Image.new("RGB", (30, 20))
    exif = picture.getexif()
    for orientation in range(1, 9):
        exif[0x0112] = orientation
        picture.save(tmp_path / f"{orientation}.jpg", exif=exif)
    images = FileImages(tmp_path, [f"{n}.jpg" for n in range(1, 9)], np.zeros(8, np.int64), ("one",))
    for index in range(8):
        assert images.size(index) == images.read(index).size
        assert images.select([index]).size(0) == images.size(index)
    (tmp_path / "1.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"1\.jpg"):
        images.size(0)


# --- CUB-200-2011 -----------------------------------------------------------------------------------------------------


def write_cub(root: Path, side: int = 8) -> Path:
    """Write a copy with a box for each image: 1 pixel from the left, 2 from the top, 4 wide, 5 high."""
    synthetic_datasets.cub(root)
    base = root / "CUB_200_2011"
    numbers = range(1, 1 + len((base / "images.txt").read_text().splitlines()))
    (base / "bounding_boxes.txt").write_text("".join(f"{n} 1.0 2.0 4.0 5.0\n" for n in numbers))
    for path in base.glob("images/*/*.jpg"):
        Image.new("RGB", (side, side)).save(path)
    return base


CUB = CUB200(train=6, test=6, classes=2)


def test_boxes_of_cub(tmp_path: Path) -> None:
    base = write_cub(tmp_path)
    for root in (tmp_path, base):
        test = CUB.load(root).test
        assert CUB.object_boxes(root, test).tolist() == [[1 / 8, 2 / 8, 5 / 8, 7 / 8]] * 6
    # The class folders alone, with the annotations in the folder above.
    images = load_images(base / "images")
    assert CUB.object_boxes(base / "images", images).shape == (12, 4)
    # The order of the images is that of the set.
    lines = (base / "bounding_boxes.txt").read_text().splitlines()
    first = "1 0.0 0.0 8.0 8.0"
    (base / "bounding_boxes.txt").write_text("\n".join([*reversed(lines[1:]), first]))
    train = CUB.load(tmp_path).train
    found = CUB.object_boxes(tmp_path, train.select([3, 0]))
    assert found.tolist() == [[1 / 8, 2 / 8, 5 / 8, 7 / 8], [0, 0, 1, 1]]


@pytest.mark.parametrize(("beyond", "accepted"), [(2, True), (3, False)])
def test_published_boxes_end_up_to_two_pixels_outside(tmp_path: Path, beyond: int, accepted: bool) -> None:
    base = write_cub(tmp_path)
    test = CUB.load(tmp_path).test
    lines = (base / "bounding_boxes.txt").read_text().splitlines()
    lines[-1] = f"12 1.0 2.0 4.0 {8 - 2 + beyond}.0"
    (base / "bounding_boxes.txt").write_text("\n".join(lines))
    if accepted:
        assert CUB.object_boxes(tmp_path, test)[-1].tolist() == [1 / 8, 2 / 8, 5 / 8, 1]
    else:
        with pytest.raises(DataError, match=r"resized images"):
            CUB.object_boxes(tmp_path, test)


def test_resized_copies_of_cub_need_the_original_sizes(tmp_path: Path) -> None:
    base = write_cub(tmp_path, side=4)
    test = CUB.load(tmp_path).test
    with pytest.raises(DataError, match=r"resized images: add sizes\.txt"):
        CUB.object_boxes(tmp_path, test)
    numbers = range(1, 13)
    (base / "sizes.txt").write_text("".join(f"{n} 8 16\n" for n in numbers))
    assert CUB.object_boxes(tmp_path, test).tolist() == [[1 / 8, 2 / 16, 5 / 8, 7 / 16]] * 6


def test_missing_and_damaged_boxes_of_cub(tmp_path: Path) -> None:
    base = write_cub(tmp_path)
    test = CUB.load(tmp_path).test
    boxes = base / "bounding_boxes.txt"
    content = boxes.read_text()
    for broken in ("1 2 3 4", "1 2 3 x 5", "1 2 3 nan 5"):
        boxes.write_text(content + broken)
        with pytest.raises(DataError, match=r"bounding_boxes\.txt: expected 4 numbers"):
            CUB.object_boxes(tmp_path, test)
    boxes.write_text("1 1.0 2.0 4.0 5.0\n")
    with pytest.raises(DataError, match=r"no bounding box of .*003"):
        CUB.object_boxes(tmp_path, test)
    boxes.unlink()
    with pytest.raises(DataError, match=r"bounding_boxes\.txt not found, and this copy has no bounding boxes"):
        CUB.object_boxes(tmp_path, test)


# --- Cars196 ----------------------------------------------------------------------------------------------------------


CARS = ("Zed Coupe 2012", "Audi A/B 2010", "Mini Van 2001", "Beta SUV 1999")


def write_cars(file: Path, paths: list[str], key: str) -> None:
    """Write boxes from pixel 2 to pixel 5 + n of image n, counted from 1."""
    from scipy.io import savemat

    names = (key, "bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class")
    entries = np.empty((1, len(paths)), dtype=[(name, object) for name in names])
    for n, path in enumerate(paths):
        entries[0, n] = (path, 2.0, 3.0, 5.0 + n % 4, 8.0, np.uint8(1 + n % 4))
    savemat(file, {"annotations": entries})


def test_boxes_of_cars_count_from_one(tmp_path: Path) -> None:
    cars = Cars196(train=4, test=4, class_names=CARS)
    synthetic_datasets.cars(tmp_path, CARS)
    write_cars(tmp_path / "cars_annos.mat", [f"car_ims/{n + 1:06d}.jpg" for n in range(8)], "relative_im_path")
    whole = cars.load(tmp_path)
    assert cars.object_boxes(tmp_path, whole.train).tolist() == [[1 / 8, 2 / 8, 5 / 8, 1], [1 / 8, 2 / 8, 6 / 8, 1]] * 2
    assert cars.object_boxes(tmp_path, whole.test)[:, 2].tolist() == [7 / 8, 1] * 2

    lists = tmp_path / "lists"
    for name, folder in (("cars_train_annos.mat", "cars_train"), ("cars_test_annos_withlabels.mat", "cars_test")):
        for n in range(4):
            synthetic_datasets.picture(lists / folder / f"{n + 1:05d}.jpg")
        write_cars(lists / name, [f"{n + 1:05d}.jpg" for n in range(4)], "fname")
    both = cars.load(lists)
    assert cars.object_boxes(lists, both.train)[:, 2].tolist() == [5 / 8, 6 / 8] * 2
    assert cars.object_boxes(lists, both.test)[:, 2].tolist() == [7 / 8, 1] * 2
    (lists / "cars_train_annos.mat").unlink()
    with pytest.raises(DataError, match=r"cars_train_annos\.mat not found, and this copy has no bounding boxes"):
        cars.object_boxes(lists, both.test)
    shutil.copy(lists / "cars_test_annos_withlabels.mat", lists / "cars_train_annos.mat")
    (lists / "cars_test_annos_withlabels.mat").write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"no annotations with fname and bbox_x1"):
        cars.object_boxes(lists, both.test)


def test_other_datasets_say_that_they_have_no_boxes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no bounding boxes\. Use cub200, cars196, or emoji"):
        SOP().object_boxes(tmp_path, load_emoji().train)
