from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from winnow.data import ImageSet


class Arrays(ImageSet):
    """Images that are arrays in memory."""

    def __init__(self, arrays: list[np.ndarray], labels: list[int] | None = None) -> None:
        self.arrays = arrays
        self.labels = np.array(labels if labels is not None else [0] * len(arrays), dtype=np.int64)
        self.class_names = tuple(f"c{i}" for i in range(int(self.labels.max()) + 1))

    def name(self, index: int) -> str:
        return f"array {index}"

    def read(self, index: int) -> Image.Image:
        return Image.fromarray(self.arrays[index])

    def cache_key(self, index: int) -> str:
        return self.arrays[index].tobytes().hex()


@pytest.fixture
def arrays() -> type[Arrays]:
    return Arrays


@pytest.fixture
def noise() -> Callable[[int, int, int], np.ndarray]:
    """Return random (height, width, 3) pixels for a seed."""

    def make(height: int, width: int, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)

    return make


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a small PNG below the folder of the test."""

    def make(name: str, color: tuple[int, int, int] = (10, 20, 30), size: tuple[int, int] = (4, 3)) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, color).save(path, format="PNG")
        return path

    return make
