"""Images that are files: what folders of images and tables of images both become."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from winnow.data.images import read_image
from winnow.data.imageset import ImageSet, Labels

SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
"""What people call the splits, in lower case, to what winnow calls them."""


class FileSet(ImageSet):
    """Labelled image files.

    Args:
        root: The folder the paths are relative to.
        paths: One path per image, relative to `root` (or absolute).
        labels: (N,) int64, each an index into `class_names`.
        class_names: One name per class.
        given: The split each image was put in by its owner ("train", "val" or "test"), or None.
        notes: What the user should know about how the set was read, a sentence each.
    """

    def __init__(
        self,
        root: str | Path,
        paths: Sequence[str],
        labels: Labels,
        class_names: tuple[str, ...],
        *,
        given: Sequence[str] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.root = Path(root)
        self.paths = tuple(paths)
        self.labels = labels
        self.class_names = class_names
        self.given = None if given is None else tuple(given)
        self.notes = tuple(notes)

    @classmethod
    def of_names(
        cls,
        root: str | Path,
        paths: Sequence[str],
        names: Sequence[str],
        *,
        given: Sequence[str] | None = None,
        notes: Sequence[str] = (),
    ) -> FileSet:
        """Build a set from one class name per image; the classes are put in natural order."""
        class_names = tuple(sorted(set(names), key=natural_key))
        position = {name: label for label, name in enumerate(class_names)}
        labels = np.array([position[name] for name in names], dtype=np.int64)
        return cls(root, paths, labels, class_names, given=given, notes=notes)

    def path(self, index: int) -> Path:
        """Return where the image's file is."""
        return self.root / self.paths[index]

    def name(self, index: int) -> str:
        """Return the image's path relative to `root`."""
        return self.paths[index]

    def read(self, index: int) -> Image.Image:
        """Decode one image to upright RGB."""
        return read_image(self.path(index))

    def identity(self, index: int) -> str:
        """Return the relative path, size and time of change of the file."""
        # File names need not be valid Unicode, but what is hashed has to be.
        name = self.paths[index].encode("utf-8", "backslashreplace").decode()
        try:
            state = os.stat(self.path(index))
        except OSError:
            return f"{name}:missing"
        return f"{name}:{state.st_size}:{state.st_mtime_ns}"


def natural_key(text: str) -> tuple[list[str | int], str]:
    """Sort key under which numbers inside names count as numbers: class2 before class10.

    The text itself comes last, so that names that differ only in case or leading zeros have one fixed order.
    """
    # The split alternates between text and digits, so that two keys never compare text with a number.
    pieces = re.split(r"(\d+)", text)
    parts = [int(piece) if index % 2 else piece.casefold() for index, piece in enumerate(pieces)]
    return parts, text


def first_few(names: Sequence[str], limit: int = 3) -> str:
    """Join the first names, and say how many there are when that is more: `a, b, c, ... (12 in all)`."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown}, ... ({len(names)} in all)"
