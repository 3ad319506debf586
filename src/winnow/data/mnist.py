"""MNIST and sets in its format: Fashion-MNIST, K-MNIST, ..."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from winnow.data.imageset import ImageSet
from winnow.errors import DataError

Part = Literal["train", "t10k"]


class MnistSet(ImageSet):
    """Small grey images, all in memory.

    Args:
        pixels: (N, h, w) uint8.
        labels: (N,), the digits; they are the names of the classes.
        source: What the images' names begin with.
    """

    in_memory = True

    def __init__(self, pixels: NDArray[np.uint8], labels: NDArray[np.int64], source: str) -> None:
        self.pixels, self.labels, self.source = pixels, labels, source
        self.class_names = tuple(str(digit) for digit in range(int(labels.max()) + 1 if len(labels) else 0))

    def name(self, index: int) -> str:
        """Return the source and the position."""
        return f"{self.source}[{index}]"

    def read(self, index: int) -> Image.Image:
        """Return one image as RGB."""
        return Image.fromarray(self.pixels[index]).convert("RGB")

    def identity(self, index: int) -> str:
        """Return a checksum of the pixels."""
        return f"{self.name(index)}:{zlib.crc32(self.pixels[index].tobytes())}"


def read_mnist(folder: str | Path, parts: Sequence[Part] = ("train", "t10k")) -> MnistSet:
    """Read idx files, packed by gzip or not, from a folder that holds them under their usual names.

    Args:
        folder: With `train-images-idx3-ubyte.gz` and so on.
        parts: The set's own training images, its test images, or one after the other.

    Raises:
        DataError: for a missing or damaged file.
    """
    folder = Path(folder)
    pixels = np.concatenate([_read(folder, f"{part}-images-idx3-ubyte", 3) for part in parts])
    labels = np.concatenate([_read(folder, f"{part}-labels-idx1-ubyte", 1) for part in parts])
    if len(pixels) != len(labels):
        raise DataError(f"{folder} holds {len(pixels)} images but {len(labels)} labels; get its files anew")
    return MnistSet(pixels, labels.astype(np.int64), str(folder))


def is_mnist(folder: Path) -> bool:
    """Whether a folder holds files in the format of MNIST."""
    return any((folder / f"train-images-idx3-ubyte{end}").is_file() for end in ("", ".gz"))


def _read(folder: Path, name: str, dimensions: int) -> NDArray[Any]:
    """Read one idx file: two zeros, the type (8: uint8), the number of dimensions, each as a big-endian int32, data."""
    path = next((folder / f"{name}{end}" for end in (".gz", "") if (folder / f"{name}{end}").is_file()), None)
    if path is None:
        raise DataError(f"{folder} has no {name}(.gz): name a folder with the four files of MNIST or Fashion-MNIST")
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    head = 4 + 4 * dimensions
    sizes = struct.unpack(f">{dimensions}i", content[4:head]) if len(content) >= head else ()
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) != head + math.prod(sizes):
        raise DataError(f"{path} is no idx file of bytes in {dimensions} dimensions, or it is cut off; get it anew")
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(sizes)
