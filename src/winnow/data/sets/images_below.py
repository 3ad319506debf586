"""Image files below a folder, by their path without suffix: resized copies often have another than the original."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from winnow.data.fileset import natural_key
from winnow.data.images import IMAGE_SUFFIXES
from winnow.errors import DataError


def walk(root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Go through a folder and those below it, in order, also where links lead: folder, its folders, its files.

    A folder is gone through once, whatever leads to it. Those taken out of the list of folders are left aside.
    """
    seen: set[tuple[int, int]] = set()
    for folder, children, files in os.walk(root, followlinks=True):
        state = os.stat(folder)
        if (state.st_dev, state.st_ino) in seen:  # a link back
            children.clear()
            continue
        seen.add((state.st_dev, state.st_ino))
        children.sort()
        yield Path(folder), children, files


def image_files(root: Path) -> dict[str, list[str]]:
    """Return relative path without suffix to the relative paths of the files that have it, in plain order."""
    found: dict[str, list[str]] = {}
    for folder, _, files in walk(root):
        inner = folder.relative_to(root).as_posix()
        prefix = "" if inner == "." else f"{inner}/"
        for file in sorted(files):
            stem, suffix = os.path.splitext(file)
            if suffix.lower() in IMAGE_SUFFIXES and not file.startswith("."):
                found.setdefault(prefix + stem, []).append(prefix + file)
    return found


def single_files(root: Path) -> list[str]:
    """Return the relative paths of the image files below a folder, in natural order.

    Raises:
        DataError: where two differ in their suffix alone: they would count as two images.
    """
    found = image_files(root)
    for same in found.values():
        if len(same) > 1:
            raise DataError(f"{root} has one image in several files ({', '.join(same)}): keep one of them")
    return sorted((file for (file,) in found.values()), key=natural_key)
