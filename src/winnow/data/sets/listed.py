"""Images that a set's label files list, found on disk whatever their suffix."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from winnow.data.fileset import FileSet, natural_key
from winnow.data.images import IMAGE_SUFFIXES
from winnow.data.imageset import ImageSet, Subset
from winnow.data.sets.base import Contents
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


def image_files(root: Path) -> dict[str, str]:
    """Return the image files below a folder: relative path without suffix to relative path.

    Without the suffix, because resized copies often have another than the original.
    """
    found: dict[str, str] = {}
    seen: set[tuple[int, int]] = set()
    for folder, children, files in os.walk(root, followlinks=True):
        state = os.stat(folder)
        if (state.st_dev, state.st_ino) in seen:  # a link back
            children.clear()
            continue
        seen.add((state.st_dev, state.st_ino))
        prefix = os.path.relpath(folder, root).replace(os.sep, "/")
        for file in files:
            stem, suffix = os.path.splitext(file)
            if suffix.lower() in IMAGE_SUFFIXES and not file.startswith("."):
                inner = "" if prefix == "." else f"{prefix}/"
                found[inner + stem] = inner + file
    return found


def listed(
    root: Path, rows: Iterable[Row], class_names: Sequence[str], parts: Mapping[str, Sequence[int]], *, at: Path
) -> Contents:
    """Make the parts of what is there of the listed files, and name what is not.

    Args:
        root: The folder that names of images begin below.
        rows: Of the label files.
        class_names: All classes, in the official order.
        parts: The classes of each part, by position.
        at: The folder the listed paths are relative to.
    """
    files = image_files(at)
    inner = at.relative_to(root).as_posix()
    prefix = "" if inner == "." else f"{inner}/"
    paths: list[str] = []
    labels: list[int] = []
    of_part: list[str] = []
    absent: dict[str, list[str]] = {part: [] for part in parts}
    for row in rows:
        path = files.get(os.path.splitext(row.path)[0])
        if path is None:
            absent[row.part].append(row.path)
        else:
            paths.append(prefix + path)
            labels.append(row.label)
            of_part.append(row.part)
    if not paths:
        raise DataError(f"{at} has none of the images that are listed for it; the first is {_first(absent)}")
    images = FileSet(root, paths, np.array(labels, dtype=np.int64), tuple(class_names))
    mask = np.array(of_part)
    made = {part: _part(images, mask == part, classes) for part, classes in parts.items()}
    return Contents(made, {part: tuple(names) for part, names in absent.items()})


def class_folders(root: Path, place: Path, folders: Sequence[str], parts: Mapping[str, Sequence[int]]) -> Contents:
    """Make the parts of a copy without label files: a folder for each class, given in the official order.

    What is not there cannot be named by file; whoever knows how many images a class has can name classes.
    """
    rows = []
    of_class = {label: part for part, labels in parts.items() for label in labels}
    for label, folder in enumerate(folders):
        stems = sorted(image_files(place / folder).values(), key=natural_key)
        rows += [Row(of_class[label], f"{folder}/{stem}", label) for stem in stems]
    return listed(root, rows, folders, parts, at=place)


def subfolders(place: Path) -> list[str]:
    """Return the names of the visible folders in a folder, in plain order."""
    return sorted(child.name for child in place.iterdir() if _is_visible_folder(child))


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


def _first(absent: Mapping[str, Sequence[str]]) -> str:
    return next((names[0] for names in absent.values() if names), "none")


def _is_visible_folder(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")
