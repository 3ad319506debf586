"""Readers of label files and class folders, shared by the datasets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from winnow.data.datasets.base import DatasetParts
from winnow.data.decoding import IMAGE_SUFFIXES
from winnow.data.image_set import FileImages, ImageSet, Subset, first_few, natural_key
from winnow.errors import DataError
from winnow.files import read_text

SIZES_FILE = "sizes.txt"
"""File with the sizes of the original images, next to the boxes; only resized copies need it."""

ClassFolders = Mapping[int, Sequence[Path]]
"""Folders of each class, by its number or position."""


@dataclass(frozen=True)
class Row:
    """Line of a label file: part, relative path, and position of the class."""

    part: str
    path: str
    label: int


def find(root: Path, *names: str, depth: int = 2) -> Path | None:
    """Return the first relative path that exists in a folder or a subfolder.

    Subfolders are searched up to `depth` levels below the folder.
    """
    level = [root]
    for _ in range(depth + 1):
        for folder in level:
            for name in names:
                if (folder / name).exists():
                    return folder / name
        level = [child for folder in level for child in sorted(folder.iterdir()) if _is_visible_folder(child)]
        if len(level) > 1000:  # These are class folders.
            return None
    return None


def read_lines(path: Path) -> list[list[str]]:
    """Return the words of each line of a label file. Empty lines are skipped.

    Raises:
        DataError: If the file cannot be read as text.
    """
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: label file cannot be read ({error}). Get the dataset again.") from None
    return [words for line in text.splitlines() if (words := line.split())]


def line_error(path: Path, number: int, why: str) -> DataError:
    """Return the error for a line of a label file."""
    return DataError(f"{path}, line {number}: {why}. Get the dataset again.")


def build_listed_parts(
    root: Path, rows: Iterable[Row], class_names: Sequence[str], parts: Mapping[str, Sequence[int]], *, at: Path
) -> DatasetParts:
    """Build the parts from the listed files that exist, and name the missing ones.

    If a file exists with several suffixes, the listed suffix is used, else the first in plain order.

    Args:
        root: Folder that image names are relative to.
        rows: Rows of the label files.
        class_names: All classes, in the official order.
        parts: Classes of each part, by position.
        at: Folder that the listed paths are relative to.

    Raises:
        DataError: If no listed file exists, or an image is listed twice, which could hide a missing one.
    """
    files = image_files(at)
    inner = at.relative_to(root).as_posix()
    prefix = "" if inner == "." else f"{inner}/"
    found: list[Row] = []
    absent: dict[str, list[str]] = {part: [] for part in parts}
    seen: set[str] = set()
    for row in rows:
        stem = os.path.splitext(row.path)[0]
        if stem in seen:
            raise DataError(f"{at}: its label files list {row.path} twice. Get the dataset again.")
        seen.add(stem)
        candidates = files.get(stem)
        if candidates is None:
            absent[row.part].append(row.path)
        else:
            path = row.path if row.path in candidates else candidates[0]
            found.append(Row(row.part, prefix + path, row.label))
    if not found:
        first = next((names[0] for names in absent.values() if names), "none")
        raise DataError(f"{at}: none of the listed images found; the first is {first}. Check the folder.")
    return build_parts(root, found, class_names, parts, {part: tuple(names) for part, names in absent.items()})


def build_parts(
    root: Path,
    rows: Sequence[Row],
    class_names: Sequence[str],
    parts: Mapping[str, Sequence[int]],
    absent: Mapping[str, tuple[str, ...]],
) -> DatasetParts:
    """Build the parts from existing files, with paths relative to the folder.

    Raises:
        DataError: If there are no files.
    """
    if not rows:
        raise DataError(f"{root}: no images of the dataset found. Check the folder.")
    labels = np.array([row.label for row in rows], dtype=np.int64)
    images = FileImages(root, [row.path for row in rows], labels, tuple(class_names))
    part_of_row = np.array([row.part for row in rows])
    return DatasetParts(
        {part: _build_part(images, part_of_row == part, classes) for part, classes in parts.items()}, absent
    )


def box_key(name: str) -> str:
    """Return the name that an image has in annotations of boxes: its folder and its file without suffix.

    Copies of a dataset differ in the folders above and in the suffix.
    """
    return "/".join(PurePosixPath(os.path.splitext(name)[0]).parts[-2:])


_SLACK = 2
"""Pixels that a published box may end outside its image."""


def boxes_in_order(
    boxes: Mapping[str, Sequence[float]], images: ImageSet, source: Path, sizes: Mapping[str, Sequence[float]]
) -> NDArray[np.float64]:
    """Return the boxes of images as fractions of the image, (N, 4).

    Args:
        boxes: Left, top, right, and bottom in pixels of the original image, by `box_key`.
        images: Images.
        source: File of the boxes, for messages.
        sizes: Width and height of the original images by `box_key`, if the images may be resized; empty if they are the
            originals.

    Raises:
        DataError: If an image has no box, or its box reaches beyond it.
    """
    found = np.empty((len(images), 4))
    for index in range(len(images)):
        key = box_key(images.name(index))
        if key not in boxes:
            raise DataError(f"{source}: no bounding box of {images.name(index)}. Get the dataset again.")
        width, height = sizes[key] if key in sizes else images.size(index)
        left, top, right, bottom = boxes[key]
        # Published boxes end up to two pixels outside their image.
        if right > width + _SLACK or bottom > height + _SLACK:
            raise DataError(
                f"{source}: the box of {images.name(index)} ends at {right:g} x {bottom:g}, its image at {width:g} x "
                f"{height:g}. The copy has resized images: add {SIZES_FILE} with a line 'ID WIDTH HEIGHT' for each "
                "original image, or use the original images."
            )
        found[index] = left / width, top / height, right / width, bottom / height
    return found.clip(0, 1)


def find_class_folders(root: Path, class_of: Callable[[str], int | None]) -> dict[int, list[Path]]:
    """Find the folders of classes at any depth, except inside a folder of a class.

    Args:
        root: Folder to search.
        class_of: Function that returns the class of a folder name; None for other folders.
    """
    found: dict[int, list[Path]] = {}
    for folder, children, _ in walk(root):
        classes = {name: key for name in children if (key := class_of(name)) is not None}
        for name, key in classes.items():
            found.setdefault(key, []).append(folder / name)
        children[:] = [name for name in children if name not in classes and not name.startswith(".")]
    return found


def build_folder_parts(
    root: Path,
    folders: ClassFolders,
    class_names: Sequence[str],
    parts: Mapping[str, Sequence[int]],
    *,
    sizes: Sequence[int] | None,
) -> DatasetParts:
    """Build the parts from all images in class folders.

    Missing images are named by class, not by file.

    Args:
        root: Folder that image names are relative to.
        folders: Folders of each class, by its position.
        class_names: All classes, in the official order.
        parts: Classes of each part, by position.
        sizes: Published number of images of each class; None if unknown.

    Raises:
        DataError: If a class has more images than published, or an image has several files.
    """
    part_of_class = {label: part for part, labels in parts.items() for label in labels}
    rows = []
    for label in range(len(class_names)):
        for folder in folders.get(label, ()):
            inner = folder.relative_to(root).as_posix()
            rows += [Row(part_of_class[label], f"{inner}/{file}", label) for file in single_files(folder)]
    if sizes is None:
        return build_parts(root, rows, class_names, parts, {})
    found = np.bincount([row.label for row in rows], minlength=len(class_names)).tolist()
    # A surplus image would hide a missing one of another class.
    surplus = [
        f"{name} ({count}, published {size})"
        for name, count, size in zip(class_names, found, sizes, strict=True)
        if count > size
    ]
    if surplus:
        raise DataError(
            f"{root}: classes with more images than published: {first_few(surplus, 5)}. Remove images that are not of "
            "the dataset."
        )
    absent = {
        part: tuple(
            f"{class_names[label]} ({found[label]} of {sizes[label]} images)"
            for label in labels
            if found[label] < sizes[label]
        )
        for part, labels in parts.items()
    }
    return build_parts(root, rows, class_names, parts, absent)


def walk(root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield path, subfolders, and files of each folder below `root`, through links.

    Subfolders that the caller removes from the list are not visited.
    """
    seen: set[tuple[int, int]] = set()
    for folder, children, files in os.walk(root, followlinks=True):
        state = os.stat(folder)
        if (state.st_dev, state.st_ino) in seen:  # A link to a visited folder.
            children.clear()
            continue
        seen.add((state.st_dev, state.st_ino))
        children.sort()
        yield Path(folder), children, files


