"""A small made set for studies of losses and references: single emoji without clutter, many images of a class."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from PIL import Image

from winnow.data.emoji import EmojiCollages, load_emoji
from winnow.data.emoji.collages import CELL
from winnow.files import make_folder

CLASSES = {"train": 40, "val": 20, "test": 40}
IMAGES = 20  # of a class

WORDS = [
    "data.train_classes=1-40", "data.val_classes=41-60", "data.test_classes=61-100", f"image.resize={CELL}",
    f"image.crop={CELL}", "backbone.stride=16", "backbone.train=frozen",
]  # fmt: skip
"""Settings of a run on it, beside its folder."""


def make_single_emoji(folder: Path) -> Path:
    """Write the set as class folders of 64 x 64 pixels, unless it is there; return its folder.

    Images are the foreground cells of the embedded set's collages. There a class has eight, and a pool of CCP would
    hold all of them.
    """
    if folder.is_dir():
        return folder
    make_folder(folder.parent)
    splits = load_emoji(images_per_class=IMAGES, distilled=True)
    parts = {"train": splits.train, "val": splits.val, "test": splits.test}
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        made = Path(place) / folder.name
        first = 0
        for part, count in CLASSES.items():
            images = parts[part]
            assert isinstance(images, EmojiCollages), "that is what the embedded set is made of"
            for index in range(count * IMAGES):
                own = made / f"{first + index // IMAGES:03d}"
                own.mkdir(parents=True, exist_ok=True)
                foreground(images, index).save(own / f"{index % IMAGES:02d}.png")
            first += count
        shutil.move(made, folder)  # at once, so that a set that is there is whole
    return folder


def foreground(images: EmojiCollages, index: int) -> Image.Image:
    """Return the cell of a collage that gives its class."""
    left, top = (edge // CELL * CELL for edge in images.foreground_box(index)[:2])
    return images.read(index).crop((left, top, left + CELL, top + CELL))
