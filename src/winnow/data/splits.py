"""Class-disjoint training, validation, and test splits of an image set."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from winnow.data.image_set import FileImages, ImageSet, Splits, first_few
from winnow.errors import ConfigError, DataError

Classes = dict[str, list[int]]

ON_TEST = "test"
"""Value of `val_classes` that validates on the test classes."""

_LONG_NAMES = {"train": "training", "val": "validation", "test": "test"}


def split_by_class(
    images: ImageSet,
    *,
    train_classes: str | None = None,
    val_classes: str | None = None,
    test_classes: str | None = None,
    val_fraction: float = 0.15,
    test_fraction: float = 0.25,
    seed: int = 0,
) -> Splits:
    """Split images by class, because retrieval is evaluated on unseen classes.

    Class ranges in the arguments come first. Otherwise the `original_split` of a `FileImages` applies. Otherwise
    classes are split at random. If the original splits or the class ranges contain no validation classes, these are
    taken from the training classes. Fewer than 6 classes are split at random without a test split.

    Args:
        images: Set to split.
        train_classes: Positions (from 1) in the order of class names, such as "1-50,60,76-100".
        val_classes: Positions in the same format. Requires `train_classes`. "test" validates on the test classes; the
            reported result is then chosen on the test classes.
        test_classes: Positions in the same format. Without `train_classes`, the other classes are split at random into
            training and validation.
        val_fraction: Fraction of the randomly split classes for validation; at least 2 classes.
        test_fraction: Fraction of the randomly split classes for testing; at least 2 classes, none for 0.
        seed: Seed of the random split.

    Raises:
        ConfigError: If class ranges or fractions are invalid.
        DataError: If there are too few classes, or original splits share classes.
    """
    names = images.class_names
    notes = images.notes if isinstance(images, FileImages) else ()
    if len(names) < 4:
        count = "1 class" if len(names) == 1 else f"{len(names)} classes"
        raise DataError(
            f"data: {count} ({', '.join(names)}), at least 4 required (2 for training, 2 for validation). "
            + " ".join(["Add classes.", *(f"{one}." for one in notes)])
        )
    if not (val_fraction > 0 and test_fraction >= 0 and val_fraction + test_fraction < 1):
        raise ConfigError(
            f"data.val_fraction={val_fraction}, data.test_fraction={test_fraction}: expected fractions of the classes "
            "with a sum below 1 and a positive data.val_fraction. Lower them."
        )
    ranges = {"train": train_classes, "val": val_classes, "test": test_classes}
    if any(text is not None for text in ranges.values()):
        classes = _split_by_ranges(ranges, len(names), val_fraction, seed)
        unused = len(names) - len(set().union(*classes.values()))
        if unused:
            notes += (f"{unused} of {len(names)} classes are in no split and are skipped",)
    elif isinstance(images, FileImages) and images.original_split is not None:
        classes = _split_as_given(images, images.original_split, val_fraction, test_fraction, seed)
    else:
        classes = _split_at_random(range(len(names)), val_fraction, test_fraction, seed)
    _check(images, classes)
    test = images.select_classes(classes["test"]) if classes["test"] else None
    val = test if val_classes == ON_TEST and test is not None else images.select_classes(classes["val"])
    return Splits(images.select_classes(classes["train"]), val, test, notes)


def parse_classes(text: str, count: int, setting: str) -> list[int]:
    """Parse "1-50,60" to positions from 0, and check them.

    Args:
        text: Positions from 1, and ranges of them, separated by commas.
        count: Number of classes.
        setting: Config key for the error message.

    Raises:
        ConfigError: If a range is invalid, or a class occurs twice.
    """
    positions: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if match is None:
            raise ConfigError(
                f"{setting}={text}: '{part.strip()}' is no class range. Write for example 1-50,60,76-100."
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if not 1 <= first <= last <= count:
            raise ConfigError(f"{setting}={text}: '{part.strip()}' is not within the classes 1-{count}. Correct it.")
        positions += range(first - 1, last)
    if len(set(positions)) < len(positions):
        raise ConfigError(f"{setting}={text}: a class occurs twice. Name each class once.")
    return positions


def _split_by_ranges(ranges: dict[str, str | None], count: int, val_fraction: float, seed: int) -> Classes:
    if (ranges["train"] is None) != (ranges["val"] is None):
        raise ConfigError(
            "data.train_classes, data.val_classes: only one is set. Set both, or only data.test_classes to split the "
            "other classes at random."
        )
    on_test = ranges["val"] == ON_TEST
    if on_test:
        if ranges["test"] is None:
            raise ConfigError("data.val_classes=test: data.test_classes is not set. Set it.")
        ranges = {**ranges, "val": ranges["test"]}
    classes: Classes = {
        split: [] if text is None else parse_classes(text, count, f"data.{split}_classes")
        for split, text in ranges.items()
    }
    for one, other in (("train", "val"), ("train", "test"), ("val", "test")):
        if on_test and one == "val":
            continue
        both = sorted(set(classes[one]) & set(classes[other]))
        if both:
            raise ConfigError(
                f"data.{one}_classes, data.{other}_classes: shared classes "
                f"{first_few([str(position + 1) for position in both])}. Name each class in one split only."
            )
    if ranges["train"] is None:
        rest = sorted(set(range(count)) - set(classes["test"]))
        classes = _split_at_random(rest, val_fraction, 0.0, seed) | {"test": classes["test"]}
    return classes


def _split_as_given(
    images: FileImages, original_split: Sequence[str], val_fraction: float, test_fraction: float, seed: int
) -> Classes:
    pairs = set(zip(original_split, images.labels.tolist(), strict=True))
    classes: Classes = {split: sorted(c for s, c in pairs if s == split) for split in _LONG_NAMES}
    for one, other in (("train", "val"), ("train", "test"), ("val", "test")):
        both = sorted(set(classes[one]) & set(classes[other]))
        if both:
            shared = first_few([images.class_names[label] for label in both])
            raise DataError(
                f"{images.root}: the {one} and {other} splits share classes ({shared}), but evaluation requires "
                "unseen classes. Remove the split column or the split folders (one folder per class); winnow then "
                "splits by class."
            )
    if not classes["train"]:
        raise DataError(f"{images.root}: the original splits contain no training images. Add a train split.")
    if not classes["val"]:
        test = classes["test"]
        dealt = _split_at_random(classes["train"], val_fraction, 0.0 if test else test_fraction, seed)
        classes = dealt | {"test": test or dealt["test"]}
    return classes


def _split_at_random(classes: Sequence[int], val_fraction: float, test_fraction: float, seed: int) -> Classes:
    """Split classes at random, at least 2 per split; none for testing below 6."""
    count = len(classes)
    if count < 4:
        raise DataError(
            f"data: {count} classes left for training and validation, at least 4 required (2 for each). "
            "Add classes, or select fewer test classes."
        )
    test = min(max(2, round(test_fraction * count)), count - 4) if test_fraction > 0 and count >= 6 else 0
    val = min(max(2, round(val_fraction * count)), count - test - 2)
    order = np.random.default_rng(seed).permutation(np.asarray(classes)).tolist()
    return {
        "train": sorted(order[test + val :]),
        "val": sorted(order[test : test + val]),
        "test": sorted(order[:test]),
    }


def _check(images: ImageSet, classes: Classes) -> None:
    """Check that each split has enough classes, and a class of two images."""
    sizes = np.bincount(images.labels, minlength=len(images.class_names))
    for split, members in classes.items():
        if len(members) < 2 and (members or split != "test"):
            raise DataError(
                f"data.{split}_classes: {len(members)} class selected for the {_LONG_NAMES[split]} split, at least 2 "
                "required. Select more classes."
            )
        if split != "train" and members and sizes[members].max() < 2:
            raise DataError(
                f"data.{split}_classes: no class of the {_LONG_NAMES[split]} split has two images, but retrieval needs "
                "two. Add images or select other classes."
            )
