"""CIFAR-10 and CIFAR-100 datasets, and the reader of their versions."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from winnow.data.datasets.base import Dataset, DatasetParts, Source
from winnow.data.datasets.label_files import Row, build_parts, find, single_files
from winnow.data.image_set import ArrayImages, ImageSet, first_few
from winnow.errors import DataError

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

CIFAR100_SUPERCLASSES = {
    "aquatic_mammals": ("beaver", "dolphin", "otter", "seal", "whale"),
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food_containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit_and_vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household_electrical_devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household_furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large_carnivores": ("bear", "leopard", "lion", "tiger", "wolf"),
    "large_man-made_outdoor_things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large_natural_outdoor_scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "large_omnivores_and_herbivores": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    "medium_mammals": ("fox", "porcupine", "possum", "raccoon", "skunk"),
    "non-insect_invertebrates": ("crab", "lobster", "snail", "spider", "worm"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "reptiles": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "small_mammals": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "vehicles_1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    "vehicles_2": ("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
}
"""The 20 superclasses in the order of their labels, each with its 5 classes in alphabetical order."""

CIFAR100_CLASSES = tuple(sorted(name for members in CIFAR100_SUPERCLASSES.values() for name in members))
"""The 100 classes in the order of their labels."""

_PIXELS = 3 * 32 * 32


class CIFAR10(Dataset):
    """CIFAR-10: 60,000 images of 10 classes, 32 x 32 pixels (Krizhevsky, 2009).

    Split by image: 50,000 images train, 10,000 other images of the same classes test.
    Layout: pickles or `.bin` files of the batches, or class folders.
    License: as its owner states.

    Args:
        train: Expected number of training images.
        test: Expected number of test images.

    Attributes:
        checksums: MD5 of the official pickles by file name.
    """

    name = "cifar10"
    title = "CIFAR-10"
    about = "60,000 photos of 32 x 32 pixels in 10 classes; the test has other images of the same classes"
    terms = "as its owner states (Krizhevsky)"
    home = "https://www.cs.toronto.edu/~kriz/cifar.html"
    layout = "data_batch_1 ... data_batch_5 and test_batch, as pickles or .bin; or train/CLASS/* and test/CLASS/*"
    folds_by = "images"
    checksums: ClassVar = {
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    }
    sources = (
        Source(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
        ),
    )

    def __init__(self, *, train: int = 50_000, test: int = 10_000) -> None:
        self.counts = {"train": train, "test": test}
        self.classes = {"train": 10, "test": 10}

    def read(self, root: Path) -> DatasetParts:
        """Read pickles, the binary version, or class folders."""
        files = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
        return read_cifar(root, files, CIFAR10_CLASSES, key="labels", skip=0, checksums=self.checksums)


class CIFAR100(Dataset):
    """CIFAR-100: 60,000 images of 100 classes, 32 x 32 pixels (Krizhevsky, 2009).

    Split by image: 50,000 images train, 10,000 other images of the same classes test.
    Layout: pickles or `.bin` files `train` and `test`, or class folders.
    License: as its owner states.

    Args:
        train: Expected number of training images.
        test: Expected number of test images.

    Attributes:
        checksums: MD5 of the official pickles by file name.
    """

    name = "cifar100"
    title = "CIFAR-100"
    about = "60,000 photos of 32 x 32 pixels in 100 classes; the test has other images of the same classes"
    terms = "as its owner states (Krizhevsky)"
    home = "https://www.cs.toronto.edu/~kriz/cifar.html"
    layout = "train and test, as pickles or .bin; or train/CLASS/* and test/CLASS/*"
    folds_by = "images"
    checksums: ClassVar = {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"}
    sources = (
        Source(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
        ),
    )

    def __init__(self, *, train: int = 50_000, test: int = 10_000) -> None:
        self.counts = {"train": train, "test": test}
        self.classes = {"train": 100, "test": 100}

    def read(self, root: Path) -> DatasetParts:
        """Read pickles, the binary version, or class folders."""
        files = {"train": ["train"], "test": ["test"]}
        return read_cifar(root, files, CIFAR100_CLASSES, key="fine_labels", skip=1, checksums=self.checksums)


def read_cifar(
    root: Path,
    files: Mapping[str, Sequence[str]],
    class_names: tuple[str, ...],
    *,
    key: str,
    skip: int,
    checksums: Mapping[str, str],
) -> DatasetParts:
    """Read the version that a folder contains, and compare its pickles with those of the official archive.

    Args:
        root: Folder of the files, or one above it.
        files: Pickles of each part. The binary version has the same names with `.bin`.
        class_names: Class names in the order of the labels.
        key: Key of the labels in a pickle.
        skip: Number of bytes before the label of an image in the binary version.
        checksums: MD5 of the official pickles by file name. Other files have no known checksums.

    Raises:
        DataError: If no version is found, or a file is missing or damaged.
    """
    for suffix in ("", ".bin"):
        found = find(root, f"{files['test'][0]}{suffix}")
        if found is not None and found.is_file():
            parts: dict[str, ImageSet] = {}
            for part, names in files.items():
                batches = [_read_file(found.with_name(name + suffix), key, skip) for name in names]
                pixels = np.concatenate([images for images, _ in batches])
                labels = np.concatenate([values for _, values in batches])
                if len(labels) and not 0 <= labels.min() <= labels.max() < len(class_names):
                    raise DataError(f"{found.parent}: labels above the {len(class_names)} classes. Get it again.")
                source = f"{found.parent.name}/{part}"
                parts[part] = ArrayImages(pixels, labels, source, class_names=class_names)
            return DatasetParts(parts, notes=() if suffix else (_describe_pickles(found.parent, checksums),))
    return _read_class_folders(root, class_names)


def _describe_pickles(folder: Path, checksums: Mapping[str, str]) -> str:
    """Describe whether the pickles of a folder are those of the official archive."""
    different = [name for name, md5 in checksums.items() if file_md5(folder / name) != md5]
    if different:
        return f"{folder.name}: files differ from the official archive: {first_few(different)}"
    return f"{folder.name}: files equal the official archive: {len(checksums)} of {len(checksums)}"


def file_md5(file: Path) -> str:
    """Return the MD5 of a file."""
    with open(file, "rb") as content:
        return hashlib.file_digest(content, partial(hashlib.md5, usedforsecurity=False)).hexdigest()


class _CIFARUnpickler(pickle.Unpickler):
    """Unpickler that admits only the parts of NumPy arrays, so no code can run."""

    def find_class(self, module: str, name: str) -> Any:
        """Return an admitted name, or raise."""
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it requests {module}.{name}, which images do not need")
        return _ADMITTED[module, name]


def _encode_latin1(text: str, codec: str) -> bytes:
    """Return the bytes that Python 3 writes as text in old pickle protocols."""
    return text.encode("latin1")


_RECONSTRUCT: Callable[..., Any] = np.empty(0).__reduce__()[0]  # type: ignore[assignment]

_ADMITTED: Mapping[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("_codecs", "encode"): _encode_latin1,
}


def read_batch(path: Path) -> dict[str, Any]:
    """Read a pickle of CIFAR: values by key, with the images as an array of bytes.

    Raises:
        DataError: If the file is damaged, or contains anything other than arrays of bytes, numbers, and text.
    """
    try:
        batch = _CIFARUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        if not isinstance(batch, dict):
            raise ValueError("it is no dictionary")
        if any(isinstance(value, np.ndarray) and value.dtype != np.uint8 for value in batch.values()):
            raise ValueError("an array contains values other than bytes")
    except Exception as error:  # A damaged pickle raises nearly any error.
        raise DataError(f"{path}: not a CIFAR file ({error}). Get it again.") from None
    return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in batch.items()}


def _read_file(path: Path, key: str, skip: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if not path.is_file():
        raise DataError(f"{path}: file not found. Get the dataset again.")
    if path.suffix == ".bin":
        content = np.fromfile(path, dtype=np.uint8)
        if len(content) % (skip + 1 + _PIXELS):
            raise DataError(f"{path}: truncated file. Get it again.")
        rows = content.reshape(-1, skip + 1 + _PIXELS)
        pixels, labels = rows[:, skip + 1 :], rows[:, skip].astype(np.int64)
    else:
        batch: dict[str, Any] = read_batch(path)
        try:
            pixels, labels = batch["data"], np.array(batch[key], dtype=np.int64)
            assert pixels.shape == (len(labels), _PIXELS)
        except (KeyError, TypeError, ValueError, AttributeError, AssertionError):
            raise DataError(f"{path}: no images with {key} found. Get the file again.") from None
    # Each row contains all red values, then green, then blue.
    return np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels


def _read_class_folders(root: Path, class_names: tuple[str, ...]) -> DatasetParts:
    """Read train/CLASS/* and test/CLASS/*."""
    train = find(root, f"train/{class_names[0]}")
    if train is None:
        raise DataError(
            f"{root}: neither CIFAR files, as pickles or .bin, nor class folders train/{class_names[0]}, ... found. "
            "Name a folder with one of them."
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
    return build_parts(root, rows, class_names, {"train": every, "test": every}, {})
