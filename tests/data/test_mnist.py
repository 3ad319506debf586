"""Reader of files in the format of MNIST."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from winnow.data import load_images, read_mnist, split_by_class
from winnow.errors import DataError

RNG = np.random.default_rng(0)
PIXELS = {
    "train": RNG.integers(0, 256, (20, 5, 4), dtype=np.uint8),
    "t10k": RNG.integers(0, 256, (10, 5, 4)).astype("u1"),
}
LABELS = {"train": np.arange(20, dtype=np.uint8) % 10, "t10k": np.arange(10, dtype=np.uint8)}


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}i", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write(folder: Path, *, packed: bool) -> None:
    for part in ("train", "t10k"):
        for name, array in ((f"{part}-images-idx3-ubyte", PIXELS[part]), (f"{part}-labels-idx1-ubyte", LABELS[part])):
            content = idx(array)
            (folder / f"{name}{'.gz' if packed else ''}").write_bytes(gzip.compress(content) if packed else content)


@pytest.mark.parametrize("packed", [False, True])
def test_written_images_are_read(tmp_path: Path, packed: bool) -> None:
    write(tmp_path, packed=packed)
    images = load_images(tmp_path)
    assert len(images) == 30
    assert images.class_names == tuple("0123456789")
    assert images.labels.tolist() == [*LABELS["train"], *LABELS["t10k"]]
    assert np.array_equal(np.asarray(images.read(21)), np.repeat(PIXELS["t10k"][1][..., None], 3, axis=2))
    test = read_mnist(tmp_path, ["t10k"])
    assert np.array_equal(test.pixels, PIXELS["t10k"])
    splits = split_by_class(images)
    assert {len(s.class_names) for s in (splits.train, splits.val)} == {2, 6}


def test_the_fingerprint_depends_on_the_pixels(tmp_path: Path) -> None:
    write(tmp_path, packed=False)
    before = read_mnist(tmp_path).fingerprint()
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(255 - PIXELS["t10k"]))
    assert read_mnist(tmp_path).fingerprint() != before


@pytest.mark.parametrize("damage", ["gone", "cut", "type", "header", "labels", "packed"])
def test_damaged_files_are_rejected(tmp_path: Path, damage: str) -> None:
    write(tmp_path, packed=damage == "packed")
    file = tmp_path / f"t10k-images-idx3-ubyte{'.gz' if damage == 'packed' else ''}"
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    elif damage == "labels":
        (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(LABELS["t10k"][:-1]))
    else:
        file.write_bytes({"cut": content[:-1], "type": b"\0\0\x0d\3" + content[4:], "header": content[:9],
                          "packed": content[:-9]}[damage])  # fmt: skip
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte|images but"):
        read_mnist(tmp_path)
