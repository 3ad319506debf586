"""Images that a set's label files list, found on disk whatever their suffix."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from winnow.data.fileset import FileSet
from winnow.data.imageset import ImageSet, Subset
from winnow.data.sets.base import Contents
from winnow.data.sets.images_below import image_files
from winnow.errors import DataError


@dataclass(frozen=True)
class Row:
    """A line of a label file: which part, which file (relative), which class (a position in the official order)."""

    part: str
    path: str
    label: int


def find(root: Path, *names: str, depth: int = 2) -> Path | None:
    """Return the first of some relative paths that is in a folder or up to `depth` folders below it."""
    level = [root]
    for _ in range(depth + 1):
        for folder in level:
            for name in names:
                if (folder / name).exists():
                    return folder / name
        level = [child for folder in level for child in sorted(folder.iterdir()) if _is_visible_folder(child)]
        if len(level) > 1000:  # class folders
            return None
    return None


def listed(
    root: Path, rows: Iterable[Row], class_names: Sequence[str], parts: Mapping[str, Sequence[int]], *, at: Path
) -> Contents:
    """Make the parts of what is there of the listed files, and name what is not.

    Of a file that is there with several suffixes the listed one is taken, else the first in plain order.

    Args:
        root: The folder that names of images begin below.
        rows: Of the label files.
        class_names: All classes, in the official order.
        parts: The classes of each part, by position.
        at: The folder the listed paths are relative to.

    Raises:
        DataError: where none is there, or an image is listed twice, which would make up for one that is missing.
    """
    files = image_files(at)
    inner = at.relative_to(root).as_posix()
    prefix = "" if inner == "." else f"{inner}/"
    there: list[Row] = []
    absent: dict[str, list[str]] = {part: [] for part in parts}
    seen: set[str] = set()
    for row in rows:
        stem = os.path.splitext(row.path)[0]
        if stem in seen:
            raise DataError(f"{at}: its label files list {row.path} twice; get the set anew")
        seen.add(stem)
        found = files.get(stem)
        if found is None:
            absent[row.part].append(row.path)
        else:
            path = row.path if row.path in found else found[0]
            there.append(Row(row.part, prefix + path, row.label))
    if not there:
        first = next((names[0] for names in absent.values() if names), "none")
        raise DataError(f"{at} has none of the images that are listed for it; the first is {first}")
    return made_of(root, there, class_names, parts, {part: tuple(names) for part, names in absent.items()})


def made_of(
    root: Path,
    rows: Sequence[Row],
    class_names: Sequence[str],
    parts: Mapping[str, Sequence[int]],
    absent: Mapping[str, tuple[str, ...]],
) -> Contents:
    """Make the parts of files that are there, with paths relative to the folder, and of what is not.

    Raises:
        DataError: where no file is there.
    """
    if not rows:
        raise DataError(f"{root} has none of the images of the set")
    labels = np.array([row.label for row in rows], dtype=np.int64)
    images = FileSet(root, [row.path for row in rows], labels, tuple(class_names))
    of_part = np.array([row.part for row in rows])
    return Contents({part: _part(images, of_part == part, classes) for part, classes in parts.items()}, absent)


def lines(path: Path) -> list[list[str]]:
    """Return the words of each line of a label file; empty lines are passed over.

    Raises:
        DataError: when it cannot be read as text.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}); get the set anew") from None
    return [words for line in text.splitlines() if (words := line.split())]


def refuse(path: Path, number: int, why: str) -> DataError:
    """Return the error for a line of a label file."""
    return DataError(f"{path} line {number}: {why}; get the set anew")


def _part(images: FileSet, mask: np.ndarray, classes: Sequence[int]) -> ImageSet:
    position = np.full(len(images.class_names), -1, dtype=np.int64)
    position[list(classes)] = np.arange(len(classes))
    rows = np.flatnonzero(mask)
    return Subset(images, rows.tolist(), position[images.labels[rows]], tuple(images.class_names[c] for c in classes))


def _is_visible_folder(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")
