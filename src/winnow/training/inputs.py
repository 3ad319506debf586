"""What a model is fed in training and in judging: crops of images, or a frozen backbone's feature maps."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from winnow.data import Crops, Labels, StoredImages
from winnow.data.memory import free_device
from winnow.training.kept_features import MapsOnDisk


class Inputs(Protocol):
    """Labelled network input by index; the trainer knows no more than this."""

    labels: Labels

    def name(self, index: int) -> str:
        """Return the image's name, for messages."""
        ...

    def train(
        self, indices: ArrayLike, generator: torch.Generator, out: Tensor | None = None, share: slice = slice(None)
    ) -> Tensor:
        """Return a training batch; what is random in it comes from the generator.

        Given `out`, an earlier batch, the new one takes its place. Given a share, only that part of the batch is
        returned, as it is within the whole. Nothing here may wait for the device.
        """
        ...

    def test(self, indices: ArrayLike) -> Tensor:
        """Return a batch as it is judged."""
        ...


class CropInputs:
    """Crops of stored images: random in training, central in judging.

    Args:
        store: The images.
        crops: How they are cut.
        larger: The same images of `crops.train_resize`, if training crops are cut from such.
    """

    def __init__(self, store: StoredImages, crops: Crops, larger: StoredImages | None = None) -> None:
        self.store, self.crops, self.source = store, crops, store if larger is None else larger
        self.labels = store.labels

    def name(self, index: int) -> str:
        """Return the image's name."""
        return self.store.name(index)

    def train(
        self, indices: ArrayLike, generator: torch.Generator, out: Tensor | None = None, share: slice = slice(None)
    ) -> Tensor:
        """Return random crops (B, 3, h, w)."""
        return self.crops.train(self.source, indices, generator, out, share)

    def test(self, indices: ArrayLike) -> Tensor:
        """Return centre crops (B, 3, h, w)."""
        return self.crops.test(self.store, indices)


class FeatureInputs:
    """Feature maps (N, C, h, w) or tokens (N, n, C) that a frozen backbone made once.

    Args:
        maps: On the CPU or on disk. They are moved to a GPU if they fit with room to spare.
        labels: (N,).
        names: One per image.
        device: Where batches are wanted.
    """

    def __init__(self, maps: Tensor | MapsOnDisk, labels: Labels, names: list[str], device: torch.device) -> None:
        self.maps = maps.to(device) if maps.nbytes < 0.4 * free_device(device) else maps
        self.labels, self.names, self.device = labels, names, device

    def whole(self) -> Tensor:
        """Return all maps."""
        return self.maps if isinstance(self.maps, Tensor) else self.maps.to(torch.device("cpu"))

    def name(self, index: int) -> str:
        """Return the image's name."""
        return self.names[index]

    def train(
        self, indices: ArrayLike, generator: torch.Generator, out: Tensor | None = None, share: slice = slice(None)
    ) -> Tensor:
        """Return the maps of some images; nothing about them is random."""
        maps = self.test(np.asarray(indices)[share])
        return maps if out is None else out.copy_(maps)

    def test(self, indices: ArrayLike) -> Tensor:
        """Return the maps of some images."""
        rows = torch.as_tensor(indices, dtype=torch.int64)
        if isinstance(self.maps, Tensor) and self.maps.device.type != "cpu":
            return self.maps.index_select(0, rows.pin_memory().to(self.device, non_blocking=True))
        maps = self.maps.index_select(0, rows) if isinstance(self.maps, Tensor) else self.maps.take(rows)
        return maps if self.device.type == "cpu" else maps.pin_memory().to(self.device, non_blocking=True)


class QueryGallery:
    """Queries and the gallery they are compared with: embedded one after the other, then judged apart.

    Args:
        queries: What is looked up.
        gallery: What it is looked up in; labels are of the same classes.
    """

    def __init__(self, queries: Inputs, gallery: Inputs) -> None:
        self.queries, self.gallery = queries, gallery
        self.count = len(queries.labels)
        self.labels: Labels = np.concatenate([queries.labels, gallery.labels])

    def name(self, index: int) -> str:
        """Return the image's name."""
        return self.queries.name(index) if index < self.count else self.gallery.name(index - self.count)

    def train(
        self, indices: ArrayLike, generator: torch.Generator, out: Tensor | None = None, share: slice = slice(None)
    ) -> Tensor:
        """Refuse: nothing is trained on a test."""
        raise NotImplementedError("queries and their gallery are for judging")

    def test(self, indices: ArrayLike) -> Tensor:
        """Return a batch as it is judged; the indices of queries come first."""
        rows = np.asarray(indices, dtype=np.int64)
        asked, kept = rows[rows < self.count], rows[rows >= self.count] - self.count
        parts = [side.test(some) for side, some in ((self.queries, asked), (self.gallery, kept)) if len(some)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class PixelInputs:
    """Grey images of one size as they are, in training as in judging.

    Args:
        pixels: (N, h, w) uint8, on the device where batches are wanted.
        labels: (N,).
        name: What an image is called, before its position.
    """

    def __init__(self, pixels: Tensor, labels: Labels, name: str) -> None:
        self.pixels, self.labels, self._name = pixels, labels, name

    def name(self, index: int) -> str:
        """Return the name and the position."""
        return f"{self._name} {index}"

    def train(
        self, indices: ArrayLike, generator: torch.Generator, out: Tensor | None = None, share: slice = slice(None)
    ) -> Tensor:
        """Return some images; nothing about them is random."""
        images = self.test(np.asarray(indices)[share])
        return images if out is None else out.copy_(images)

    def test(self, indices: ArrayLike) -> Tensor:
        """Return some images (B, 3, h, w) in [0, 1]."""
        rows = torch.as_tensor(indices, dtype=torch.int64).to(self.pixels.device)
        return (self.pixels[rows, None] / 255).expand(-1, 3, -1, -1)
