"""Cars196 (Krause et al., 3DRR 2013)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from winnow.data.sets.base import Contents, Dataset, Source
from winnow.data.sets.class_folders import find_folders, read_folders
from winnow.data.sets.listed import Row, find, listed
from winnow.data.sets.matfile import read_mat
from winnow.errors import DataError

_LISTS = (("cars_train_annos.mat", "cars_train"), ("cars_test_annos_withlabels.mat", "cars_test"))
"""The set's own two lists, each with the folder of its images."""


class Cars196(Dataset):
    """Cars: the first half of the 196 models trains, the second is the test; its own train and test lists play no part.

    Args:
        train: Images of the first half.
        test: Images of the second.
        class_names: The models in the official order, which is not that of the alphabet; None for the 196.
    """

    name = "cars196"
    title = "Cars196"
    about = "16,185 photographs of 196 models of cars; the first 98 models train, the others test"
    terms = "for research, as its owners state (Stanford)"
    home = "https://ai.stanford.edu/~jkrause/cars/car_dataset.html (gone)"
    layout = (
        "cars_annos.mat and car_ims/; or cars_train_annos.mat, cars_test_annos_withlabels.mat, cars_train/ and "
        "cars_test/; or the 196 class folders"
    )
    sources = (
        Source("http://ai.stanford.edu/~jkrause/car196/car_ims.tgz", "car_ims.tgz", "d5c8f0aa497503f355e17dc7886c3f14"),
        Source(
            "http://ai.stanford.edu/~jkrause/car196/cars_annos.mat",
            "cars_annos.mat",
            "b407c6086d669747186bd1d764ff9dbc",
        ),
    )

    def __init__(self, *, train: int = 8054, test: int = 8131, class_names: Sequence[str] | None = None) -> None:
        self.class_names: tuple[str, ...]
        self.sizes: tuple[int, ...] | None  # those of a made set are not known
        self.class_names, self.sizes = official_classes() if class_names is None else (tuple(class_names), None)
        half = len(self.class_names) // 2
        self.counts = {"train": train, "test": test}
        self.classes = {"train": half, "test": len(self.class_names) - half}

    @property
    def _parts(self) -> dict[str, range]:
        half = self.classes["train"]
        return {"train": range(half), "test": range(half, len(self.class_names))}

    def read(self, root: Path) -> Contents:
        """Read the annotations of the whole set, those of its two lists, or class folders."""
        whole = find(root, "cars_annos.mat")
        # Copies of the two lists often come with the file of the whole, whose paths lead nowhere there.
        if whole is not None and (whole.parent / "car_ims").is_dir():
            return self._listed(root, whole.parent, self._annotated(whole, "relative_im_path", ""))
        found = {name: find(root, name) for pair in _LISTS for name in pair}
        lacking = [name for name, place in found.items() if place is None]
        if not lacking:
            rows: list[tuple[str, int]] = []
            for file, folder in ((found[file], found[folder]) for file, folder in _LISTS):
                assert file is not None, "all are there"
                assert folder is not None, "all are there"
                # Some archives have the folder twice, one in the other.
                inner = folder / folder.name if (folder / folder.name).is_dir() else folder
                rows += self._annotated(file, "fname", f"{inner.relative_to(root).as_posix()}/")
            return self._listed(root, root, rows)
        return self._class_folders(root, lacking if len(lacking) < len(found) else [])

    def _annotated(self, file: Path, key: str, prefix: str) -> list[tuple[str, int]]:
        """Return path and label of each annotation of a file."""
        try:
            entries: list[dict[str, Any]] = read_mat(file)["annotations"]
            found = [(prefix + str(entry[key]), int(np.asarray(entry["class"])[0]) - 1) for entry in entries]
        except (KeyError, TypeError, IndexError, ValueError):
            raise DataError(f"{file} has no annotations with {key} and class; get it anew") from None
        if any(not 0 <= label < len(self.class_names) for _, label in found):
            raise DataError(f"{file} names a class beyond the {len(self.class_names)} there are; get it anew")
        return found

    def _listed(self, root: Path, at: Path, annotated: list[tuple[str, int]]) -> Contents:
        train = self._parts["train"]
        rows = [Row("train" if label in train else "test", path, label) for path, label in annotated]
        return listed(root, rows, self.class_names, self._parts, at=at)

    def _class_folders(self, root: Path, lacking: Sequence[str]) -> Contents:
        """Find the classes' folders; names differ between copies in case, blanks and what stands for a slash.

        A class may have two, in folders of the set's own lists. What is missing of these lists is told where there are
        no class folders either.
        """
        position = {_plain(name): label for label, name in enumerate(self.class_names)}
        folders = find_folders(root, lambda name: position.get(_plain(name)))
        if not folders:
            told = f" ({', '.join(lacking)} missing)" if lacking else ""
            raise DataError(f"{root} is no folder of {self.title}: it needs {self.layout}{told}")
        without = [name for label, name in enumerate(self.class_names) if label not in folders]
        if without:
            raise DataError(f"{root} has no folder of {len(without)} classes; the first is {without[0]}")
        return read_folders(root, folders, self.class_names, self._parts, sizes=self.sizes)


def official_classes() -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the 196 models in the order of their numbers in cars_annos.mat, and how many images each has."""
    text = files("winnow.data.sets").joinpath("cars196_classes.txt").read_text(encoding="utf-8")
    rows = [line.split(" ", 1) for line in text.splitlines()]
    return tuple(name for _, name in rows), tuple(int(size) for size, _ in rows)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())