def image_files(root: Path) -> dict[str, list[str]]:
    """Map relative paths without suffix to their image files, in plain order.

    Suffixes are ignored because resized copies often have other suffixes than the original.
    """
    found: dict[str, list[str]] = {}
    for folder, _, files in walk(root):
        inner = folder.relative_to(root).as_posix()
        prefix = "" if inner == "." else f"{inner}/"
        for file in sorted(files):
            stem, suffix = os.path.splitext(file)
            if suffix.lower() in IMAGE_SUFFIXES and not file.startswith("."):
                found.setdefault(prefix + stem, []).append(prefix + file)
    return found


def single_files(root: Path) -> list[str]:
    """Return the relative paths of the image files below a folder, in natural order.

    Raises:
        DataError: If two files differ only in their suffix, because they would count as two images.
    """
    found = image_files(root)
    for same in found.values():
        if len(same) > 1:
            raise DataError(f"{root}: one image in several files ({', '.join(same)}). Remove all but one.")
    return sorted((file for (file,) in found.values()), key=natural_key)


def _build_part(images: FileImages, mask: np.ndarray, classes: Sequence[int]) -> ImageSet:
    position = np.full(len(images.class_names), -1, dtype=np.int64)
    position[list(classes)] = np.arange(len(classes))
    rows = np.flatnonzero(mask)
    return Subset(images, rows.tolist(), position[images.labels[rows]], tuple(images.class_names[c] for c in classes))


def _is_visible_folder(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")
