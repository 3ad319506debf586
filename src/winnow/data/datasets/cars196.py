"""Cars196 dataset of car models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from winnow.data.datasets.base import Dataset, DatasetParts, Source
from winnow.data.datasets.label_files import (
    Row,
    box_key,
    boxes_in_order,
    build_folder_parts,
    build_listed_parts,
    find,
    find_class_folders,
)
from winnow.data.datasets.official import read_sample
from winnow.data.image_set import ImageSet
from winnow.errors import DataError

_LISTS = (("cars_train_annos.mat", "cars_train"), ("cars_test_annos_withlabels.mat", "cars_test"))
"""Annotation files of the original split, each with the folder of its images."""

_CORNERS = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")


class Cars196(Dataset):
    """Cars196: 16,185 car images of 196 models (Krause et al., 3DRR 2013).

    Split by class: models 1-98 train (8,054 images), models 99-196 test (8,131 images). The original train and test
    lists are not used as splits.
    Layout: `cars_annos.mat` and `car_ims/`; or the two annotation files and their folders; or the 196 class folders.
    License: research, as its owners state.

    Args:
        train: Expected number of training images.
        test: Expected number of test images.
        class_names: Models in the official order, which is not alphabetical; None for the 196.
    """

    name = "cars196"
    title = "Cars196"
    about = "16,185 photos of 196 car models; the first 98 models train, the other 98 test"
    terms = "for research, as its owners state (Stanford)"
    home = "https://ai.stanford.edu/~jkrause/cars/car_dataset.html (gone)"
    layout = (
        "cars_annos.mat and car_ims/; or cars_train_annos.mat, cars_test_annos_withlabels.mat, cars_train/, and "
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
        self.sizes: tuple[int, ...] | None  # Unknown for other class names.
        self.class_names, self.sizes = official_classes() if class_names is None else (tuple(class_names), None)
        half = len(self.class_names) // 2
        self.counts = {"train": train, "test": test}
        self.classes = {"train": half, "test": len(self.class_names) - half}
        self.sample = read_sample(self.name) if class_names is None else ()

    @property
    def _parts(self) -> dict[str, range]:
        half = self.classes["train"]
        return {"train": range(half), "test": range(half, len(self.class_names))}

    def read(self, root: Path) -> DatasetParts:
        """Read the annotations of the whole dataset, of its two lists, or class folders."""
        whole = find(root, "cars_annos.mat")
        # Copies with the two lists often contain this file too, but not the folder of its paths.
        if whole is not None and (whole.parent / "car_ims").is_dir():
            return self._build(root, whole.parent, self._read_annotations(whole, "relative_im_path", ""))
        found = {name: find(root, name) for pair in _LISTS for name in pair}
        missing = [name for name, path in found.items() if path is None]
        if not missing:
            rows: list[tuple[str, int]] = []
            for file, folder in ((found[file], found[folder]) for file, folder in _LISTS):
                assert file is not None, "none is missing"
                assert folder is not None, "none is missing"
                # Some archives contain the folder in a folder of the same name.
                inner = folder / folder.name if (folder / folder.name).is_dir() else folder
                rows += self._read_annotations(file, "fname", f"{inner.relative_to(root).as_posix()}/")
            return self._build(root, root, rows)
        return self._read_class_folders(root, missing if len(missing) < len(found) else [])

    def object_boxes(self, root: str | Path, images: ImageSet) -> NDArray[np.float64]:
        """Return the boxes of the cars from the annotation files, which count pixels from 1 and include both ends."""
        root = Path(root)
        whole = find(root, "cars_annos.mat")
        if whole is not None and (whole.parent / "car_ims").is_dir():
            sources = {whole: ("relative_im_path", "")}
        else:
            found = {name: (find(root, name), f"{folder}/") for name, folder in _LISTS}
            missing = [name for name, (path, _) in found.items() if path is None]
            if missing:
                raise DataError(
                    f"{root}: {' and '.join(missing)} not found, and this copy has no bounding boxes without it. Copy "
                    "the annotation files of the original dataset into the folder."
                )
            sources = {path: ("fname", prefix) for path, prefix in found.values() if path is not None}
        boxes: dict[str, tuple[int, ...]] = {}
        for file, (key, prefix) in sources.items():
            for path, (x1, y1, x2, y2) in _read_entries(file, key, _CORNERS):
                boxes[box_key(prefix + path)] = (x1 - 1, y1 - 1, x2, y2)
        return boxes_in_order(boxes, images, next(iter(sources)), {})

    def _read_annotations(self, file: Path, key: str, prefix: str) -> list[tuple[str, int]]:
        """Return the path and the label of each annotation in a file."""
        found = [(prefix + path, number - 1) for path, (number,) in _read_entries(file, key, ("class",))]
        if any(not 0 <= label < len(self.class_names) for _, label in found):
            raise DataError(f"{file}: a class is above {len(self.class_names)}. Get the file again.")
        return found

    def _build(self, root: Path, at: Path, annotations: list[tuple[str, int]]) -> DatasetParts:
        train = self._parts["train"]
        rows = [Row("train" if label in train else "test", path, label) for path, label in annotations]
        return build_listed_parts(root, rows, self.class_names, self._parts, at=at)

    def _read_class_folders(self, root: Path, missing: Sequence[str]) -> DatasetParts:
        """Read class folders.

        Their names differ between copies in case, spaces, and the replacement of a slash.

        A class may have two folders, such as in `train` and `test`. `missing` names missing annotation files for the
        error message.
        """
        position = {_normalize(name): label for label, name in enumerate(self.class_names)}
        folders = find_class_folders(root, lambda name: position.get(_normalize(name)))
        if not folders:
            files = f" ({', '.join(missing)} missing)" if missing else ""
            raise DataError(f"{root}: no files of {self.title} found{files}. Expected: {self.layout}.")
        without = [name for label, name in enumerate(self.class_names) if label not in folders]
        if without:
            raise DataError(f"{root}: {len(without)} class folders missing; the first is {without[0]}. Restore them.")
        return build_folder_parts(root, folders, self.class_names, self._parts, sizes=self.sizes)


def _read_entries(file: Path, key: str, numbers: Sequence[str]) -> list[tuple[str, tuple[int, ...]]]:
    """Return the path and whole numbers of each annotation in a file.

    Raises:
        DataError: If the file is damaged, or an annotation lacks a value.
    """
    from scipy.io import loadmat  # Only here, because it takes a while to import.

    try:
        annotations = loadmat(file, simplify_cells=True)["annotations"]
        entries = [annotations] if isinstance(annotations, dict) else annotations
        return [(str(entry[key]), tuple(int(entry[number]) for number in numbers)) for entry in entries]
    except Exception as error:  # scipy raises nearly any error on damaged files: zlib.error, IndexError, ...
        raise DataError(
            f"{file}: no annotations with {key} and {', '.join(numbers)} ({type(error).__name__}: {error}). Get the "
            "file again."
        ) from None


def official_classes() -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the 196 models in official order, and their numbers of images."""
    text = files("winnow.data.datasets").joinpath("cars196_classes.txt").read_text(encoding="utf-8")
    rows = [line.split(" ", 1) for line in text.splitlines()]
    return tuple(name for _, name in rows), tuple(int(size) for size, _ in rows)


def _normalize(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())
