"""Images to embed or to index: labelled ones as for training, and folders of loose images."""

from __future__ import annotations

from pathlib import Path

from winnow.data.fileset import FileSet
from winnow.data.folder import check_exists, image_entries, images_below
from winnow.data.imageset import ImageSet
from winnow.data.splits import load_images
from winnow.errors import DataError

UNLABELLED = ""
"""The class name of images whose class nobody told."""


def read_collection(path: str | Path) -> ImageSet:
    """Read images that need no labels.

    `emoji` is the test half of the embedded set. A folder with images beside its subfolders is a collection: those
    images are [`UNLABELLED`][winnow.data.UNLABELLED], those in a subfolder, at any depth, have its name for a class.
    Everything else is read as for training: class folders, a CSV file, MNIST's files.

    Raises:
        DataError: when there is nothing to read.
    """
    if str(path) == "emoji":
        from winnow.data.emoji import load_emoji

        test = load_emoji().test
        assert test is not None, "the embedded set has test classes"
        return test
    path = Path(path)
    check_exists(path)
    if not path.is_dir():
        if path.suffix.lower() != ".csv":
            raise DataError(f"{path} is neither a folder of images nor a .csv file that lists some")
        return load_images(path)
    folders, loose = image_entries(path)
    if not loose:
        return load_images(path)
    names = [UNLABELLED] * len(loose)
    for folder in folders:
        found = images_below(path / folder)
        loose += [each.relative_to(path).as_posix() for each in found]
        names += [folder] * len(found)
    return FileSet.of_names(path, loose, names)
