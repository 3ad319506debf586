"""Cifar Collage: one image of Cifar-100 that gives the class, among three that do not."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from winnow.data.imageset import ImageSet
from winnow.data.sets.base import Contents, Dataset
from winnow.data.sets.cifar100 import CLASSES, SUPERCLASSES, Cifar100

BACKGROUND = ("large_man-made_outdoor_things", "large_natural_outdoor_scenes", "trees", "flowers")
TARGETS = tuple(name for name in SUPERCLASSES if name not in BACKGROUND)

Parts = Literal["2/1/2", "3/0/2"]

CELL = 32
COMPOSITION = 1
"""Part of every identity; count it up when the same images come to be composed to other pixels."""


class CifarCollage(Dataset):
    """Collages of 2 x 2 cells whose label is the super-class of one of them, or that cell alone (`distilled`).

    The classes of the 16 target super-classes, and those of the 4 background super-classes, are divided among training,
    validation and test in the order of the alphabet, so that neither is seen before the test. The label, a super-class,
    is the same in all parts.

    Args:
        parts: Classes of each super-class in training, validation and test: 2/1/2 as in the documents' text, 3/0/2 as
            in the authors' code.
        distilled: Leave out the background: 32 x 32 pixels.
        seed: Chooses cells and background images.
        per_class: Images each class of Cifar-100 has in all.
    """

    title = "Cifar Collage"
    terms = Cifar100.terms
    home = Cifar100.home
    layout = Cifar100.layout + " (files of Cifar-100)"
    folder = Cifar100.name
    sources = Cifar100.sources
    folds_by = None

    def __init__(self, *, parts: Parts = "2/1/2", distilled: bool = False, seed: int = 0, per_class: int = 600) -> None:
        counts = [int(count) for count in parts.split("/")]
        self.edges = dict(
            zip(("train", "val", "test"), zip(np.cumsum([0, *counts]), counts, strict=False), strict=True)
        )
        self.distilled, self.seed = distilled, seed
        self.name = "cifar_collage" + ("_authors" if parts == "3/0/2" else "") + ("_distilled" if distilled else "")
        shown = "single images" if distilled else "collages of 2 x 2 images, of which one matters"
        self.about = f"{shown}; the label is one of 16 super-classes, with {parts} classes each to train/validate/test"
        present = [part for part, (_, count) in self.edges.items() if count]
        self.counts = {part: len(TARGETS) * self.edges[part][1] * per_class for part in present}
        self.classes = {part: len(TARGETS) for part in present}

    def classes_of(self, part: str) -> tuple[str, ...]:
        """Return the classes of Cifar-100 that a part is made of, those of its background among them."""
        start, count = self.edges[part]
        return tuple(name for members in SUPERCLASSES.values() for name in members[int(start) : int(start) + count])

    def read(self, root: Path) -> Contents:
        """Read Cifar-100, its training and test images alike, and choose what goes into each collage."""
        source = Cifar100(train=0, test=0).read(root)
        images = _Both([source.parts["train"], source.parts["test"]])
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
        return Contents(made)


class Collages(ImageSet):
    """Every foreground image once, in a random cell, among three background images.

    Background images come from a shuffled stream without replacement, shuffled anew when it has run out.

    Args:
        images: What the collages are made of.
        foreground: For each label the positions in `images`.
        background: Positions in `images`.
        distilled: The foreground images alone.
        seed: Of the choices.
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

    def identity(self, index: int) -> str:
        """Return a text that changes with any of the four images or their places."""
        used = [self.foreground[index]] if self.distilled else [self.foreground[index], *self.background[index]]
        told = "/".join(self.images.identity(int(i)) for i in used)
        return f"{COMPOSITION}:{'' if self.distilled else self.cells[index]}:{zlib.crc32(told.encode())}"


class _Both(ImageSet):
    """Sets of the same classes, one after the other."""

    def __init__(self, sets: Sequence[ImageSet]) -> None:
        self.sets = tuple(sets)
        self.in_memory = all(one.in_memory for one in sets)
        self.starts = np.cumsum([0, *(len(one) for one in sets)])
        self.labels = np.concatenate([one.labels for one in sets])
        self.class_names = sets[0].class_names

    def _place(self, index: int) -> tuple[ImageSet, int]:
        which = int(np.searchsorted(self.starts, index, side="right")) - 1
        return self.sets[which], index - int(self.starts[which])

    def name(self, index: int) -> str:
        """Return the image's name in its set."""
        images, place = self._place(index)
        return images.name(place)

    def read(self, index: int) -> Image.Image:
        """Return the image."""
        images, place = self._place(index)
        return images.read(place)

    def identity(self, index: int) -> str:
        """Return the identity in its set, and which set that is."""
        images, place = self._place(index)
        return f"{self.sets.index(images)}:{images.identity(place)}"


def _members(images: ImageSet, superclass: str, chosen: slice) -> NDArray[np.int64]:
    """Return the positions of the images of some classes of a super-class, class after class."""
    names = SUPERCLASSES[superclass][chosen]
    return np.concatenate([np.flatnonzero(images.labels == CLASSES.index(name)) for name in names])
