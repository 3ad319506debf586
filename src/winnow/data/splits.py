"""Training, validation and test sets of disjoint classes, from a folder or a CSV file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from winnow.data.fileset import FileSet, first_few
from winnow.data.folder import check_exists, read_folder
from winnow.data.imageset import ImageSet, Splits
from winnow.data.mnist import is_mnist, read_mnist
from winnow.data.table import read_table
from winnow.errors import ConfigError, DataError

Classes = dict[str, list[int]]

ON_TEST = "test"

_LONG_NAMES = {"train": "training", "val": "validation", "test": "test"}


def load_images(path: str | Path) -> ImageSet:
    """Read a folder of class folders, a folder of MNIST's files or a CSV file, unsplit."""
    path = Path(path)
    check_exists(path)
    if path.is_dir():
        return read_mnist(path) if is_mnist(path) else read_folder(path)
    if path.suffix.lower() != ".csv":
        raise DataError(f"{path} is neither a folder of class folders nor a .csv file")
    return read_table(path)


def split_by_class(
    images: ImageSet,
    *,
    train_classes: str | None = None,
    val_classes: str | None = None,
    test_classes: str | None = None,
    val_share: float = 0.15,
    test_share: float = 0.25,
    seed: int = 0,
) -> Splits:
    """Split images so that no class is in two splits: retrieval is judged on classes never trained on.

    Classes named by hand come first, then the splits the images were given in (a `FileSet`'s `given`), else classes
    are dealt at random. Where the given splits or the named classes leave validation open, it is cut from the training
    classes. There is no test split when there are fewer than 6 classes to deal.

    Args:
        images: What to split.
        train_classes: Positions (from 1) in the order of class names, such as "1-50,60,76-100".
        val_classes: Likewise; goes with `train_classes`. "test" validates on the test classes themselves: what is then
            reported was chosen by looking at it.
        test_classes: Likewise; alone, it leaves the other classes to be dealt to training and validation.
        val_share: Share of the dealt classes that is for validation; at least 2 classes.
        test_share: Share of the dealt classes that is for testing; at least 2 classes, none for 0.
        seed: Of the random deal.

    Raises:
        ConfigError: for class ranges or shares that make no sense.
        DataError: when the classes do not suffice, or given splits share classes.
    """
    names = images.class_names
    if len(names) < 4:
        raise DataError(
            f"too few classes ({', '.join(names)}): at least 4 are needed, 2 to learn from and 2 to validate on"
        )
    if not (val_share > 0 and test_share >= 0 and val_share + test_share < 1):
        raise ConfigError(
            f"data.val_share={val_share} and data.test_share={test_share}: "
            "both must be shares of the classes that leave some for training"
        )
    notes = images.notes if isinstance(images, FileSet) else ()
    named = {"train": train_classes, "val": val_classes, "test": test_classes}
    if any(text is not None for text in named.values()):
        classes = _named(named, len(names), val_share, seed)
        unused = len(names) - len(set().union(*classes.values()))
        if unused:
            notes += (f"{unused} of {len(names)} classes are named for no split and left out",)
    elif isinstance(images, FileSet) and images.given is not None:
        classes = _given(images, images.given, val_share, test_share, seed)
    else:
        classes = _deal(range(len(names)), val_share, test_share, seed)
    _check(images, classes)
    test = images.of_classes(classes["test"]) if classes["test"] else None
    val = test if val_classes == ON_TEST and test is not None else images.of_classes(classes["val"])
    return Splits(images.of_classes(classes["train"]), val, test, notes)


def parse_classes(text: str, count: int, setting: str) -> list[int]:
    """Turn "1-50,60" into positions from 0, checked against the number of classes."""
    positions: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if match is None:
            raise ConfigError(f"{setting}={text}: '{part.strip()}' is no class range; write for example 1-50,60,76-100")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 1 <= first <= last <= count:
            raise ConfigError(f"{setting}={text}: '{part.strip()}' is not a range within the classes 1-{count}")
        positions += range(first - 1, last)
    if len(set(positions)) < len(positions):
        raise ConfigError(f"{setting}={text}: names a class twice")
    return positions


