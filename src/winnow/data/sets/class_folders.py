"""Copies of a set without its label files: a folder for each class, or several, as in train/ and test/."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from winnow.data.fileset import first_few
from winnow.data.sets.base import Contents
from winnow.data.sets.images_below import single_files, walk
from winnow.data.sets.listed import Row, made_of
from winnow.errors import DataError

Folders = Mapping[int, Sequence[Path]]
"""The folders of each class, by its number or position."""


def find_folders(root: Path, class_of: Callable[[str], int | None]) -> dict[int, list[Path]]:
    """Find the folders of classes at any depth, those that are in a folder of a class aside.

    Args:
        root: Where to look.
        class_of: Returns which class a folder's name is of; None for another folder.
    """
    found: dict[int, list[Path]] = {}
    for folder, children, _ in walk(root):
        of_class = {name: key for name in children if (key := class_of(name)) is not None}
        for name, key in of_class.items():
            found.setdefault(key, []).append(folder / name)
        children[:] = [name for name in children if name not in of_class and not name.startswith(".")]
    return found


def read_folders(
    root: Path,
    folders: Folders,
    class_names: Sequence[str],
    parts: Mapping[str, Sequence[int]],
    *,
    sizes: Sequence[int] | None,
) -> Contents:
    """Make the parts of all images in the classes' folders.

    What is not there cannot be named by file, but by class.

    Args:
        root: The folder that names of images begin below.
        folders: Of each class, by its position.
        class_names: All classes, in the official order.
        parts: The classes of each part, by position.
        sizes: How many images each class has in the published set; None where that is not known.

    Raises:
        DataError: where a class has more images than were published, or an image several files.
    """
    of_class = {label: part for part, labels in parts.items() for label in labels}
    rows = []
    for label in range(len(class_names)):
        for place in folders.get(label, ()):
            inner = place.relative_to(root).as_posix()
            rows += [Row(of_class[label], f"{inner}/{file}", label) for file in single_files(place)]
    if sizes is None:
        return made_of(root, rows, class_names, parts, {})
    found = np.bincount([row.label for row in rows], minlength=len(class_names)).tolist()
    # One too many would make up for one that is missing elsewhere.
    over = [
        f"{name} ({count}, published {whole})"
        for name, count, whole in zip(class_names, found, sizes, strict=True)
        if count > whole
    ]
    if over:
        raise DataError(
            f"{root}: classes have more images than were published: {first_few(over, 5)}; remove what is not of the set"
        )
    absent = {
        part: tuple(
            f"{class_names[label]} ({found[label]} of {sizes[label]} images)"
            for label in labels
            if found[label] < sizes[label]
        )
        for part, labels in parts.items()
    }
    return made_of(root, rows, class_names, parts, absent)
