"""The one view of data: labelled images that can be read by index."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Labels = NDArray[np.int64]


class ImageSet(ABC):
    """Labelled images. Whatever reads data takes one of these; where the pixels come from is the subclass's matter.

    Attributes:
        labels: (N,) int64, each an index into `class_names`.
        class_names: One name per class.
        in_memory: Whether its pixels are in memory, so that each process that reads them would need a copy.
    """

    labels: Labels
    class_names: tuple[str, ...]
    in_memory: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def name(self, index: int) -> str:
        """Return the image's name: the path a user knows it by, or a made-up one for made-up images."""

    @abstractmethod
    def read(self, index: int) -> Image.Image:
        """Decode one image to upright RGB."""

    @abstractmethod
    def identity(self, index: int) -> str:
        """Return a text that changes whenever the image's pixels may have changed."""

    def fingerprint(self) -> str:
        """Return a hash of all images and labels, to key caches by."""
        digest = hashlib.sha256()
        for index in range(len(self)):
            digest.update(f"{self.identity(index)}\0{self.labels[index]}\n".encode())
        return digest.hexdigest()[:16]

    def of_classes(self, classes: Sequence[int]) -> ImageSet:
        """Return the images of some classes, relabelled 0, 1, ... in the order given."""
        position = {int(label): new for new, label in enumerate(classes)}
        keep = [i for i, label in enumerate(self.labels.tolist()) if label in position]
        labels = np.array([position[int(self.labels[i])] for i in keep], dtype=np.int64)
        return Subset(self, keep, labels, tuple(self.class_names[c] for c in classes))

    def of_images(self, indices: Sequence[int]) -> ImageSet:
        """Return some of the images, in the order given, with their labels."""
        return Subset(self, indices, self.labels[np.asarray(indices, dtype=np.int64)], self.class_names)


class Subset(ImageSet):
    """Some images of another set, with labels of their own."""

    def __init__(self, parent: ImageSet, indices: Sequence[int], labels: Labels, class_names: tuple[str, ...]) -> None:
        self.parent = parent
        self.in_memory = parent.in_memory
        self.indices = np.asarray(indices, dtype=np.int64)
        self.labels = labels
        self.class_names = class_names

    def name(self, index: int) -> str:
        """Return the image's name in its parent."""
        return self.parent.name(int(self.indices[index]))

    def read(self, index: int) -> Image.Image:
        """Decode one image to upright RGB."""
        return self.parent.read(int(self.indices[index]))

    def identity(self, index: int) -> str:
        """Return the identity of the parent's image."""
        return self.parent.identity(int(self.indices[index]))


@dataclass(frozen=True)
class Splits:
    """Training, validation and test images, in general of disjoint classes.

    Attributes:
        train: To learn from.
        val: To choose weights by; the test set itself in the conventional protocol.
        test: To judge by; None where classes are too few. The queries, where there is a gallery.
        notes: Sentences for the user about what was left out on the way.
        gallery: What queries of the test are compared with, labelled alike; None: each with all the others.
        ks: The ranks of R@k that the test is reported at.
        missing: What a benchmark set lacks, by part; it goes into every result.
    """

    train: ImageSet
    val: ImageSet
    test: ImageSet | None
    notes: tuple[str, ...] = ()
    gallery: ImageSet | None = None
    ks: tuple[int, ...] = (1, 2, 4, 8)
    missing: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
