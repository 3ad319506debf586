"""MNIST (LeCun et al., 1998)."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from winnow.data.mnist import MnistSet, is_mnist, read_mnist
from winnow.data.sets.base import Contents, Dataset, Source
from winnow.errors import DataError

_PUBLISHED = {"train": 60_000, "test": 10_000}


class Mnist(Dataset):
    """Handwritten digits; its test has other images of the same classes.

    Attributes:
        checksums: The md5 of the images and of the labels of each part, unpacked: sets in this format have the same
            names and sizes, and one that was packed anew has another checksum when packed.
    """

    name = "mnist"
    title = "MNIST"
    about = "70,000 handwritten digits of 28 x 28 pixels; the test has other images of the same 10 classes"
    terms = "CC BY-SA 3.0"
    home = "http://yann.lecun.com/exdb/mnist/"
    layout = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-..., packed (.gz) or not"
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

    def read(self, root: Path) -> Contents:
        """Read the four files, in the folder or one below it, such as `raw`, and tell them from those of other sets."""
        places = [root, *sorted(child for child in root.iterdir() if child.is_dir())]
        place = next((folder for folder in places if is_mnist(folder)), None)
        if place is None:
            raise DataError(f"{root} has no train-images-idx3-ubyte(.gz): name a folder with the four files")
        parts = {"train": read_mnist(place, ["train"]), "test": read_mnist(place, ["t10k"])}
        for part, images in parts.items():
            if len(images) == _PUBLISHED[part] and _checksums(images) != self.checksums[part]:
                raise DataError(
                    f"{place}: the {part} files are not those of {self.title}, though there are as many images: name a "
                    "folder of that set, or get it anew"
                )
        return Contents(parts)


def _checksums(images: MnistSet) -> tuple[str, str]:
    """Return the md5 of the two files that images were read from, unpacked."""
    return _md5(images.pixels), _md5(images.labels.astype(np.uint8))


def _md5(values: NDArray[Any]) -> str:
    """Return the md5 of an idx file: two zeros, the type (8: uint8), the dimensions, each as an int32, the data."""
    head = struct.pack(f">HBB{values.ndim}i", 0, 8, values.ndim, *values.shape)
    return hashlib.md5(head + values.tobytes(), usedforsecurity=False).hexdigest()
