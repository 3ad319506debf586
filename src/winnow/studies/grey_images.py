"""Images of MNIST's kind for the studies in two dimensions: those that are there, or made ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from winnow.data import ArrayImages, read_mnist
from winnow.data.datasets import DATASETS
from winnow.data.datasets.mnist import is_mnist
from winnow.data.emoji import EmojiCollages, emoji
from winnow.errors import DataError
from winnow.studies.base import Task
from winnow.studies.ccp_mnist_report import CLASSES
from winnow.studies.single_emoji import foreground

FOLDER = Path("/usr/share/datasets/fashion-mnist")  # of Debian's package dataset-fashion-mnist
MADE = {"train": 200, "test": 60}  # images of a class
TESTED = 2000


def find_images(task: Task) -> tuple[str, ArrayImages, ArrayImages]:
    """Return the name of the set, its training and its test images: given, found, or in small made.

    Raises:
        DataError: where none are there and the documents' size is asked for.
    """
    usual = [DATASETS[name].default_root for name in ("mnist", "fashion_mnist")]
    folders = [task.data] if task.data is not None else [*usual, FOLDER]
    folder = next((one for one in folders if one is not None and is_mnist(one)), None)
    if folder is None and task.small and task.data is None:
        return "made", *make_images()
    if folder is None:
        raise DataError(f"no folder with the files of MNIST or Fashion-MNIST among {', '.join(map(str, folders))}: "
                        "get one with `winnow datasets get mnist`, or name it with --data")  # fmt: skip
    train, test = read_mnist(folder, ["train"]), read_mnist(folder, ["t10k"])
    tested = TESTED if task.small else len(test)
    return folder.name, train, ArrayImages(test.pixels[:tested], test.labels[:tested], test.source)


def make_images() -> tuple[ArrayImages, ArrayImages]:
    """Return ten emoji in grey, 28 x 28 pixels, to train on and others of the same to test on, in mixed order.

    All images of a class are by one artist, turned, scaled and shifted: about as alike as digits are.
    """
    each = MADE["train"] + MADE["test"]
    some = [one for one in emoji() if one.split == "train"]
    classes, clutter = ([one for one in some if one.role == role] for role in ("foreground", "clutter"))
    artists = max(len(one.artists) for one in classes[:CLASSES])
    drawn = EmojiCollages(classes[:CLASSES], clutter, images_per_class=artists * each, distilled=True)
    order = np.random.default_rng(0).permutation(CLASSES * each)
    labels, numbers = order // each, order % each
    turns = np.array([len(one.artists) for one in classes[:CLASSES]])[labels]  # its artists' drawings take turns
    places = labels * artists * each + turns * numbers
    pixels = np.stack([np.asarray(foreground(drawn, int(index)).convert("L").resize((28, 28))) for index in places])
    is_train = numbers < MADE["train"]
    train, test = (ArrayImages(pixels[rows], labels[rows], "emoji") for rows in (is_train, ~is_train))
    return train, test
