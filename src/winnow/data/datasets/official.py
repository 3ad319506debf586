"""Comparison of a copy of a dataset with a sample of the images of its official archive."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
from PIL import Image

from winnow.data.image_set import FileImages, ImageSet, resolve_subset
from winnow.files import open_regular

COLUMNS = ("part", "label", "names", "bytes", "width", "height", "sha256")
DIGITS = 16
"""Hexadecimal digits of a SHA-256 digest that a sample holds."""
_MAX_BYTES = 2**28


@dataclass(frozen=True)
class OfficialImage:
    """One image of an official archive.

    Attributes:
        part: Part of the dataset: train, val, test, or gallery.
        label: Position of its class in the part.
        names: File names without folder and suffix; archives of one dataset may number their images differently.
        size: Bytes of the file.
        width: Width in pixels.
        height: Height in pixels.
        digest: First digits of the SHA-256 of the file.
    """

    part: str
    label: int
    names: tuple[str, ...]
    size: int
    width: int
    height: int
    digest: str

    def to_row(self) -> list[str]:
        """Return the row of a CSV file with `COLUMNS`."""
        numbers = (self.size, self.width, self.height)
        return [self.part, str(self.label), " ".join(self.names), *map(str, numbers), self.digest]

    @classmethod
    def from_row(cls, row: Sequence[str]) -> OfficialImage:
        """Return the image of a row that `to_row` made."""
        part, label, names, size, width, height, digest = row
        return cls(part, int(label), tuple(names.split()), int(size), int(width), int(height), digest)


def read_sample(dataset: str) -> tuple[OfficialImage, ...]:
    """Return the sample of a dataset, which `scripts/sample_official.py` wrote; empty without one."""
    file = files("winnow.data.datasets").joinpath(f"{dataset}_sample.csv")
    if not file.is_file():
        return ()
    rows = list(csv.reader(file.read_text(encoding="utf-8").splitlines()))
    assert tuple(rows[0]) == COLUMNS, "the script wrote it"
    return tuple(map(OfficialImage.from_row, rows[1:]))


def describe_copy(parts: Mapping[str, ImageSet], sample: Iterable[OfficialImage]) -> str:
    """Describe how the images of a copy differ from those of the official archive.

    An image of the sample is searched among the files of its class, first by name, then by size in bytes. Images that
    are found by neither are not compared, so a copy may lack some images.

    Args:
        parts: Images by part.
        sample: Images of the official archive.

    Returns:
        A clause such as "images differ from the official archive: 64 of 64 sampled; 256 px short side".
    """
    sample = tuple(sample)
    found = [(official, files) for official in sample if (files := _find(parts.get(official.part), official))]
    if not found:
        return f"none of {len(sample)} sampled images of the official archive found by name or size"
    different = [(official, files[0]) for official, files in found if not _is_any(official, files)]
    if not different:
        return f"images equal the official archive: {len(found)} of {len(found)} sampled"
    text = f"images differ from the official archive: {len(different)} of {len(found)} sampled"
    sizes = [(official, size) for official, file in different if (size := image_size(file)) is not None]
    resized = [size for official, size in sizes if size != (official.width, official.height)]
    if not sizes:
        return f"{text}; they cannot be read"
    if not resized:
        return f"{text}; same width and height, compressed again or changed"
    sides = sorted(min(size) for size in resized)
    official_sides = sorted(min(official.width, official.height) for official, _ in sizes)
    return f"{text}; {_range(sides)} px short side, official {_range(official_sides)} px"


def image_size(file: Path) -> tuple[int, int] | None:
    """Return width and height from the header of an image; None if it cannot be read."""
    try:
        with open_regular(file) as content, Image.open(content) as image:
            return image.size
    except Exception:  # Pillow raises many types of errors on damaged files
        return None


def digest_image(file: Path) -> str:
    """Return the first digits of the SHA-256 of a file.

    Raises:
        OSError: If the file cannot be read.
    """
    with open_regular(file, max_bytes=_MAX_BYTES) as content:
        return hashlib.file_digest(content, "sha256").hexdigest()[:DIGITS]


def class_files(images: ImageSet, label: int) -> list[Path]:
    """Return the files of a class; empty if the images are not files."""
    root, rows = resolve_subset(images)
    if not isinstance(root, FileImages):
        return []
    members = np.flatnonzero(np.asarray(images.labels) == label)
    return [root.path(int(row)) for row in rows[members]]


def _find(images: ImageSet | None, official: OfficialImage) -> list[Path]:
    """Return the files of a part that may be an official image: those of its name, then those of its size."""
    found = [] if images is None else class_files(images, official.label)
    named = [file for file in found if file.stem in official.names]
    return named + [file for file in found if file not in named and _bytes(file) == official.size]


def _is_any(official: OfficialImage, found: Iterable[Path]) -> bool:
    """Return whether one of the files is an official image."""
    try:
        return any(_bytes(file) == official.size and digest_image(file) == official.digest for file in found)
    except OSError:
        return False


def _bytes(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except OSError:
        return None


def _range(values: Sequence[int]) -> str:
    return f"{values[0]}" if values[0] == values[-1] else f"{values[0]}-{values[-1]}"