def _named(named: dict[str, str | None], count: int, val_share: float, seed: int) -> Classes:
    if (named["train"] is None) != (named["val"] is None):
        raise ConfigError(
            "data.train_classes and data.val_classes go together: name both, "
            "or only data.test_classes to deal the other classes at random"
        )
    on_test = named["val"] == ON_TEST
    if on_test:
        if named["test"] is None:
            raise ConfigError("data.val_classes=test needs data.test_classes")
        named = {**named, "val": named["test"]}
    classes: Classes = {
        split: [] if text is None else parse_classes(text, count, f"data.{split}_classes")
        for split, text in named.items()
    }
    for one, other in (("train", "val"), ("train", "test"), ("val", "test")):
        if on_test and one == "val":
            continue
        both = sorted(set(classes[one]) & set(classes[other]))
        if both:
            raise ConfigError(
                f"data.{one}_classes and data.{other}_classes share the classes "
                f"{first_few([str(position + 1) for position in both])}; splits must not share classes"
            )
    if named["train"] is None:
        rest = sorted(set(range(count)) - set(classes["test"]))
        classes = _deal(rest, val_share, 0.0, seed) | {"test": classes["test"]}
    return classes


def _given(images: FileSet, given: Sequence[str], val_share: float, test_share: float, seed: int) -> Classes:
    pairs = set(zip(given, images.labels.tolist(), strict=True))
    classes: Classes = {split: sorted(c for s, c in pairs if s == split) for split in _LONG_NAMES}
    for one, other in (("train", "val"), ("train", "test"), ("val", "test")):
        both = sorted(set(classes[one]) & set(classes[other]))
        if both:
            shared = first_few([images.class_names[label] for label in both])
            raise DataError(
                f"the given {one} and {other} splits in {images.root} share classes ({shared}), but winnow is judged "
                "on classes it was not trained on: remove the split column or the split folders (one folder per "
                "class) and winnow splits by class"
            )
    if not classes["train"]:
        raise DataError(f"the given splits in {images.root} have no training images")
    if not classes["val"]:
        test = classes["test"]
        dealt = _deal(classes["train"], val_share, 0.0 if test else test_share, seed)
        classes = dealt | {"test": test or dealt["test"]}
    return classes


def _deal(classes: Sequence[int], val_share: float, test_share: float, seed: int) -> Classes:
    """Deal classes at random: at least 2 to each split, and none to test when there are fewer than 6."""
    count = len(classes)
    if count < 4:
        raise DataError(
            f"only {count} classes are left for training and validation; at least 4 are needed: "
            "2 to learn from and 2 to validate on"
        )
    test = min(max(2, round(test_share * count)), count - 4) if test_share > 0 and count >= 6 else 0
    val = min(max(2, round(val_share * count)), count - test - 2)
    order = np.random.default_rng(seed).permutation(np.asarray(classes)).tolist()
    return {
        "train": sorted(order[test + val :]),
        "val": sorted(order[test : test + val]),
        "test": sorted(order[:test]),
    }


def _check(images: ImageSet, classes: Classes) -> None:
    """Make sure that there is something to tell apart in each split, and something to retrieve when judging."""
    sizes = np.bincount(images.labels, minlength=len(images.class_names))
    for split, members in classes.items():
        name = _LONG_NAMES[split]
        if len(members) < 2 and (members or split != "test"):
            raise DataError(f"the {name} split has too few classes ({len(members)}): it needs at least 2")
        if split != "train" and members and sizes[members].max() < 2:
            raise DataError(
                f"no class of the {name} split has two images, so that nothing can be retrieved: "
                f"add images, or choose other classes with data.{split}_classes"
            )
