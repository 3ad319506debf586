"""CUB-200-2011 (Wah et al., Caltech, 2011)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from winnow.data.sets.base import Contents, Dataset, Source
from winnow.data.sets.class_folders import find_folders, read_folders
from winnow.data.sets.images_below import image_files
from winnow.data.sets.listed import Row, find, lines, listed, refuse
from winnow.errors import DataError

# Of the 200 classes, those that do not have 60 images.
_OTHERS = {
    3: 58, 5: 44, 6: 41, 7: 53, 8: 48, 9: 59, 12: 56, 15: 58, 16: 58, 17: 57, 18: 45, 19: 59, 20: 59, 22: 56, 23: 59,
    24: 52, 28: 59, 32: 53, 33: 59, 34: 59, 37: 59, 39: 59, 43: 59, 58: 58, 60: 59, 65: 50, 75: 57, 78: 59, 84: 53,
    97: 59, 101: 50, 105: 49, 107: 59, 113: 50, 115: 59, 117: 59, 119: 59, 124: 59, 125: 59, 126: 59, 135: 59, 141: 58,
    149: 59, 151: 51, 153: 59, 157: 59, 160: 59, 166: 59, 168: 59, 169: 59, 178: 56, 179: 59, 181: 59, 187: 50, 190: 58,
    196: 59,
}  # fmt: skip
SIZES = tuple(_OTHERS.get(number, 60) for number in range(1, 201))
"""Images of each class, so that a copy without label files can be told from a whole one."""


class CUB200(Dataset):
    """Birds: the first half of the 200 species trains, the second is the test."""

    name = "cub200"
    title = "CUB-200-2011"
    about = "11,788 photographs of 200 species of birds; the first 100 species train, the others test"
    terms = "for non-commercial research and education (Caltech)"
    home = "https://www.vision.caltech.edu/datasets/cub_200_2011/"
    layout = (
        "images.txt, image_class_labels.txt and images/ (as in CUB_200_2011.tgz), or the 200 class folders alone, also "
        "in train/ and test/"
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

    def read(self, root: Path) -> Contents:
        """Read the label files, or class folders named 001.Black_footed_Albatross and so on."""
        half = self.classes["train"]
        parts = {"train": range(half), "test": range(half, 2 * half)}
        labels = find(root, "image_class_labels.txt")
        if labels is not None:
            return self._by_labels(root, labels.parent, parts)
        folders = find_folders(root, _number)
        if len(folders) != 2 * half:
            lacking = sorted(set(range(1, 2 * half + 1)) - set(folders))
            told = f"; the first that is not is {lacking[0]:03d}" if folders and lacking else ""
            raise DataError(
                f"{root} has neither image_class_labels.txt nor the {2 * half} class folders "
                f"001.Black_footed_Albatross, ... ({len(folders)} are there{told})"
            )
        in_order = [folders[number] for number in sorted(folders)]
        for places in in_order:
            _check_once(root, places)
        names = [places[0].name for places in in_order]
        sizes = SIZES if len(SIZES) == 2 * half else None
        return read_folders(root, dict(enumerate(in_order)), names, parts, sizes=sizes)

    def _by_labels(self, root: Path, folder: Path, parts: dict[str, range]) -> Contents:
        paths: dict[str, str] = {}
        images = folder / "images.txt"
        for number, words in enumerate(lines(images), start=1):
            if len(words) != 2 or words[0] in paths:
                raise refuse(images, number, "it does not hold an id of its own and a path")
            paths[words[0]] = words[1]
        rows, names = [], [""] * (2 * self.classes["train"])
        file = folder / "image_class_labels.txt"
        for number, words in enumerate(lines(file), start=1):
            if len(words) != 2 or words[0] not in paths or not words[1].isdigit():
                raise refuse(file, number, "it names no image of images.txt and its class")
            label = int(words[1]) - 1
            if not 0 <= label < len(names):
                raise refuse(file, number, f"there is no class {words[1]}")
            path = paths[words[0]]
            names[label] = path.partition("/")[0]
            rows.append(Row("train" if label in parts["train"] else "test", path, label))
        return listed(root, rows, names, parts, at=folder / "images")


def _number(name: str) -> int | None:
    """Return the class that a folder's name is of."""
    return int(name[:3]) if re.match(r"\d{3}\.", name) else None


def _check_once(root: Path, places: Sequence[Path]) -> None:
    """Refuse an image in two of a class's folders: names are unique in this set, so that it is there twice."""
    seen: dict[str, Path] = {}
    for place in places:
        for stem in image_files(place):
            if stem in seen:
                raise DataError(
                    f"{root} has {stem} in both {seen[stem].relative_to(root)} and {place.relative_to(root)}: remove "
                    "one, or name the folder that holds the set alone"
                )
            seen[stem] = place
