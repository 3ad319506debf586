"""CUB-200-2011 (Wah et al., Caltech, 2011)."""

from __future__ import annotations

import re
from pathlib import Path

from winnow.data.fileset import first_few
from winnow.data.sets.base import Contents, Dataset, Source
from winnow.data.sets.listed import Row, class_folders, find, lines, listed, refuse, subfolders
from winnow.errors import DataError

# Of the 200 classes, those that do not have 60 images; so that a copy without label files can be told from a whole one.
_SIZES = {
    3: 58, 5: 44, 6: 41, 7: 53, 8: 48, 9: 59, 12: 56, 15: 58, 16: 58, 17: 57, 18: 45, 19: 59, 20: 59, 22: 56, 23: 59,
    24: 52, 28: 59, 32: 53, 33: 59, 34: 59, 37: 59, 39: 59, 43: 59, 58: 58, 60: 59, 65: 50, 75: 57, 78: 59, 84: 53,
    97: 59, 101: 50, 105: 49, 107: 59, 113: 50, 115: 59, 117: 59, 119: 59, 124: 59, 125: 59, 126: 59, 135: 59, 141: 58,
    149: 59, 151: 51, 153: 59, 157: 59, 160: 59, 166: 59, 168: 59, 169: 59, 178: 56, 179: 59, 181: 59, 187: 50, 190: 58,
    196: 59,
}  # fmt: skip


class CUB200(Dataset):
    """Birds: the first half of the 200 species trains, the second is the test."""

    name = "cub200"
    title = "CUB-200-2011"
    about = "11,788 photographs of 200 species of birds; the first 100 species train, the others test"
    terms = "for non-commercial research and education (Caltech)"
    home = "https://www.vision.caltech.edu/datasets/cub_200_2011/"
    layout = "images.txt, image_class_labels.txt and images/ (as in CUB_200_2011.tgz), or the 200 class folders alone"
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
        first = next((p for p in _places(root) if any(_is_class(name) for name in subfolders(p))), None)
        folders = [] if first is None else [name for name in subfolders(first) if _is_class(name)]
        if first is None or len(folders) != 2 * half:
            lacking = sorted(set(range(1, 2 * half + 1)) - {int(name[:3]) for name in folders})
            told = f"; the first that is not is {lacking[0]:03d}" if folders and lacking else ""
            raise DataError(
                f"{root} has neither image_class_labels.txt nor the {2 * half} class folders "
                f"001.Black_footed_Albatross, ... ({len(folders)} are there{told})"
            )
        found = class_folders(root, first, folders, parts)
        if half != 100:
            return found
        absent: dict[str, tuple[str, ...]] = {}
        for part, of_part in parts.items():
            sizes = [(folders[label], size, _SIZES.get(label + 1, 60))
                     for label, size in zip(of_part, _sizes(found, part), strict=True)]  # fmt: skip
            # One too many would make up for one that is missing elsewhere.
            over = [f"{name} ({size}, published {whole})" for name, size, whole in sizes if size > whole]
            if over:
                raise DataError(
                    f"{root}: classes have more images than were published: {first_few(over, 5)}; remove what is not "
                    "of the set"
                )
            absent[part] = tuple(f"{name} ({size} of {whole} images)" for name, size, whole in sizes if size < whole)
        return Contents(found.parts, absent)

    def _by_labels(self, root: Path, folder: Path, parts: dict[str, range]) -> Contents:
        paths = {words[0]: words[1] for words in lines(folder / "images.txt") if len(words) == 2}
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


def _places(root: Path) -> list[Path]:
    inner = [root / name for name in subfolders(root)]
    return [root, *inner, *(p / "images" for p in [root, *inner] if (p / "images").is_dir())]


def _is_class(name: str) -> bool:
    return re.match(r"\d{3}\.", name) is not None


def _sizes(found: Contents, part: str) -> list[int]:
    images = found.parts[part]
    return [int((images.labels == label).sum()) for label in range(len(images.class_names))]
