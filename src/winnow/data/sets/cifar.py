"""The files of Cifar-10 and Cifar-100: pickles, the binary version, or class folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.data.imageset import ImageSet
from winnow.data.sets.base import Contents
from winnow.data.sets.images_below import single_files
from winnow.data.sets.listed import Row, find, made_of
from winnow.data.sets.pixels import PixelSet
from winnow.data.sets.unpickle import read_batch
from winnow.errors import DataError

_PIXELS = 3 * 32 * 32


def read_cifar(
    root: Path,
    files: Mapping[str, Sequence[str]],
    class_names: tuple[str, ...],
    *,
    key: str,
    skip: int,
) -> Contents:
    """Read whichever version a folder holds.

    Args:
        root: The folder, or one above it.
        files: The pickles of each part; the binary version has the same names with `.bin`.
        class_names: In the order of the labels.
        key: Of the labels in a pickle.
        skip: Bytes before the label of an image in the binary version.
    """
    for suffix in ("", ".bin"):
        found = find(root, f"{files['test'][0]}{suffix}")
        if found is not None and found.is_file():
            parts: dict[str, ImageSet] = {}
            for part, names in files.items():
                read = [_read(found.with_name(name + suffix), key, skip) for name in names]
                pixels = np.concatenate([images for images, _ in read])
                labels = np.concatenate([those for _, those in read])
                if len(labels) and not 0 <= labels.min() <= labels.max() < len(class_names):
                    raise DataError(f"{found.parent} has labels beyond its {len(class_names)} classes; get it anew")
                parts[part] = PixelSet(pixels, labels, class_names, f"{found.parent.name}/{part}")
            return Contents(parts)
    return _class_folders(root, class_names)


def _read(path: Path, key: str, skip: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if not path.is_file():
        raise DataError(f"{path} is missing; get the set anew")
    if path.suffix == ".bin":
        content = np.fromfile(path, dtype=np.uint8)
        if len(content) % (skip + 1 + _PIXELS):
            raise DataError(f"{path} is cut off; get it anew")
        rows = content.reshape(-1, skip + 1 + _PIXELS)
        pixels, labels = rows[:, skip + 1 :], rows[:, skip].astype(np.int64)
    else:
        batch: dict[str, Any] = read_batch(path)
        try:
            pixels, labels = batch["data"], np.array(batch[key], dtype=np.int64)
            assert pixels.shape == (len(labels), _PIXELS)
        except (KeyError, TypeError, ValueError, AttributeError, AssertionError):
            raise DataError(f"{path} does not hold images and {key}; get it anew") from None
    # All of red, then green, then blue, in rows.
    return np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels


def _class_folders(root: Path, class_names: tuple[str, ...]) -> Contents:
    """Read train/CLASS/* and test/CLASS/*."""
    train = find(root, f"train/{class_names[0]}")
    if train is None:
        raise DataError(
            f"{root} holds neither Cifar's files, as pickles or binary, nor class folders train/{class_names[0]}, ..."
        )
    at = train.parents[1]
    position = {name: label for label, name in enumerate(class_names)}
    inner = at.relative_to(root)
    rows = []
    for path in sorted(single_files(at)):
        part, _, rest = path.partition("/")
        label = position.get(rest.partition("/")[0])
        if part in ("train", "test") and label is not None:
            rows.append(Row(part, (inner / path).as_posix(), label))
    every = range(len(class_names))
    return made_of(root, rows, class_names, {"train": every, "test": every}, {})
