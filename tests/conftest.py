"""Shared by all tests: one thread per worker, and small made-up image folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

torch.set_num_threads(1)

MakeFolder = Callable[..., Path]


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """Make a folder of class folders; each class has a colour, each image its own noise."""

    def make(name: str = "photos", classes: int = 8, images: int = 4, size: int = 40) -> Path:
        root = tmp_path / name
        rng = np.random.default_rng(0)
        for label in range(classes):
            folder = root / f"class_{label:02d}"
            folder.mkdir(parents=True)
            colour = rng.integers(30, 220, 3)
            for index in range(images):
                noise = rng.normal(0, 25, (size, size, 3))
                pixels = np.clip(colour + noise, 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{index}.png")
        return root

    return make


TINY = [
    "backbone=resnet20",
    "backbone.weights=random",
    "image.resize=32",
    "image.crop=32",
    "dim=8",
    "pooling.num_prototypes=4",
    "pooling.memory_size=16",
    "train.classes_per_batch=3",
    "train.samples_per_class=2",
    "train.max_steps=12",
    "train.eval_steps=4",
    "train.lr=1e-3",
]
"""A run of seconds: a small network on 32-pixel images."""
