"""Base class of datasets, with expected counts, folds, and a table of names."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from winnow.data.datasets.official import OfficialImage, describe_copy
from winnow.data.image_set import ImageSet, Splits, first_few
from winnow.errors import ConfigError, DataError, did_you_mean
from winnow.files import parse_json, write_text

FoldsBy = Literal["classes", "images"]

RECORD = "missing.json"
"""File in the folder of a dataset that lists its accepted missing images."""

MAX_NAMES_IN_RESULT = 20
"""Number of missing files that a result names."""


@dataclass(frozen=True)
class Source:
    """File at a public address.

    Attributes:
        url: Address.
        file: File name.
        md5: Published checksum; None if unknown.
    """

    url: str
    file: str
    md5: str | None = None


@dataclass(frozen=True)
class DatasetParts:
    """Images that a dataset found in a folder, by part: train, val, test, or gallery.

    Attributes:
        parts: Images of each part.
        absent: Names that are listed but missing, by part: files, or classes with too few images.
        notes: Sentences on how the images differ from those of the official archive.
    """

    parts: Mapping[str, ImageSet]
    absent: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class MissingImages:
    """Difference between the found and the published number of images of a part.

    Attributes:
        part: Name of the part.
        found: Number of images found.
        expected: Number of images published.
        names: Names of missing files or incomplete classes, if the dataset lists them.
    """

    part: str
    found: int
    expected: int
    names: tuple[str, ...] = ()

    def describe(self, limit: int = 5) -> str:
        """Return a one-line description with at most `limit` names."""
        names = f": {first_few(self.names, limit)}" if self.names and limit else ""
        return f"{self.part} has {self.found:,} of {self.expected:,} images{names}"

    def to_dict(self, limit: int | None = None) -> dict[str, Any]:
        """Return the JSON form, with at most `limit` names."""
        return {"found": self.found, "expected": self.expected, "names": list(self.names[:limit])}


@dataclass(frozen=True)
class Benchmark:
    """Dataset that was read from a folder, with its published split.

    Attributes:
        name: Name in `data=NAME`.
        train: Training images, before any are set aside for validation.
        test: Test images; with a gallery, the queries.
        gallery: References of the queries; None if each test image queries all others.
        val: Validation images of the dataset; None if a fold of the training images validates.
        ks: Ranks of R@k that results report.
        missing: Accepted missing images by part: "found" and "expected" images, and "names" of missing files.
        folds_by: Unit of the folds: classes, or images of each class; None without folds.
        notes: Sentences on how the images differ from those of the official archive.
    """

    name: str
    train: ImageSet
    test: ImageSet
    gallery: ImageSet | None = None
    val: ImageSet | None = None
    ks: tuple[int, ...] = (1, 2, 4, 8)
    missing: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    folds_by: FoldsBy | None = "classes"
    notes: tuple[str, ...] = ()

    def splits(self, fold: int | None = None, folds: int = 4, *, on_test: bool = False) -> Splits:
        """Return training, validation, and test images.

        Args:
            fold: Contiguous part of the training classes that validates, counted from the last: with 4 folds, 1 is the
                last quarter of the classes. None for the validation images of the dataset, or fold 1 without them.
            folds: Number of folds.
            on_test: Whether to train on all training classes and validate on the test images, as in the conventional
                protocol.

        Raises:
            ConfigError: If the fold does not exist.
        """
        train, val = self.train, self.val
        if on_test:
            if fold is not None:
                raise ConfigError(f"data.fold={fold}: data.val_classes=test has no folds. Remove one of the two.")
            val = self.test
        elif fold is not None or val is None:
            train, val = self._split_fold(1 if fold is None else fold, folds)
        assert val is not None, "one of the three branches sets it"
        missing = tuple(
            f"{self.name}: {part} has {one['found']:,} of {one['expected']:,} images"
            for part, one in self.missing.items()
        )
        notes = self.notes + missing
        return Splits(
            train, val, self.test, notes, gallery=self.gallery, ks=self.ks, missing=self.missing, archive=self.notes
        )

    def _split_fold(self, fold: int, folds: int) -> tuple[ImageSet, ImageSet]:
        """Return the training and the validation images of a fold."""
        if self.folds_by is None:
            has = "has its own validation images" if self.val is not None else "has no validation images"
            raise ConfigError(
                f"data.fold: {self.name} {has} and no folds. Set data.val_classes=test to validate on its test images."
            )
        if folds < 2 or not 1 <= fold <= folds:
            raise ConfigError(
                f"data.fold={fold}: expected 1-{folds}, because data.num_folds={folds}. Correct one of the two."
            )
        if self.folds_by == "classes":
            count = len(self.train.class_names)
            if count < 2 * folds:
                raise ConfigError(
                    f"data.num_folds={folds}: {count} training classes give fewer than 2 per fold. Use fewer folds."
                )
            held_out = fold_range(count, fold, folds)
            rest = [label for label in range(count) if label not in held_out]
            return self.train.select_classes(rest), self.train.select_classes(held_out)
        held_out_images: set[int] = set()
        for label in range(len(self.train.class_names)):
            members = np.flatnonzero(self.train.labels == label)
            part = fold_range(len(members), fold, folds)
            held_out_images.update(members[part.start : part.stop].tolist())
        every = range(len(self.train))
        return (
            self.train.select([i for i in every if i not in held_out_images]),
            self.train.select(sorted(held_out_images)),
        )


def fold_range(count: int, fold: int, folds: int) -> range:
    r"""Return the class positions of a fold.

    Fold $s$ of $S$ is $[e_{S-s}, e_{S-s+1})$ with $e_i = \lfloor i \, C / S \rfloor$.

    As in [MLRC] and [Thesis], model 1 validates on the last part and model 4 on the first.
    """
    edges = [int(edge) for edge in np.linspace(0, count, folds + 1)]
    return range(edges[folds - fold], edges[folds - fold + 1])


class Dataset(ABC):
    """Published dataset: its description, sources, reader, and expected counts.

    A new dataset is a subclass that sets the attributes and implements `read`, plus one line in `DATASETS`. A dataset
    outside winnow is added with `DATASETS.add(MyDataset())`. It must satisfy this contract:

    - `counts` has the parts "train" and "test", and may have "val" and "gallery".
    - `read(root).parts` has an image set for each part in `counts`. Each label indexes the `class_names` of its part.
      The gallery has the same `class_names` as the test.
    - `read` raises `DataError` only for files that are not of this dataset. Missing images do not raise. They are
      omitted from `parts` and named in `absent` where the dataset lists them.
    - `read` depends only on the files and the constructor arguments. Two calls give equal names, labels, and
      fingerprints.
    - With `folds_by=None`, `read` gives a "val" part, or training needs `data.val_classes=test`.

    Attributes:
        name: Name in `data=NAME`.
        title: Full name.
        about: One sentence on the images and the split.
        terms: Terms of use as stated by the owners.
        home: Web page.
        layout: Files that a folder of the dataset contains.
        folder: Name of the default folder; empty for `name`. Datasets of the same files share one folder.
        counts: Published number of images of each part.
        classes: Published number of classes of each part. The gallery has the classes of the test.
        ks: Ranks of R@k that results report.
        sources: Public addresses of the files; empty if the owners give them on request.
        folds_by: Unit of validation folds: "classes", or "images" of each class if the test has the same classes; None
            without folds.
        sample: Images of the official archive, which the images of a folder are compared with; empty if unknown.
    """

    name: str
    title: ClassVar[str]
    about: str
    terms: ClassVar[str]
    home: ClassVar[str]
    layout: ClassVar[str]
    folder: ClassVar[str] = ""
    counts: Mapping[str, int]
    classes: Mapping[str, int]
    ks: ClassVar[tuple[int, ...]] = (1, 2, 4, 8)
    sources: ClassVar[tuple[Source, ...]] = ()
    folds_by: ClassVar[FoldsBy | None] = "classes"
    sample: Sequence[OfficialImage] = ()

    @property
    def default_root(self) -> Path:
        """Default folder: `$WINNOW_DATA/NAME`, or `data/NAME`."""
        return Path(os.environ.get("WINNOW_DATA", "data")) / (self.folder or self.name)

    @abstractmethod
    def read(self, root: Path) -> DatasetParts:
        """Read the files in a folder, and report missing images in the result.

        Raises:
            DataError: If the files do not belong to the dataset.
        """

    def object_boxes(self, root: str | Path, images: ImageSet) -> NDArray[np.float64]:
        """Return the bounding box of the object in each image, from the annotations of the dataset.

        Args:
            root: Folder of the dataset.
            images: Images of the dataset.

        Returns:
            Boxes (N, 4): left, top, right, and bottom, as fractions of the upright image.

        Raises:
            DataError: If the dataset has no bounding boxes, or the copy in the folder lacks them.
        """
        raise DataError(f"{root}: {self.title} has no bounding boxes. Use cub200, cars196, or emoji.")

    def check(self, root: str | Path) -> tuple[DatasetParts, list[MissingImages]]:
        """Read a folder and compare it with the published counts, and with the official archive where it is known.

        Resized copies are accepted. The notes of the parts state how they differ.

        Raises:
            DataError: If the folder does not exist, or its files do not belong to the dataset.
        """
        root = Path(root)
        if not root.is_dir():
            raise DataError(
                f"{root}: folder of {self.title} not found. Put the dataset '{self.name}' there, or set data.root to "
                "its folder.",
                hint="dataset",
            )
        contents = self.read(root)
        for part, count in self.classes.items():
            found = len(contents.parts[part].class_names)
            if found != count:
                raise DataError(
                    f"{root}: {part} has {found:,} classes, expected {count:,} of {self.title}. Check the folder."
                )
        missing = [
            MissingImages(part, len(contents.parts[part]), count, contents.absent.get(part, ()))
            for part, count in self.counts.items()
            if len(contents.parts[part]) != count
        ]
        if self.sample:
            note = f"{self.name}: {describe_copy(contents.parts, self.sample)}"
            contents = replace(contents, notes=(*contents.notes, note))
        return contents, missing

    def accept_missing(self, root: str | Path, missing: Sequence[MissingImages]) -> None:
        """Record in a folder that the dataset is used without some images.

        An empty list removes the record.

        Raises:
            OutputError: If the record cannot be written.
        """
        path = Path(root) / RECORD
        record = read_record(path.parent)
        record[self.name] = {one.part: one.to_dict() for one in missing}
        record = {name: parts for name, parts in record.items() if parts}
        if record:
            write_text(path, json.dumps(record, indent=2) + "\n")
        else:
            path.unlink(missing_ok=True)

    def is_accepted(self, root: Path, missing: MissingImages) -> bool:
        """Return whether `accept_missing` recorded the missing images of a part.

        Raises:
            DataError: If the record cannot be read.
        """
        return _covers(read_record(root).get(self.name, {}).get(missing.part), missing)

    def load(self, root: str | Path | None = None) -> Benchmark:
        """Read a folder that is complete, or whose missing images were accepted.

        Args:
            root: Folder; None for `default_root`.

        Raises:
            DataError: If the folder does not belong to the dataset, or missing images were not accepted.
        """
        folder = self.default_root if root is None else Path(root)
        contents, missing = self.check(folder)
        for one in missing:
            if one.found > one.expected:
                raise DataError(
                    f"{folder}: {one.describe()}, {one.found - one.expected:,} more than published. Remove the images "
                    "that are not of the dataset, or set data.path to the folder to use all of them."
                )
            if not self.is_accepted(folder, one):
                raise DataError(
                    f"{folder}: {one.describe()}. Restore the images of {self.name}, or accept their absence with "
                    "Dataset.accept_missing; every result then reports it.",
                    hint="missing_images",
                )
        parts = contents.parts
        return Benchmark(
            name=self.name, train=parts["train"], test=parts["test"], val=parts.get("val"),
            gallery=parts.get("gallery"), ks=self.ks, folds_by=self.folds_by,
            missing={one.part: one.to_dict(MAX_NAMES_IN_RESULT) for one in missing}, notes=contents.notes,
        )  # fmt: skip


class DatasetRegistry(Mapping[str, Dataset]):
    """Table of datasets by name."""

    def __init__(self, *datasets: Dataset) -> None:
        self._datasets: dict[str, Dataset] = {}
        for dataset in datasets:
            self.add(dataset)

    def add(self, dataset: Dataset) -> None:
        """Add a dataset from outside winnow for the lifetime of this process.

        Raises:
            ConfigError: If another dataset has the name.
        """
        if self._datasets.setdefault(dataset.name, dataset) is not dataset:
            raise ConfigError(f"dataset: the name '{dataset.name}' is taken. Use another name.")

    def __getitem__(self, name: str) -> Dataset:
        if name not in self._datasets:
            raise ConfigError(f"data: unknown dataset '{name}'{did_you_mean(name, self)} Available: {', '.join(self)}.")
        return self._datasets[name]

    def __contains__(self, name: object) -> bool:
        return name in self._datasets

    def __iter__(self) -> Iterator[str]:
        return iter(self._datasets)

    def __len__(self) -> int:
        return len(self._datasets)


def read_record(root: Path) -> dict[str, dict[str, Any]]:
    """Read the record of `accept_missing` by dataset and part; empty without one.

    Raises:
        DataError: If the record cannot be read.
    """
    path = root / RECORD
    if not path.is_file():
        return {}
    try:
        record: dict[str, dict[str, Any]] = parse_json(path.read_text(encoding="utf-8"))
        for parts in record.values():
            for one in parts.values():
                _ = int(one["found"]), list(one["names"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise DataError(f"{path}: record cannot be read. Delete it and accept missing images again.") from None
    return record


def _covers(accepted: Mapping[str, Any] | None, missing: MissingImages) -> bool:
    """Return whether a part lacks only accepted images.

    Surplus images are never accepted.
    """
    if accepted is None or missing.found > missing.expected:
        return False
    return bool(missing.found >= int(accepted["found"]) and set(missing.names) <= set(accepted["names"]))
