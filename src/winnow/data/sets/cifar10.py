"""Cifar-10 (Krizhevsky, 2009)."""

from __future__ import annotations

from pathlib import Path

from winnow.data.sets.base import Contents, Dataset, Source
from winnow.data.sets.cifar import read_cifar

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class Cifar10(Dataset):
    """Small photographs; its test has other images of the same classes."""

    name = "cifar10"
    title = "Cifar-10"
    about = "60,000 photographs of 32 x 32 pixels in 10 classes; the test has other images of the same classes"
    terms = "as its owner states (Krizhevsky)"
    home = "https://www.cs.toronto.edu/~kriz/cifar.html"
    layout = "data_batch_1 ... data_batch_5 and test_batch, as pickles or .bin; or train/CLASS/* and test/CLASS/*"
    folds_by = "images"
    sources = (
        Source(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
        ),
    )

    def __init__(self, *, train: int = 50_000, test: int = 10_000) -> None:
        self.counts = {"train": train, "test": test}
        self.classes = {"train": 10, "test": 10}

    def read(self, root: Path) -> Contents:
        """Read pickles, the binary version or class folders."""
        files = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
        return read_cifar(root, files, CLASSES, key="labels", skip=0)
