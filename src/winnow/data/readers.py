"""Readers of image folders, CSV tables, and unlabeled collections."""

from __future__ import annotations

import csv
import io
import shlex
from itertools import compress
from pathlib import Path
from typing import Literal

from winnow.data.decoding import IMAGE_SUFFIXES
from winnow.data.folders import FolderScan, select_unique
from winnow.data.image_set import FileImages, ImageSet, first_few
from winnow.errors import DataError, did_you_mean
from winnow.files import read_text

UNLABELED = ""
"""Class name of images without a label."""

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
"""Usual names of splits, in lower case, mapped to train, val, and test."""


def load_images(path: str | Path, *, on_missing: Literal["raise", "skip"] = "raise") -> ImageSet:
    """Read class folders, MNIST files, or a CSV file, without splitting.

    Args:
        path: Folder or CSV file.
        on_missing: Action on files that a CSV file lists but that do not exist.

    Raises:
        DataError: If the path does not exist or contains no such data.
    """
    from winnow.data.datasets.mnist import is_mnist, read_mnist  # Only here, because it loads all datasets.

    path = Path(path)
    check_exists(path)
    if path.is_dir():
        return read_mnist(path) if is_mnist(path) else read_folder(path)
    if path.suffix.lower() != ".csv":
        raise DataError(f"{path}: neither a folder of class folders nor a .csv file. Name one of these.")
    return read_table(path, on_missing=on_missing)


def read_collection(path: str | Path) -> ImageSet:
    """Read images that need no labels.

    `emoji` is the test split of the bundled emoji dataset. A folder that contains images next to its subfolders is a
    collection. The class of these images is [`UNLABELED`][winnow.data.UNLABELED]. Images in a subfolder, at any depth,
    have its name as class. Each file counts once, also if links lead to it. Any other path is read as for training:
    class folders, a CSV file, or MNIST files.

    Raises:
        DataError: If there are no images.
    """
    if str(path) == "emoji":
        from winnow.data.emoji import load_emoji

        test = load_emoji().test
        assert test is not None, "the bundled emoji dataset has test classes"
        return test
    path = Path(path)
    check_exists(path)
    if not path.is_dir():
        if path.suffix.lower() != ".csv":
            raise DataError(f"{path}: neither a folder of images nor a .csv file. Name one of these.")
        return load_images(path)
    scan = FolderScan()
    folders, loose = scan.entries(path)
    if not loose:
        return load_images(path)
    names = [UNLABELED] * len(loose)
    for folder in folders:
        found = scan.images_below(path / folder)
        loose += [each.relative_to(path).as_posix() for each in found]
        names += [folder] * len(found)
    is_first, notes = scan.select_unique(path, loose, names)
    return FileImages.from_names(path, list(compress(loose, is_first)), list(compress(names, is_first)), notes=notes)


def read_folder(root: str | Path) -> FileImages:
    """List the images of a folder of class folders.

    Each immediate subfolder is a class. Its images may lie at any depth. Hidden files and files without an image
    suffix are skipped. Subfolders named train, val (valid, validation, dev), and test are splits if they contain class
    folders. The `original_split` of the result then gives the split of each image.

    Raises:
        DataError: If the folder does not exist, contains no images in class folders, or links give a file two labels.
    """
    root = Path(root)
    check_exists(root)
    if not root.is_dir():
        raise DataError(f"{root}: expected a folder of class folders, got a file. Name the folder.")
    scan = FolderScan()
    folders, images = scan.entries(root)
    splits = _split_folders(scan, root, folders)
    original_split: list[str] = []
    if splits is None:
        paths, names, notes = _class_folders(scan, root, root, folders, images)
    else:
        paths, names, notes = [], [], []
        for folder, split in splits.items():
            found = _class_folders(scan, root, root / folder, *scan.entries(root / folder))
            paths += found[0]
            names += found[1]
            notes += found[2]
            original_split += [split] * len(found[0])
    is_first, skipped = scan.select_unique(root, paths, names)
    return FileImages.from_names(
        root,
        list(compress(paths, is_first)),
        list(compress(names, is_first)),
        original_split=None if splits is None else list(compress(original_split, is_first)),
        notes=notes + skipped,
    )


def read_table(path: str | Path, *, on_missing: Literal["raise", "skip"] = "raise") -> FileImages:
    """Read a CSV file with the header `path,label` or `path,label,split`.

    Other columns are ignored.

    Paths are relative to the folder of the CSV file, or absolute. Splits are train, val, or test (or training, valid,
    validation, dev, testing).

    Args:
        path: CSV file.
        on_missing: Action on listed files that do not exist: "raise", or "skip" with a note in the result.

    Raises:
        DataError: If a row is wrong (the error names row and column; the header is row 1), a file is missing, or a
            file has two labels.
    """
    path = Path(path)
    check_exists(path)
    rows = _rows(path)
    columns = _columns(path, rows)
    cells: dict[str, list[str]] = {name: [] for name in columns}
    seen: dict[str, int] = {}
    for number, row in enumerate(rows[1:], start=2):
        if not any(cell.strip() for cell in row):
            continue
        for name, column in columns.items():
            cells[name].append(_cell(path, number, row, name, column))
        listed = cells["path"][-1]
        if listed in seen:
            raise DataError(
                f"{path}, row {number}, column 'path': duplicate path '{listed}' (first in row {seen[listed]}). "
                "Remove one row."
            )
        seen[listed] = number
    if not seen:
        raise DataError(f"{path}: no images listed below the header. Add a row per image.")
    exists = [(path.parent / name).is_file() for name in cells["path"]]
    missing = [name for name, found in zip(cells["path"], exists, strict=True) if not found]
    if missing and (on_missing == "raise" or not any(exists)):
        raise DataError(
            f"{path}: files not found: {first_few(missing)}. Write paths relative to {path.parent}, or skip missing "
            "files with data.unreadable_images=skip."
        )
    present = {name: list(compress(column, exists)) for name, column in cells.items()}
    is_first, repeated = select_unique(path, path.parent, present["path"], present["label"])
    present = {name: list(compress(column, is_first)) for name, column in present.items()}
    notes = [f"{path}: listed files that do not exist are skipped: {first_few(missing)}"] if missing else []
    return FileImages.from_names(
        path.parent, present["path"], present["label"], original_split=present.get("split"), notes=notes + repeated
    )


