"""A benchmark set that was read: its parts, and the folds by which weights are chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from winnow.data.imageset import ImageSet, Splits
from winnow.errors import ConfigError

FoldsBy = Literal["classes", "images"]


@dataclass(frozen=True)
class Benchmark:
    """A published set, split as published.

    Attributes:
        name: What it is called in `data=NAME`.
        train: The images to learn from, before any are set aside for validation.
        test: The images to judge by; the queries, where there is a gallery.
        gallery: What the queries are compared with; None: each with all the others.
        val: The set's own validation images; None where weights are chosen on a fold of the training images.
        ks: The ranks of R@k it is reported at.
        missing: What it lacks, by part: "found" and "expected" images, and the "names" of what is missing.
        folds_by: What folds are cut by; None where there are none.
    """

    name: str
    train: ImageSet
    test: ImageSet
    gallery: ImageSet | None = None
    val: ImageSet | None = None
    ks: tuple[int, ...] = (1, 2, 4, 8)
    missing: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    folds_by: FoldsBy | None = "classes"

    def splits(self, fold: int | None = None, folds: int = 4, *, on_test: bool = False) -> Splits:
        """Return training, validation and test images.

        Args:
            fold: Which of the contiguous parts of the training classes validates, counted from the last: 1 is the last
                quarter of the classes. None: the set's own validation images, or fold 1.
            folds: How many parts there are.
            on_test: Train on all of the training classes and validate on the test, as the conventional protocol does.

        Raises:
            ConfigError: for a fold that there is not.
        """
        train, val = self.train, self.val
        if on_test:
            if fold is not None:
                raise ConfigError(f"data.fold={fold}: with data.val_classes=test there are no folds; leave one out")
            val = self.test
        elif fold is not None or val is None:
            train, val = self._fold(1 if fold is None else fold, folds)
        assert val is not None, "one of the three"
        notes = tuple(
            f"{self.name}: {part} has {one['found']:,} of {one['expected']:,} images"
            for part, one in self.missing.items()
        )
        return Splits(train, val, self.test, notes, gallery=self.gallery, ks=self.ks, missing=self.missing)

    def _fold(self, fold: int, folds: int) -> tuple[ImageSet, ImageSet]:
        """Return what a fold trains on and what it validates on."""
        if self.folds_by is None:
            has = "has its own validation images" if self.val is not None else "has no validation images"
            raise ConfigError(
                f"data.fold: {self.name} {has} and no folds; data.val_classes=test validates on its test images"
            )
        if folds < 2 or not 1 <= fold <= folds:
            raise ConfigError(f"data.fold={fold}: must be within 1-{folds}, of data.folds={folds}")
        if self.folds_by == "classes":
            count = len(self.train.class_names)
            if count < 2 * folds:
                raise ConfigError(f"data.folds={folds}: {count} training classes leave fewer than 2 in a fold")
            held = fold_range(count, fold, folds)
            rest = [label for label in range(count) if label not in held]
            return self.train.of_classes(rest), self.train.of_classes(held)
        held_images: set[int] = set()
        for label in range(len(self.train.class_names)):
            members = np.flatnonzero(self.train.labels == label)
            part = fold_range(len(members), fold, folds)
            held_images.update(members[part.start : part.stop].tolist())
        every = range(len(self.train))
        return (
            self.train.of_images([i for i in every if i not in held_images]),
            self.train.of_images(sorted(held_images)),
        )


def fold_range(count: int, fold: int, folds: int) -> range:
    r"""Return the positions of fold $s$ of $S$: $[e_{S-s}, e_{S-s+1})$ with $e_i = \lfloor i \, C / S \rfloor$.

    Model 1 of the documents validates on the last part, model 4 on the first.
    """
    edges = [int(edge) for edge in np.linspace(0, count, folds + 1)]
    return range(edges[folds - fold], edges[folds - fold + 1])
