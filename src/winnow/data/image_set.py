"""Labeled images that are read by index: the view of data that all of winnow uses."""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from winnow.data.decoding import read_image, upright_size

Labels = NDArray[np.int64]


class ImageSet(ABC):
    """Labeled images. A subclass sets the attributes and implements three methods.

    Attributes:
        labels: (N,) int64, each an index into `class_names`.
        class_names: One name per class.
        in_memory: Whether the pixels are in memory. Such a set is decoded by threads, because each process would need
            a copy.
    """

    labels: Labels
    class_names: tuple[str, ...]
    in_memory: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def name(self, index: int) -> str:
        """Return the path of an image, or a generated name without a file."""

    @abstractmethod
    def read(self, index: int) -> Image.Image:
        """Decode one image to upright RGB."""

    @abstractmethod
    def cache_key(self, index: int) -> str:
        """Return a text that changes whenever the pixels of the image may have changed."""

    def size(self, index: int) -> tuple[int, int]:
        """Return width and height of one upright image, in pixels."""
        return self.read(index).size

    def fingerprint(self) -> str:
        """Return a hash of all cache keys and labels.

        Caches of the whole set use it as their key.
        """
        digest = hashlib.sha256()
        for index in range(len(self)):
            digest.update(f"{self.cache_key(index)}\0{self.labels[index]}\n".encode())
        return digest.hexdigest()[:16]

    def select_classes(self, classes: Sequence[int]) -> ImageSet:
        """Return the images of the given classes, relabeled 0, 1, ... in the given order."""
        position = {int(label): new for new, label in enumerate(classes)}
        keep = [i for i, label in enumerate(self.labels.tolist()) if label in position]
        labels = np.array([position[int(self.labels[i])] for i in keep], dtype=np.int64)
        return Subset(self, keep, labels, tuple(self.class_names[c] for c in classes))

    def select(self, indices: Sequence[int]) -> ImageSet:
        """Return the images at the given indices, in the given order, with their labels."""
        return Subset(self, indices, self.labels[np.asarray(indices, dtype=np.int64)], self.class_names)


class Subset(ImageSet):
    """Selected images of a parent set, with separate labels.

    Args:
        parent: Set that the images are read from.
        indices: Positions of the images in the parent.
        labels: (N,) label of each selected image.
        class_names: One name per class of `labels`.
    """

    def __init__(self, parent: ImageSet, indices: Sequence[int], labels: Labels, class_names: tuple[str, ...]) -> None:
        self.parent = parent
        self.in_memory = parent.in_memory
        self.indices = np.asarray(indices, dtype=np.int64)
        self.labels = labels
        self.class_names = class_names

    def name(self, index: int) -> str:
        """Return the name of the image in the parent."""
        return self.parent.name(int(self.indices[index]))

    def read(self, index: int) -> Image.Image:
        """Decode one image to upright RGB."""
        return self.parent.read(int(self.indices[index]))

    def size(self, index: int) -> tuple[int, int]:
        """Return width and height of the image in the parent."""
        return self.parent.size(int(self.indices[index]))

    def cache_key(self, index: int) -> str:
        """Return the cache key of the image in the parent."""
        return self.parent.cache_key(int(self.indices[index]))


def resolve_subset(images: ImageSet) -> tuple[ImageSet, NDArray[np.int64]]:
    """Return the root set of nested subsets, and the indices of the images in it."""
    indices = np.arange(len(images), dtype=np.int64)
    while isinstance(images, Subset):
        indices, images = images.indices[indices], images.parent
    return images, indices


