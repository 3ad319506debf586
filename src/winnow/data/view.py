"""Some images of a store under labels of their own, so that many sets share what was decoded once."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winnow.data.imageset import ImageSet, Labels, Subset
from winnow.data.ragged import Ragged
from winnow.data.store import ImageStore
from winnow.errors import DataError


class StoreView:
    """The images of a set, taken from a store of the set it is a part of; nothing is copied.

    Args:
        store: Of the whole set.
        images: That set, or a subset of it at any depth.
        strict: Raise for an image that the store has left out, instead of leaving it out too.

    Attributes:
        store: The store of the whole set.
        rows: (N,) int64, where the images are there.
        labels: (N,) int64, labels in `images`.
        skipped: Name and reason for each image left out.
        resize: Short side of the stored images.

    Raises:
        DataError: for an image that could not be read, if strict, or when none could.
    """

    def __init__(self, store: ImageStore, images: ImageSet, *, strict: bool = True) -> None:
        root, indices = root_of(images)
        if root is not store.images:
            raise ValueError("the images are no part of the store's")
        place = np.full(len(root), -1, dtype=np.int64)
        place[store.kept] = np.arange(len(store))
        rows = place[indices]
        missing = indices[rows < 0]
        if len(missing) and strict:
            raise store.failures[int(missing[0])]
        if len(missing) and len(missing) == len(indices):
            raise DataError(f"none of the {len(indices)} images can be read; the first is {images.name(0)}")
        self.store, self.rows = store, rows[rows >= 0]
        self.resize = store.resize
        self.labels: Labels = images.labels[rows >= 0]
        reasons = dict(store.skipped)
        self.skipped = [(root.name(int(i)), reasons[root.name(int(i))]) for i in missing]

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        """Return the name of an image."""
        return self.store.name(int(self.rows[index]))

    def gather(self, indices: ArrayLike) -> Ragged:
        """Return some images as a batch on the device."""
        chosen = np.asarray(indices, dtype=np.int64)
        if len(chosen) and not (chosen.min() >= 0 and chosen.max() < len(self)):
            raise IndexError(f"image indices must be within 0-{len(self) - 1}")
        return self.store.gather(self.rows[chosen])


def root_of(images: ImageSet) -> tuple[ImageSet, NDArray[np.int64]]:
    """Return the set that subsets were cut from, and the indices of the images there."""
    indices = np.arange(len(images), dtype=np.int64)
    while isinstance(images, Subset):
        indices, images = images.indices[indices], images.parent
    return images, indices
