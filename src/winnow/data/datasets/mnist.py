"""MNIST and Fashion-MNIST datasets, and the reader of their idx files."""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from winnow.data.datasets.base import Dataset, DatasetParts, Source
from winnow.data.image_set import ArrayImages
from winnow.errors import DataError

Part = Literal["train", "t10k"]

_PUBLISHED = {"train": 60_000, "test": 10_000}


class MNIST(Dataset):
    """MNIST: 70,000 handwritten digits of 28 x 28 pixels (LeCun et al., 1998).

    Split by image: 60,000 images train, 10,000 other images of the same classes test.
    Layout: four idx files, compressed by gzip or not.
    License: CC BY-SA 3.0.

    Args:
        train: Expected number of training images.
        test: Expected number of test images.

    Attributes:
        checksums: MD5 of the uncompressed images and labels of each part. Datasets in this format have the same file
            names and sizes, and a file that was compressed again has another checksum.
    """

    name = "mnist"
    title = "MNIST"
    about = "70,000 handwritten digits of 28 x 28 pixels; the test has other images of the same 10 classes"
    terms = "CC BY-SA 3.0"
    home = "http://yann.lecun.com/exdb/mnist/"
    layout = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-..., compressed (.gz) or not"
    folds_by = "images"
    sources = tuple(
        Source(f"https://ossci-datasets.s3.amazonaws.com/mnist/{file}", file, md5)
        for file, md5 in (
            ("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            ("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
            ("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
            ("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
        )
    )

    checksums: ClassVar[dict[str, tuple[str, str]]] = {
        "train": ("6bbc9ace898e44ae57da46a324031adb", "a25bea736e30d166cdddb491f175f624"),
        "test": ("2646ac647ad5339dbf082846283269ea", "27ae3e4e09519cfbb04c329615203637"),
    }

    def __init__(self, *, train: int = 60_000, test: int = 10_000) -> None:
        self.counts = {"train": train, "test": test}
        self.classes = {"train": 10, "test": 10}

    def read(self, root: Path) -> DatasetParts:
        """Read the four files in a folder or a subfolder, and check their checksums."""
        folders = [root, *sorted(child for child in root.iterdir() if child.is_dir())]
        folder = next((folder for folder in folders if is_mnist(folder)), None)
        if folder is None:
            raise DataError(f"{root}: train-images-idx3-ubyte(.gz) not found. Name a folder with the four files.")
        parts = {"train": read_mnist(folder, ["train"]), "test": read_mnist(folder, ["t10k"])}
        for part, images in parts.items():
            if len(images) == _PUBLISHED[part] and _checksums(images) != self.checksums[part]:
                raise DataError(
                    f"{folder}: the {part} files are not those of {self.title}, but have as many images. Name a folder "
                    f"of {self.title}, or get it again."
                )
        return DatasetParts(parts)


class FashionMNIST(MNIST):
    """Fashion-MNIST: 70,000 images of clothes of 28 x 28 pixels (Xiao et al., 2017).

    Split, layout, and arguments: as MNIST.
    License: MIT.
    """

    name = "fashion_mnist"
    title = "Fashion-MNIST"
    about = "70,000 images of clothes of 28 x 28 pixels; the test has other images of the same 10 classes"
    terms = "MIT"
    home = "https://github.com/zalandoresearch/fashion-mnist"
    sources = tuple(
        Source(f"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{file}", file, md5)
        for file, md5 in (
            ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
            ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
            ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
        )
    )
    checksums: ClassVar = {
        "train": ("f4a8712d7a061bf5bd6d2ca38dc4d50a", "9018921c3c673c538a1fc5bad174d6f9"),
        "test": ("8181f5470baa50b63fa0f6fddb340f0a", "15d484375f8d13e6eb1aabb0c3f46965"),
    }


def read_mnist(folder: str | Path, parts: Sequence[Part] = ("train", "t10k")) -> ArrayImages:
    """Read idx files under their usual names from a folder.

    Args:
        folder: Folder with `train-images-idx3-ubyte` and so on, compressed by gzip or not.
        parts: Training images, test images, or one after the other.

    Raises:
        DataError: If a file is missing or damaged.
    """
    folder = Path(folder)
    pixels = np.concatenate([_read_idx(folder, f"{part}-images-idx3-ubyte", 3) for part in parts])
    labels = np.concatenate([_read_idx(folder, f"{part}-labels-idx1-ubyte", 1) for part in parts])
    if len(pixels) != len(labels):
        raise DataError(f"{folder}: {len(pixels)} images but {len(labels)} labels. Get its files again.")
    return ArrayImages(pixels, labels.astype(np.int64), str(folder))


def is_mnist(folder: Path) -> bool:
    """Return whether a folder contains files in the format of MNIST."""
    return any((folder / f"train-images-idx3-ubyte{end}").is_file() for end in ("", ".gz"))


def _read_idx(folder: Path, name: str, dimensions: int) -> NDArray[Any]:
    """Read an idx file.

    It contains two zeros, the type (8: uint8), the number of dimensions, each as big-endian int32, and the data.
    """
    path = next((folder / f"{name}{end}" for end in (".gz", "") if (folder / f"{name}{end}").is_file()), None)
    if path is None:
        raise DataError(
            f"{folder}: {name}(.gz) not found. Name a folder with the four files of MNIST or Fashion-MNIST."
        )
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: file cannot be read ({error}). Get it again.") from None
    head = 4 + 4 * dimensions
    sizes = struct.unpack(f">{dimensions}i", content[4:head]) if len(content) >= head else ()
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) != head + math.prod(sizes):
        raise DataError(f"{path}: not an idx file of bytes in {dimensions} dimensions, or truncated. Get it again.")
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(sizes)


def _checksums(images: ArrayImages) -> tuple[str, str]:
    """Return the MD5 of the two uncompressed files of images."""
    return _md5(images.pixels), _md5(images.labels.astype(np.uint8))


def _md5(values: NDArray[Any]) -> str:
    """Return the MD5 of values as an idx file."""
    head = struct.pack(f">HBB{values.ndim}i", 0, 8, values.ndim, *values.shape)
    return hashlib.md5(head + values.tobytes(), usedforsecurity=False).hexdigest()
