"""Small images of one size, all in memory."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from winnow.data.imageset import ImageSet, Labels


class PixelSet(ImageSet):
    """Colour images that are arrays.

    Args:
        pixels: (N, h, w, 3) uint8.
        labels: (N,).
        class_names: One per class.
        source: What the images' names begin with.
    """

    in_memory = True

    def __init__(self, pixels: NDArray[np.uint8], labels: Labels, class_names: tuple[str, ...], source: str) -> None:
        self.pixels, self.labels, self.class_names, self.source = pixels, labels, class_names, source

    def name(self, index: int) -> str:
        """Return the source and the position."""
        return f"{self.source}[{index}]"

    def read(self, index: int) -> Image.Image:
        """Return one image."""
        return Image.fromarray(self.pixels[index])

    def identity(self, index: int) -> str:
        """Return a checksum of the pixels; where their folder is does not matter."""
        return f"{index}:{zlib.crc32(self.pixels[index].tobytes())}"
