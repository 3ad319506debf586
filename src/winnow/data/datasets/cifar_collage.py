"""CIFAR Collage datasets, in which one of four cells gives the class."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from winnow.data.datasets.base import Dataset, DatasetParts
from winnow.data.datasets.cifar import CIFAR100, CIFAR100_CLASSES, CIFAR100_SUPERCLASSES
from winnow.data.image_set import ImageSet

BACKGROUND = ("large_man-made_outdoor_things", "large_natural_outdoor_scenes", "trees", "flowers")
TARGETS = tuple(name for name in CIFAR100_SUPERCLASSES if name not in BACKGROUND)

Parts = Literal["2/1/2", "3/0/2"]

CELL = 32
COMPOSITION = 1
"""Part of every cache key.

Increase it when the same images are composed to different pixels.
"""


class CIFARCollage(Dataset):
    """CIFAR Collage: 2 x 2 images of CIFAR-100 ([Thesis], Fig. 5.5).

    Split by class: the 5 classes of each of 16 target and 4 background superclasses are divided among training,
    validation, and test in alphabetical order. Target and background classes of the test are therefore unseen in
    training. The label is the target superclass, and the 16 labels are the same in all parts.
    Layout: files of CIFAR-100.
    License: as CIFAR-100.

    Args:
        parts: Number of classes of each superclass in training, validation, and test: 2/1/2 as in the text of
            [Thesis], 3/0/2 as in the authors' code.
        distilled: Whether to omit the background and return the target image alone, 32 x 32 pixels.
        seed: Seed of cells and background images.
        per_class: Number of images of each CIFAR-100 class, training and test together.
    """

    title = "CIFAR Collage"
    terms = CIFAR100.terms
    home = CIFAR100.home
    layout = CIFAR100.layout + " (files of CIFAR-100)"
    folder = CIFAR100.name
    sources = CIFAR100.sources
    folds_by = None

    def __init__(self, *, parts: Parts = "2/1/2", distilled: bool = False, seed: int = 0, per_class: int = 600) -> None:
        counts = [int(count) for count in parts.split("/")]
        self.edges = dict(
            zip(("train", "val", "test"), zip(np.cumsum([0, *counts]), counts, strict=False), strict=True)
        )
        self.distilled, self.seed = distilled, seed
        self.name = "cifar_collage" + ("_authors" if parts == "3/0/2" else "") + ("_distilled" if distilled else "")
        shown = "single images" if distilled else "collages of 2 x 2 images, of which one gives the class"
        self.about = f"{shown}; the label is one of 16 superclasses, with {parts} classes each to train/validate/test"
        present = [part for part, (_, count) in self.edges.items() if count]
        self.counts = {part: len(TARGETS) * self.edges[part][1] * per_class for part in present}
        self.classes = {part: len(TARGETS) for part in present}

    def classes_of(self, part: str) -> tuple[str, ...]:
        """Return the CIFAR-100 classes of a part, including its background classes."""
        start, count = self.edges[part]
        return tuple(
            name for members in CIFAR100_SUPERCLASSES.values() for name in members[int(start) : int(start) + count]
        )

    def read(self, root: Path) -> DatasetParts:
        """Read all images of CIFAR-100, and choose the images of each collage."""
        source = CIFAR100(train=0, test=0).read(root)
        images = _Concatenated([source.parts["train"], source.parts["test"]])
        made: dict[str, ImageSet] = {}
        for number, part in enumerate(self.edges):
            start, count = self.edges[part]
            if count:
                chosen = slice(int(start), int(start) + count)
                made[part] = Collages(
                    images,
                    [_members(images, name, chosen) for name in TARGETS],
                    np.concatenate([_members(images, name, chosen) for name in BACKGROUND]),
                    distilled=self.distilled,
                    seed=(self.seed, number),
                )
        return DatasetParts(made, notes=source.notes)


class Collages(ImageSet):
    """Collages of one foreground image in a random cell and three background images.

    Background images come from a shuffled stream without replacement. It is shuffled again when it ends.

    Args:
        images: Set that the collages are composed of.
        foreground: Positions in `images` of the foreground images of each label.
        background: Positions in `images` of the background images.
        distilled: Whether to return the foreground images alone.
        seed: Seed of cells and background images.
    """

    def __init__(
        self,
        images: ImageSet,
        foreground: Sequence[NDArray[np.int64]],
        background: NDArray[np.int64],
        *,
        distilled: bool,
        seed: tuple[int, int],
    ) -> None:
        self.images, self.distilled = images, distilled
        self.in_memory = images.in_memory
        self.foreground = np.concatenate(list(foreground))
        self.labels = np.repeat(np.arange(len(foreground), dtype=np.int64), [len(one) for one in foreground])
        self.class_names = TARGETS
        rng = np.random.default_rng(seed)
        count = len(self.labels)
        self.cells = rng.integers(4, size=count)
        rounds = -(-3 * count // max(1, len(background)))
        stream = [rng.permutation(background) for _ in range(rounds)]
        self.background = np.concatenate(stream)[: 3 * count].reshape(count, 3)

    def name(self, index: int) -> str:
        """Return the name of the foreground image."""
        return self.images.name(int(self.foreground[index]))

    def read(self, index: int) -> Image.Image:
        """Compose one image, 64 x 64 pixels, or 32 x 32 if distilled."""
        front = self.images.read(int(self.foreground[index]))
        if self.distilled:
            return front
        collage = Image.new("RGB", (2 * CELL, 2 * CELL))
        cells = [cell for cell in range(4) if cell != self.cells[index]]
        behind = [self.images.read(int(i)) for i in self.background[index]]
        for cell, picture in zip([int(self.cells[index]), *cells], [front, *behind], strict=True):
            collage.paste(picture, (cell % 2 * CELL, cell // 2 * CELL))
        return collage

    def cache_key(self, index: int) -> str:
        """Return a text that changes with any of the four images or their cells."""
        used = [self.foreground[index]] if self.distilled else [self.foreground[index], *self.background[index]]
        keys = "/".join(self.images.cache_key(int(i)) for i in used)
        return f"{COMPOSITION}:{'' if self.distilled else self.cells[index]}:{zlib.crc32(keys.encode())}"


class _Concatenated(ImageSet):
    """Sets of the same classes, one after the other."""

    def __init__(self, sets: Sequence[ImageSet]) -> None:
        self.sets = tuple(sets)
        self.in_memory = all(one.in_memory for one in sets)
        self.starts = np.cumsum([0, *(len(one) for one in sets)])
        self.labels = np.concatenate([one.labels for one in sets])
        self.class_names = sets[0].class_names

    def _locate(self, index: int) -> tuple[ImageSet, int]:
        which = int(np.searchsorted(self.starts, index, side="right")) - 1
        return self.sets[which], index - int(self.starts[which])

    def name(self, index: int) -> str:
        """Return the image's name in its set."""
        images, position = self._locate(index)
        return images.name(position)

    def read(self, index: int) -> Image.Image:
        """Return the image."""
        images, position = self._locate(index)
        return images.read(position)

    def cache_key(self, index: int) -> str:
        """Return the cache key of the image in its set, and the position of the set."""
        images, position = self._locate(index)
        return f"{self.sets.index(images)}:{images.cache_key(position)}"


def _members(images: ImageSet, superclass: str, chosen: slice) -> NDArray[np.int64]:
    """Return the positions of the images of chosen classes of a superclass."""
    names = CIFAR100_SUPERCLASSES[superclass][chosen]
    return np.concatenate([np.flatnonzero(images.labels == CIFAR100_CLASSES.index(name)) for name in names])
