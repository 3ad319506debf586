"""What an image is known by: the hash of its content, and its path."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from winnow.data import UNLABELLED, FileSet, ImageSet, Subset
from winnow.data.workers import cores

Progress = Callable[[int, int], None]
Task = Callable[[str], Progress]
"""Given a title, returns what is called with (done, total)."""


def silent(_title: str) -> Progress:
    """Show nothing."""
    return lambda _done, _total: None


def content_hashes(images: ImageSet, progress: Progress | None = None) -> list[str]:
    """Return the SHA-256 of each image file's bytes; of an image that is no file, of what identifies it.

    A file that cannot be opened gets the hash of its name; decoding it says what is wrong.
    """
    hashes: list[str] = []
    with ThreadPoolExecutor(cores()) as pool:  # hashing lets go of the interpreter's lock
        for found in pool.map(lambda index: _hash(images, index), range(len(images))):
            hashes.append(found)
            if progress is not None:
                progress(len(hashes), len(images))
    return hashes


def full_name(images: ImageSet, index: int) -> str:
    """Return the absolute path of an image file, or the name of an image that is none."""
    file = _file(images, index)
    # File names need not be valid Unicode, but what a data base holds has to be.
    name = images.name(index) if file is None else os.path.abspath(file)
    return name.encode("utf-8", "backslashreplace").decode()


def label(images: ImageSet, index: int) -> str | None:
    """Return the name of an image's class; None where it is not known."""
    name = images.class_names[int(images.labels[index])]
    return None if name == UNLABELLED else name


def _file(images: ImageSet, index: int) -> str | None:
    if isinstance(images, Subset):
        return _file(images.parent, int(images.indices[index]))
    return str(images.path(index)) if isinstance(images, FileSet) else None


def _hash(images: ImageSet, index: int) -> str:
    file = _file(images, index)
    if file is not None:
        try:
            with open(file, "rb") as content:
                return hashlib.file_digest(content, "sha256").hexdigest()
        except OSError:
            pass
    return hashlib.sha256(images.identity(index).encode("utf-8", "backslashreplace")).hexdigest()