def check_exists(path: Path) -> None:
    """Raise a DataError with the most similar name nearby if `path` does not exist."""
    if not path.exists():
        around = path.absolute().parent
        siblings = [entry.name for entry in around.iterdir()] if around.is_dir() else []
        hint = did_you_mean(path.name, [*siblings, "emoji"])
        raise DataError(f"{path}: folder or file not found in {around}{hint} Check the path.")


def _split_folders(scan: FolderScan, root: Path, folders: list[str]) -> dict[str, str] | None:
    """Return the split of each subfolder, or None if the subfolders are classes."""
    splits = {name: SPLIT_NAMES[name.casefold()] for name in folders if name.casefold() in SPLIT_NAMES}
    # `train` may also be a class of vehicles. A split contains class folders and no images.
    if "train" not in splits.values() or any(scan.entries(root / name)[1] for name in splits):
        return None
    extra = [name for name in folders if name not in splits]
    if extra:
        if len(splits) == 1:
            return None
        raise DataError(
            f"{root}: folders next to the splits {', '.join(splits)}: {first_few(extra)}. Move them elsewhere."
        )
    for split in set(splits.values()):
        twins = [name for name, other in splits.items() if other == split]
        if len(twins) > 1:
            raise DataError(f"{root}: {' and '.join(twins)} both mean {split}. Merge them or remove one.")
    return splits


def _class_folders(
    scan: FolderScan, root: Path, parent: Path, folders: list[str], strays: list[str]
) -> tuple[list[str], list[str], list[str]]:
    """Return relative paths, class names, and notes of the class folders in `parent`."""
    paths: list[str] = []
    names: list[str] = []
    empty: list[str] = []
    nested: list[str] = []
    for folder in folders:
        found = scan.images_below(parent / folder)
        below = [path.relative_to(parent / folder).parts for path in found]
        if all(len(parts) > 1 for parts in below) and len({parts[0] for parts in below}) > 1:
            nested.append(folder)
        paths += [path.relative_to(root).as_posix() for path in found]
        names += [folder] * len(found)
        if not found:
            empty.append(folder)
    if not paths and strays:
        raise DataError(
            f"{parent}: images but no class folders. Put the images of each class in a separate folder, or search them "
            f"without training: winnow index pretrained {shlex.quote(str(parent))} -o my.index."
        )
    if not paths:
        raise DataError(
            f"{parent}: no images found. Add one folder per class with images ({', '.join(sorted(IMAGE_SUFFIXES))})."
        )
    notes = []
    if empty:
        notes.append(f"{parent}: class folders without images are skipped: {first_few(empty)}")
    if nested:
        remedy = f"set data={parent / nested[0]}" if len(folders) == 1 else f"move them up into {parent}"
        each = "it counts as one class" if len(nested) == 1 else "each counts as one class"
        notes.append(
            f"{parent}: all images of {first_few(nested)} lie in subfolders; {each}. If the subfolders are the "
            f"classes, {remedy}"
        )
    if strays:
        notes.append(f"{parent}: images outside class folders are skipped: {first_few(strays)}")
    return paths, names, notes


def _rows(path: Path) -> list[list[str]]:
    try:
        # utf-8-sig, because spreadsheet programs write a byte order mark first.
        return list(csv.reader(io.StringIO(read_text(path, encoding="utf-8-sig"), newline=""), strict=True))
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8 text. Save it as CSV with UTF-8 encoding.") from None
    except (OSError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV ({error}). Check its quotes and permissions.") from None


def _columns(path: Path, rows: list[list[str]]) -> dict[str, int]:
    """Return the position of each column that is used."""
    if not rows:
        raise DataError(f"{path}: empty file. Write path,label or path,label,split in the first row.")
    header = [cell.strip().casefold() for cell in rows[0]]
    for name in ("path", "label"):
        if name not in header:
            raise DataError(
                f"{path}, row 1: column '{name}' not found{did_you_mean(name, header)} "
                "Write path,label or path,label,split in the first row."
            )
    return {name: header.index(name) for name in ("path", "label", "split") if name in header}


def _cell(path: Path, number: int, row: list[str], name: str, column: int) -> str:
    value = row[column].strip() if column < len(row) else ""
    if not value:
        raise DataError(f"{path}, row {number}, column '{name}': empty cell. Fill it in or remove the row.")
    if name != "split":
        return value
    if value.casefold() not in SPLIT_NAMES:
        raise DataError(
            f"{path}, row {number}, column 'split': unknown split '{value}'{did_you_mean(value, SPLIT_NAMES)} "
            "Write train, val, or test."
        )
    return SPLIT_NAMES[value.casefold()]