class FileImages(ImageSet):
    """Labeled image files.

    Args:
        root: Folder that the paths are relative to.
        paths: One path per image, relative to `root` or absolute.
        labels: (N,) int64, each an index into `class_names`.
        class_names: One name per class.
        original_split: Split of each image in the source ("train", "val" or "test"); None without splits.
        notes: Sentences for the user about images or folders that were skipped.
    """

    def __init__(
        self,
        root: str | Path,
        paths: Sequence[str],
        labels: Labels,
        class_names: tuple[str, ...],
        *,
        original_split: Sequence[str] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.root = Path(root)
        self.paths = tuple(paths)
        self.labels = labels
        self.class_names = class_names
        self.original_split = None if original_split is None else tuple(original_split)
        self.notes = tuple(notes)

    @classmethod
    def from_names(
        cls,
        root: str | Path,
        paths: Sequence[str],
        names: Sequence[str],
        *,
        original_split: Sequence[str] | None = None,
        notes: Sequence[str] = (),
    ) -> FileImages:
        """Build a set from one class name per image. Classes are sorted in natural order."""
        class_names = tuple(sorted(set(names), key=natural_key))
        position = {name: label for label, name in enumerate(class_names)}
        labels = np.array([position[name] for name in names], dtype=np.int64)
        return cls(root, paths, labels, class_names, original_split=original_split, notes=notes)

    def path(self, index: int) -> Path:
        """Return the path of the image file."""
        return self.root / self.paths[index]

    def name(self, index: int) -> str:
        """Return the path of the image relative to `root`."""
        return self.paths[index]

    def read(self, index: int) -> Image.Image:
        """Decode one image to upright RGB."""
        return read_image(self.path(index))

    def size(self, index: int) -> tuple[int, int]:
        """Return width and height of one upright image from the header of its file."""
        return upright_size(self.path(index))

    def cache_key(self, index: int) -> str:
        """Return the relative path, size, and modification time of the file."""
        # File names need not be valid Unicode, but hashed text must be.
        name = self.paths[index].encode("utf-8", "backslashreplace").decode()
        try:
            state = os.stat(self.path(index))
        except OSError:
            return f"{name}:missing"
        return f"{name}:{state.st_size}:{state.st_mtime_ns}"


class ArrayImages(ImageSet):
    """Images of one size that are an array in memory.

    Args:
        pixels: (N, h, w) grayscale or (N, h, w, 3) RGB, uint8.
        labels: (N,) int64, each an index into `class_names`.
        source: First part of the image names.
        class_names: One name per class; None for "0", "1", ... up to the largest label.
    """

    in_memory = True

    def __init__(
        self,
        pixels: NDArray[np.uint8],
        labels: Labels,
        source: str = "array",
        *,
        class_names: tuple[str, ...] | None = None,
    ) -> None:
        self.pixels, self.labels, self.source = pixels, labels, source
        count = int(labels.max()) + 1 if len(labels) else 0
        self.class_names = tuple(map(str, range(count))) if class_names is None else class_names

    def name(self, index: int) -> str:
        """Return the source and the position."""
        return f"{self.source}[{index}]"

    def read(self, index: int) -> Image.Image:
        """Return one image as RGB."""
        return Image.fromarray(self.pixels[index]).convert("RGB")

    def cache_key(self, index: int) -> str:
        """Return a checksum of the pixels."""
        # The key of a grayscale image contains the source since version 0.1.0. Existing caches depend on it.
        prefix = index if self.pixels.ndim == 4 else self.name(index)
        return f"{prefix}:{zlib.crc32(self.pixels[index].tobytes())}"


@dataclass(frozen=True)
class Splits:
    """Training, validation, and test images, usually of disjoint classes.

    Attributes:
        train: Images to train on.
        val: Images to choose weights by; the test images in the conventional protocol.
        test: Images to evaluate on; None if there are too few classes. With a gallery, the queries.
        notes: Sentences for the user about skipped images or classes.
        gallery: References of the test queries, with the same labels; None if each test image queries all others.
        ks: Ranks of R@k that the test reports.
        missing: Missing images of a benchmark dataset, by split. Every result contains them.
        archive: How the images of a benchmark dataset differ from its official archive. Every result contains it.
    """

    train: ImageSet
    val: ImageSet
    test: ImageSet | None
    notes: tuple[str, ...] = ()
    gallery: ImageSet | None = None
    ks: tuple[int, ...] = (1, 2, 4, 8)
    missing: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    archive: tuple[str, ...] = ()


def natural_key(text: str) -> tuple[list[str | int], str]:
    """Return a sort key that compares numbers by value: class2 before class10.

    The text itself comes last. Names that differ only in case or leading zeros therefore have one fixed order.
    """
    # The split alternates between text and digits. Two keys therefore never compare text with a number.
    pieces = re.split(r"(\d+)", text)
    parts = [int(piece) if index % 2 else piece.casefold() for index, piece in enumerate(pieces)]
    return parts, text


def first_few(names: Sequence[str], limit: int = 3) -> str:
    """Join the first names, and add the total: `a, b, c, ... (12 in all)`."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown}, ... ({len(names)} in all)"
