"""Made-up pictures in the files of Cifar-100, so that what is studied there can be tried without it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from winnow.data.datasets import DATASETS
from winnow.data.datasets.cifar import CIFAR100_CLASSES, CIFAR100_SUPERCLASSES
from winnow.files import write_atomically

SIDE, PATCH = 32, 8


def make_cifar(folder: Path, *, train: int, test: int, seed: int = 0) -> None:
    """Write train.bin and test.bin with a few images of each class, and note for the sets made of them what is missing.

    A class looks a little like the others of its super-class: a pattern of the super-class and one of its own are
    added, mirrored and moved around at random, and drowned in some noise.

    Args:
        folder: Where they go; files that are there are taken for those of an earlier call.
        train: Training images of each class.
        test: Test images of each class.
        seed: Of all that is random.
    """
    if (folder / "test.bin").is_file():
        return
    rng = np.random.default_rng(seed)
    of_super = {name: rng.normal(size=(PATCH, PATCH, 3)) for name in CIFAR100_SUPERCLASSES}
    looks = {
        name: of_super[one] + rng.normal(scale=0.5, size=(PATCH, PATCH, 3))
        for one, members in CIFAR100_SUPERCLASSES.items()
        for name in members
    }
    above = {name: place for place, members in enumerate(CIFAR100_SUPERCLASSES.values()) for name in members}
    for part, count in (("train", train), ("test", test)):
        rows = [
            np.concatenate([np.array([above[name], label], dtype=np.uint8), _picture(looks[name], rng)])
            for label, name in enumerate(CIFAR100_CLASSES)
            for _ in range(count)
        ]
        content = np.stack(rows)
        write_atomically(folder / f"{part}.bin", content.tofile)
    for name in ("cifar100", "cifar_collage", "cifar_collage_distilled"):
        _, short = DATASETS[name].check(folder)
        DATASETS[name].accept_missing(folder, short)


def _picture(look: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return the bytes of one image: all of red, then green, then blue."""
    large = look.repeat(SIDE // PATCH, 0).repeat(SIDE // PATCH, 1)
    moved = np.roll(large, rng.integers(-4, 5, size=2).tolist(), axis=(0, 1))[:, :: rng.choice([-1, 1])]
    noisy = 128 + 45 * (moved + rng.normal(scale=0.5, size=moved.shape))
    return noisy.clip(0, 255).astype(np.uint8).transpose(2, 0, 1).reshape(-1)
