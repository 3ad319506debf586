"""Synthetic datasets of the quick studies: single emoji, images in the files of CIFAR-100, and gray images."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from winnow.data import ArrayImages, read_mnist
from winnow.data.datasets import DATASETS
from winnow.data.datasets.cifar import CIFAR100_CLASSES, CIFAR100_SUPERCLASSES
from winnow.data.datasets.mnist import is_mnist
from winnow.data.emoji import EmojiCollages, emoji, load_emoji
from winnow.data.emoji.collages import CELL
from winnow.errors import DataError
from winnow.files import make_folder, write_atomically

EMOJI_CLASSES = {"train": 40, "val": 20, "test": 40}
EMOJI_IMAGES = 20  # per class

SINGLE_EMOJI = [
    "data.train_classes=1-40", "data.val_classes=41-60", "data.test_classes=61-100", f"image.resize={CELL}",
    f"image.crop={CELL}", "backbone.stride=16", "backbone.train=frozen",
]  # fmt: skip
"""Settings of a run on single emoji, except for their folder."""

CIFAR_SIDE, CIFAR_PATCH = 32, 8

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # of Debian's package dataset-fashion-mnist
GRAY_CLASSES = 10
GRAY_IMAGES = {"train": 200, "test": 60}  # per class
QUICK_TEST_IMAGES = 2000


def write_single_emoji(folder: Path) -> Path:
    """Write emoji without clutter as class folders of 64 x 64 pixels, unless the folder exists; return the folder.

    Images are the foreground cells of the bundled emoji collages. A class has 20 instead of the collages' 8, because a
    CCP pool would hold all 8.
    """
    if folder.is_dir():
        return folder
    make_folder(folder.parent)
    splits = load_emoji(images_per_class=EMOJI_IMAGES, distilled=True)
    images_of = {"train": splits.train, "val": splits.val, "test": splits.test}
    with tempfile.TemporaryDirectory(dir=folder.parent) as parent:
        target = Path(parent) / folder.name
        first = 0
        for split, count in EMOJI_CLASSES.items():
            images = images_of[split]
            assert isinstance(images, EmojiCollages), "the emoji dataset consists of collages"
            for index in range(count * EMOJI_IMAGES):
                own = target / f"{first + index // EMOJI_IMAGES:03d}"
                own.mkdir(parents=True, exist_ok=True)
                crop_foreground(images, index).save(own / f"{index % EMOJI_IMAGES:02d}.png")
            first += count
        shutil.move(target, folder)  # in one step, so a folder that exists is complete
    return folder


def crop_foreground(images: EmojiCollages, index: int) -> Image.Image:
    """Return the cell of a collage that determines its class."""
    left, top = (edge // CELL * CELL for edge in images.foreground_box(index)[:2])
    return images.read(index).crop((left, top, left + CELL, top + CELL))


def write_cifar(folder: Path, *, train: int, test: int, seed: int = 0) -> None:
    """Write train.bin and test.bin of CIFAR-100 with synthetic images, and accept that other images are missing.

    Classes of a superclass resemble each other: a pattern of the superclass and one of the class are added, mirrored
    and shifted at random, and covered with noise.

    Args:
        folder: Target folder; existing files are kept.
        train: Training images per class.
        test: Test images per class.
        seed: Seed of patterns, shifts, and noise.
    """
    if (folder / "test.bin").is_file():
        return
    rng = np.random.default_rng(seed)
    patterns = {name: rng.normal(size=(CIFAR_PATCH, CIFAR_PATCH, 3)) for name in CIFAR100_SUPERCLASSES}
    looks = {
        name: patterns[superclass] + rng.normal(scale=0.5, size=(CIFAR_PATCH, CIFAR_PATCH, 3))
        for superclass, members in CIFAR100_SUPERCLASSES.items()
        for name in members
    }
    coarse = {name: number for number, members in enumerate(CIFAR100_SUPERCLASSES.values()) for name in members}
    for split, count in (("train", train), ("test", test)):
        records = [
            np.concatenate([np.array([coarse[name], label], dtype=np.uint8), _cifar_pixels(looks[name], rng)])
            for label, name in enumerate(CIFAR100_CLASSES)
            for _ in range(count)
        ]
        write_atomically(folder / f"{split}.bin", np.stack(records).tofile)
    for name in ("cifar100", "cifar_collage", "cifar_collage_distilled"):
        _, missing = DATASETS[name].check(folder)
        DATASETS[name].accept_missing(folder, missing)


def _cifar_pixels(look: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return the bytes of one image: all of red, then green, then blue."""
    large = look.repeat(CIFAR_SIDE // CIFAR_PATCH, 0).repeat(CIFAR_SIDE // CIFAR_PATCH, 1)
    moved = np.roll(large, rng.integers(-4, 5, size=2).tolist(), axis=(0, 1))[:, :: rng.choice([-1, 1])]
    noisy = 128 + 45 * (moved + rng.normal(scale=0.5, size=moved.shape))
    return noisy.clip(0, 255).astype(np.uint8).transpose(2, 0, 1).reshape(-1)


class GrayImages(NamedTuple):
    """Gray images of 28 x 28 pixels in ten classes, and the name of their dataset."""

    name: str
    train: ArrayImages
    test: ArrayImages


def load_gray_images(data: Path | None, *, quick: bool) -> GrayImages:
    """Return MNIST or Fashion-MNIST; synthetic images (named `made`) at the quick size if neither exists.

    Args:
        data: Folder with the files of MNIST or Fashion-MNIST; None for their default locations.
        quick: Whether to return at most 2,000 test images.

    Raises:
        DataError: If no folder contains the files and synthetic images are not an option.
    """
    usual = [DATASETS[name].default_root for name in ("mnist", "fashion_mnist")]
    folders = [data] if data is not None else [*usual, FASHION_MNIST]
    folder = next((one for one in folders if one is not None and is_mnist(one)), None)
    if folder is None and quick and data is None:
        return make_gray_images()
    if folder is None:
        raise DataError(f"{', '.join(map(str, folders))}: no files of MNIST or Fashion-MNIST. Download MNIST with "
                        "`winnow datasets get mnist`, or pass a folder with --data.")  # fmt: skip
    train, test = read_mnist(folder, ["train"]), read_mnist(folder, ["t10k"])
    count = QUICK_TEST_IMAGES if quick else len(test)
    return GrayImages(folder.name, train, ArrayImages(test.pixels[:count], test.labels[:count], test.source))


def make_gray_images() -> GrayImages:
    """Return ten emoji in gray, 28 x 28 pixels, in random order, with different images for training and for testing.

    Images of a class are drawings rotated, scaled, and shifted: they vary about as much as digits do.
    """
    each = sum(GRAY_IMAGES.values())
    some = [one for one in emoji() if one.split == "train"]
    classes, clutter = ([one for one in some if one.role == role] for role in ("foreground", "clutter"))
    artists = max(len(one.artists) for one in classes[:GRAY_CLASSES])
    drawn = EmojiCollages(classes[:GRAY_CLASSES], clutter, images_per_class=artists * each, distilled=True)
    order = np.random.default_rng(0).permutation(GRAY_CLASSES * each)
    labels, numbers = order // each, order % each
    step = np.array([len(one.artists) for one in classes[:GRAY_CLASSES]])[labels]  # drawings of artists alternate
    indices = labels * artists * each + step * numbers
    pixels = np.stack([np.asarray(crop_foreground(drawn, int(i)).convert("L").resize((28, 28))) for i in indices])
    is_train = numbers < GRAY_IMAGES["train"]
    train, test = (ArrayImages(pixels[rows], labels[rows], "emoji") for rows in (is_train, ~is_train))
    return GrayImages("made", train, test)
