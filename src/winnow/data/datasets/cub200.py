"""CUB-200-2011 dataset of birds."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from winnow.data.datasets.base import Dataset, DatasetParts, Source
from winnow.data.datasets.label_files import (
    SIZES_FILE,
    Row,
    box_key,
    boxes_in_order,
    build_folder_parts,
    build_listed_parts,
    find,
    find_class_folders,
    image_files,
    line_error,
    read_lines,
)
from winnow.data.datasets.official import read_sample
from winnow.data.image_set import ImageSet
from winnow.errors import DataError

# Number of images of the classes that do not have 60.
_SIZES_OTHER_THAN_60 = {
    3: 58, 5: 44, 6: 41, 7: 53, 8: 48, 9: 59, 12: 56, 15: 58, 16: 58, 17: 57, 18: 45, 19: 59, 20: 59, 22: 56, 23: 59,
    24: 52, 28: 59, 32: 53, 33: 59, 34: 59, 37: 59, 39: 59, 43: 59, 58: 58, 60: 59, 65: 50, 75: 57, 78: 59, 84: 53,
    97: 59, 101: 50, 105: 49, 107: 59, 113: 50, 115: 59, 117: 59, 119: 59, 124: 59, 125: 59, 126: 59, 135: 59, 141: 58,
    149: 59, 151: 51, 153: 59, 157: 59, 160: 59, 166: 59, 168: 59, 169: 59, 178: 56, 179: 59, 181: 59, 187: 50, 190: 58,
    196: 59,
}  # fmt: skip
SIZES = tuple(_SIZES_OTHER_THAN_60.get(number, 60) for number in range(1, 201))
"""Number of images of each class, to find missing images in copies without label files."""


_BOX_FILES = ("images.txt", "bounding_boxes.txt", SIZES_FILE)


class CUB200(Dataset):
    """CUB-200-2011: 11,788 bird images of 200 species (Wah et al., Caltech, 2011).

    Split by class: species 1-100 train (5,864 images), species 101-200 test (5,924 images).
    Layout: `images.txt`, `image_class_labels.txt`, and `images/`, or the 200 class folders alone.
    License: non-commercial research and education.

    Args:
        train: Expected number of training images.
        test: Expected number of test images.
        classes: Number of classes of each half.
    """

    name = "cub200"
    title = "CUB-200-2011"
    about = "11,788 photos of 200 bird species; the first 100 species train, the other 100 test"
    terms = "for non-commercial research and education (Caltech)"
    home = "https://www.vision.caltech.edu/datasets/cub_200_2011/"
    layout = (
        "images.txt, image_class_labels.txt, and images/ (as in CUB_200_2011.tgz), or the 200 class folders alone, "
        "also in train/ and test/"
    )
    sources = (
        Source(
            "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
            "CUB_200_2011.tgz",
            "97eceeb196236b17998738112f37df78",
        ),
    )

    def __init__(self, *, train: int = 5864, test: int = 5924, classes: int = 100) -> None:
        self.counts = {"train": train, "test": test}
        self.classes = {"train": classes, "test": classes}
        self.sample = read_sample(self.name) if classes == 100 else ()

    def read(self, root: Path) -> DatasetParts:
        """Read the label files, or class folders such as 001.Black_footed_Albatross."""
        half = self.classes["train"]
        parts = {"train": range(half), "test": range(half, 2 * half)}
        labels = find(root, "image_class_labels.txt")
        if labels is not None:
            return self._read_label_files(root, labels.parent, parts)
        folders = find_class_folders(root, _class_number)
        if len(folders) != 2 * half:
            missing = sorted(set(range(1, 2 * half + 1)) - set(folders))
            first = f"; the first missing is {missing[0]:03d}" if folders and missing else ""
            raise DataError(
                f"{root}: neither image_class_labels.txt nor the {2 * half} class folders 001.Black_footed_Albatross, "
                f"... found ({len(folders)} class folders{first}). Name a folder of {self.title}."
            )
        in_order = [folders[number] for number in sorted(folders)]
        for class_folders in in_order:
            _check_unique(root, class_folders)
        names = [class_folders[0].name for class_folders in in_order]
        sizes = SIZES if len(SIZES) == 2 * half else None
        return build_folder_parts(root, dict(enumerate(in_order)), names, parts, sizes=sizes)

    def object_boxes(self, root: str | Path, images: ImageSet) -> NDArray[np.float64]:
        """Return the boxes of the birds from `bounding_boxes.txt` and `images.txt`.

        Copies with resized images also need `sizes.txt`, with id, width, and height of each original image.
        """
        root = Path(root)
        # The official folder has the files next to images/, which may be the folder that was named.
        folders = [root, *([root.parent] if root.name == "images" else [])]
        files = {name: next(filter(None, (find(folder, name) for folder in folders)), None) for name in _BOX_FILES}
        missing = [name for name, path in files.items() if path is None and name != SIZES_FILE]
        if missing:
            raise DataError(
                f"{root}: {' and '.join(missing)} not found, and this copy has no bounding boxes without it. Copy "
                f"{' and '.join(missing)} from CUB_200_2011.tgz ({self.home}) into the folder."
            )
        rows = {name: _rows_by_id(path) for name, path in files.items() if path is not None}
        paths, boxes, sizes = (rows.get(name, {}) for name in _BOX_FILES)
        keys = {number: box_key(words[0]) for number, words in paths.items()}
        source = files["bounding_boxes.txt"]
        assert source is not None, "it is not missing"
        corners = {}
        for number, words in boxes.items():
            left, top, width, height = _numbers(source, number, words, 4)
            corners[keys.get(number, number)] = (left, top, left + width, top + height)
        originals = {keys.get(number, number): _numbers(source, number, words, 2) for number, words in sizes.items()}
        return boxes_in_order(corners, images, source, originals)

    def _read_label_files(self, root: Path, folder: Path, parts: dict[str, range]) -> DatasetParts:
        paths: dict[str, str] = {}
        images = folder / "images.txt"
        for number, words in enumerate(read_lines(images), start=1):
            if len(words) != 2 or words[0] in paths:
                raise line_error(images, number, "expected a unique id and a path")
            paths[words[0]] = words[1]
        rows, names = [], [""] * (2 * self.classes["train"])
        file = folder / "image_class_labels.txt"
        for number, words in enumerate(read_lines(file), start=1):
            if len(words) != 2 or words[0] not in paths or not words[1].isdigit():
                raise line_error(file, number, "expected an id of images.txt and a class")
            label = int(words[1]) - 1
            if not 0 <= label < len(names):
                raise line_error(file, number, f"unknown class {words[1]}")
            path = paths[words[0]]
            names[label] = path.partition("/")[0]
            rows.append(Row("train" if label in parts["train"] else "test", path, label))
        return build_listed_parts(root, rows, names, parts, at=folder / "images")


def _rows_by_id(path: Path) -> dict[str, list[str]]:
    """Return the words of each line of a label file by the id at its start."""
    return {words[0]: words[1:] for words in read_lines(path)}


def _numbers(path: Path, number: str, words: Sequence[str], count: int) -> tuple[float, ...]:
    """Return the numbers of a line."""
    try:
        values = tuple(map(float, words))
    except ValueError:
        values = ()
    if len(values) != count or not all(map(math.isfinite, values)):
        raise DataError(f"{path}: expected {count} numbers for image {number}, got '{' '.join(words)}'. Get the "
                        "dataset again.")  # fmt: skip
    return values


def _class_number(name: str) -> int | None:
    """Return the class number in a folder name."""
    return int(name[:3]) if re.match(r"\d{3}\.", name) else None


def _check_unique(root: Path, class_folders: Sequence[Path]) -> None:
    """Raise `DataError` if an image is in two folders of a class.

    Names are unique in this dataset.
    """
    seen: dict[str, Path] = {}
    for folder in class_folders:
        for stem in image_files(folder):
            if stem in seen:
                raise DataError(
                    f"{root}: {stem} is in both {seen[stem].relative_to(root)} and {folder.relative_to(root)}. Remove "
                    "one, or name the folder that contains only the dataset."
                )
            seen[stem] = folder
