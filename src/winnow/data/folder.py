"""A folder of class folders as a set of images."""

from __future__ import annotations

import os
from pathlib import Path

from winnow.data.fileset import SPLIT_NAMES, FileSet, first_few, natural_key
from winnow.data.images import IMAGE_SUFFIXES
from winnow.errors import DataError, nearest


def read_folder(root: str | Path) -> FileSet:
    """List the images of a folder of class folders.

    A class is an immediate subfolder; its images may lie at any depth below. Hidden files and files without an image
    suffix are passed over. When the subfolders are called train, val (valid, validation) and test, each of them is
    taken for a folder of class folders and the set's `given` says which one an image came from.

    Raises:
        DataError: when there is no such folder, or it holds no images in class folders.
    """
    root = Path(root)
    check_exists(root)
    if not root.is_dir():
        raise DataError(f"{root} is a file where a folder of class folders is expected")
    folders, images = image_entries(root)
    splits = _split_folders(root, folders)
    if splits is None:
        paths, names, notes = _class_folders(root, root, folders, images)
        return FileSet.of_names(root, paths, names, notes=notes)
    paths, names, notes, given = [], [], [], []
    for folder, split in splits.items():
        found = _class_folders(root, root / folder, *image_entries(root / folder))
        paths += found[0]
        names += found[1]
        notes += found[2]
        given += [split] * len(found[0])
    return FileSet.of_names(root, paths, names, given=given, notes=notes)


def check_exists(path: Path) -> None:
    """Raise a DataError with the nearest name around when nothing is at `path`."""
    if not path.exists():
        around = path.absolute().parent
        siblings = [entry.name for entry in around.iterdir()] if around.is_dir() else []
        raise DataError(f"there is no folder or file {path}{nearest(path.name, siblings)}")


def _split_folders(root: Path, folders: list[str]) -> dict[str, str] | None:
    """Return folder name to split when the subfolders are splits, None when they are classes."""
    splits = {name: SPLIT_NAMES[name.casefold()] for name in folders if name.casefold() in SPLIT_NAMES}
    # `train` may just as well be a class of vehicles: a split holds class folders and no images of its own.
    if "train" not in splits.values() or any(image_entries(root / name)[1] for name in splits):
        return None
    others = [name for name in folders if name not in splits]
    if others:
        if len(splits) == 1:
            return None
        raise DataError(
            f"{root} holds the splits {', '.join(splits)} but also {first_few(others)}: move what is no split elsewhere"
        )
    for split in set(splits.values()):
        twins = [name for name, other in splits.items() if other == split]
        if len(twins) > 1:
            raise DataError(f"{root} has {' and '.join(twins)}, which both mean {split}: merge them or remove one")
    return splits


def _class_folders(
    root: Path, parent: Path, folders: list[str], strays: list[str]
) -> tuple[list[str], list[str], list[str]]:
    """Return paths relative to `root`, class names and notes for the class folders in `parent`."""
    paths: list[str] = []
    names: list[str] = []
    empty: list[str] = []
    for folder in folders:
        found = images_below(parent / folder)
        paths += [path.relative_to(root).as_posix() for path in found]
        names += [folder] * len(found)
        if not found:
            empty.append(folder)
    if not paths and strays:
        raise DataError(f"{parent} holds images but no class folders: put each class's images in a folder of its own")
    if not paths:
        raise DataError(
            f"{parent} holds no images: expected one folder per class with images ({', '.join(sorted(IMAGE_SUFFIXES))})"
        )
    notes = []
    if empty:
        notes.append(f"class folders without images are left out in {parent}: {first_few(empty)}")
    if strays:
        notes.append(f"images outside any class folder are left out in {parent}: {first_few(strays)}")
    return paths, names, notes


def images_below(folder: Path, above: frozenset[tuple[int, int]] = frozenset()) -> list[Path]:
    """List the images at any depth, in natural order; `above` identifies the folders we came through."""
    state = os.stat(folder)
    here = (state.st_dev, state.st_ino)
    if here in above:  # a link back to a folder we are in
        return []
    folders, images = image_entries(folder)
    found = [folder / name for name in images]
    for name in folders:
        found += images_below(folder / name, above | {here})
    return found


def image_entries(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the visible subfolders and of the image files in a folder, in natural order."""
    folders: list[str] = []
    images: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    folders.append(entry.name)
                elif os.path.splitext(entry.name)[1].lower() in IMAGE_SUFFIXES:
                    # Not is_file(): a dangling link is listed, so that it is reported as unreadable, not passed over.
                    images.append(entry.name)
    except OSError as error:
        raise DataError(f"{folder} cannot be listed ({error.strerror}): check its permissions") from None
    return sorted(folders, key=natural_key), sorted(images, key=natural_key)
