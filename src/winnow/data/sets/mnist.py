"""MNIST (LeCun et al., 1998)."""

from __future__ import annotations

from pathlib import Path

from winnow.data.mnist import is_mnist, read_mnist
from winnow.data.sets.base import Contents, Dataset, Source
from winnow.errors import DataError


class Mnist(Dataset):
    """Handwritten digits; its test has other images of the same classes."""

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

    def __init__(self, *, train: int = 60_000, test: int = 10_000) -> None:
        self.counts = {"train": train, "test": test}
        self.classes = {"train": 10, "test": 10}

    def read(self, root: Path) -> Contents:
        """Read the four files, in the folder or one below it, such as `raw`."""
        places = [root, *sorted(child for child in root.iterdir() if child.is_dir())]
        place = next((folder for folder in places if is_mnist(folder)), None)
        if place is None:
            raise DataError(f"{root} has no train-images-idx3-ubyte(.gz): name a folder with the four files")
        return Contents({"train": read_mnist(place, ["train"]), "test": read_mnist(place, ["t10k"])})
