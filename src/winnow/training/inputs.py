"""Batches of a split: crops of images, or features of a frozen backbone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from winnow.data import CropTransform, Labels, StoredImages, free_device_memory

if TYPE_CHECKING:
    from winnow.training.features import DiskFeatures


class Inputs(Protocol):
    """Labeled network inputs by index: all that the trainer requires of a split."""

    labels: Labels

    def name(self, index: int) -> str:
        """Return the name of an image, for messages."""
        ...

    def train(
        self, indices: ArrayLike, generator: torch.Generator, out: Tensor | None = None, rows: slice = slice(None)
    ) -> Tensor:
        """Return a training batch; no operation waits for the device.

        Args:
            indices: Images of the batch.
            generator: Source of all random numbers.
            out: Earlier batch to overwrite and return.
            rows: Rows of the batch to return; they equal the rows of the whole batch.
        """
        ...

    def test(self, indices: ArrayLike) -> Tensor:
        """Return a batch as evaluation uses it."""
        ...


class CropInputs:
    """Crops of stored images: random in training, central in evaluation.

    Args:
        store: Images.
        crops: Crop transform.
        larger: The same images at `crops.train_resize`, from which training crops are cut.
    """

    def __init__(self, store: StoredImages, crops: CropTransform, larger: StoredImages | None = None) -> None:
        self.store, self.crops, self.source = store, crops, store if larger is None else larger
        self.labels = store.labels

    def name(self, index: int) -> str:
        """Return the name of an image."""
        return self.store.name(index)

    def train(
        self, indices: ArrayLike, generator: torch.Generator, out: Tensor | None = None, rows: slice = slice(None)
    ) -> Tensor:
        """Return random crops (B, 3, h, w)."""
        return self.crops.train(self.source, indices, generator, out, rows)

    def test(self, indices: ArrayLike) -> Tensor:
        """Return center crops (B, 3, h, w)."""
        return self.crops.test(self.store, indices)


class FeatureInputs:
    """Feature maps (N, C, h, w) or tokens (N, n, C) of a frozen backbone.

    Args:
        maps: Features in RAM or on disk. They are moved to the device if they fit with room to spare.
        labels: Labels (N,).
        names: One name for each image.
        device: Device of the batches.
    """

    def __init__(self, maps: Tensor | DiskFeatures, labels: Labels, names: list[str], device: torch.device) -> None:
        self.maps = maps.to(device) if maps.nbytes < 0.4 * free_device_memory(device) else maps
        self.labels, self.names, self.device = labels, names, device

    def whole(self) -> Tensor:
        """Return all maps."""
        return self.maps if isinstance(self.maps, Tensor) else self.maps.to(torch.device("cpu"))

    def name(self, index: int) -> str:
        """Return the name of an image."""
        return self.names[index]

    def train(
        self, indices: ArrayLike, generator: torch.Generator, out: Tensor | None = None, rows: slice = slice(None)
    ) -> Tensor:
        """Return the maps of a batch; nothing is random."""
        maps = self.test(np.asarray(indices)[rows])
        return maps if out is None else out.copy_(maps)

    def test(self, indices: ArrayLike) -> Tensor:
        """Return the maps of a batch."""
        rows = torch.as_tensor(indices, dtype=torch.int64)
        if isinstance(self.maps, Tensor) and self.maps.device.type != "cpu":
            return self.maps.index_select(0, rows.pin_memory().to(self.device, non_blocking=True))
        maps = self.maps.index_select(0, rows) if isinstance(self.maps, Tensor) else self.maps.take(rows)
        return maps if self.device.type == "cpu" else maps.pin_memory().to(self.device, non_blocking=True)


class QueryGallery:
    """Queries and their gallery: embedded as one split, compared as two.

    Args:
        queries: Queries.
        gallery: References; labels name the same classes.
    """

    def __init__(self, queries: Inputs, gallery: Inputs) -> None:
        self.queries, self.gallery = queries, gallery
        self.count = len(queries.labels)
        self.labels: Labels = np.concatenate([queries.labels, gallery.labels])

    def name(self, index: int) -> str:
        """Return the name of an image."""
        return self.queries.name(index) if index < self.count else self.gallery.name(index - self.count)

    def train(
        self, indices: ArrayLike, generator: torch.Generator, out: Tensor | None = None, rows: slice = slice(None)
    ) -> Tensor:
        """Raise `NotImplementedError`: queries and galleries are for evaluation."""
        raise NotImplementedError("queries and their gallery are for evaluation; train on another split")

    def test(self, indices: ArrayLike) -> Tensor:
        """Return a batch as evaluation uses it; indices of queries come first."""
        rows = np.asarray(indices, dtype=np.int64)
        queries, gallery = rows[rows < self.count], rows[rows >= self.count] - self.count
        parts = [side.test(some) for side, some in ((self.queries, queries), (self.gallery, gallery)) if len(some)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class PixelInputs:
    """Gray images of one size, without crops.

    Args:
        pixels: Images (N, h, w) uint8, on the device of the batches.
        labels: Labels (N,).
        name: Prefix of the name of each image, before its index.
    """

    def __init__(self, pixels: Tensor, labels: Labels, name: str) -> None:
        self.pixels, self.labels, self._name = pixels, labels, name

    def name(self, index: int) -> str:
        """Return the prefix and the index."""
        return f"{self._name} {index}"

    def train(
        self, indices: ArrayLike, generator: torch.Generator, out: Tensor | None = None, rows: slice = slice(None)
    ) -> Tensor:
        """Return a batch; nothing is random."""
        images = self.test(np.asarray(indices)[rows])
        return images if out is None else out.copy_(images)

    def test(self, indices: ArrayLike) -> Tensor:
        """Return images (B, 3, h, w) in [0, 1]."""
        rows = torch.as_tensor(indices, dtype=torch.int64).to(self.pixels.device)
        return (self.pixels[rows, None] / 255).expand(-1, 3, -1, -1)
