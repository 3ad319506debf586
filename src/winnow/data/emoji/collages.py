"""Collages of a foreground drawing, which gives the class, and three of clutter."""

from __future__ import annotations

import colorsys
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from winnow.data.emoji.drawings import Drawing, Emoji, data_digest, drawing
from winnow.data.image_set import ImageSet
from winnow.errors import ConfigError

CELL = 64
SIDE = 2 * CELL

COMPOSITION = 1
"""Part of every cache key.

Increase it when the same drawings are composed to different pixels.
"""

_MIN_SCALE = 0.75
_MAX_ANGLE = math.radians(20)

Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class _Placed:
    """Drawing in a cell with angle (radians), scale, and shift (pixels)."""

    drawing: Drawing
    cell: int
    angle: float
    scale: float
    shift: tuple[float, float]

    @property
    def corner(self) -> tuple[int, int]:
        """Left and top of its cell in the image."""
        return self.cell % 2 * CELL, self.cell // 2 * CELL

    def render(self) -> Image.Image:
        """Return the layer of the cell, (64, 64) RGBA."""
        cos, sin = math.cos(self.angle) / self.scale, math.sin(self.angle) / self.scale
        x, y = CELL / 2 + self.shift[0], CELL / 2 + self.shift[1]
        center = self.drawing.tile.width / 2
        # Pillow needs the inverse map, from a pixel of the cell to a position in the tile.
        inverse = (cos, sin, center - cos * x - sin * y, -sin, cos, center + sin * x - cos * y)
        return self.drawing.tile.transform((CELL, CELL), Image.Transform.AFFINE, inverse, Image.Resampling.BILINEAR)


@dataclass(frozen=True)
class _Collage:
    """Parts of one image."""

    ground: tuple[int, int, int]
    foreground: _Placed
    clutter: tuple[_Placed, ...]


class EmojiCollages(ImageSet):
    """Collages of 128x128 pixels: one drawing of the class's emoji, three of clutter.

    Images are composed when read. Image `k` of a class depends only on the seed, the emoji, `k`, and the clutter to
    choose from. Artists draw the foreground in rotation over `k`. Background color, positions, sizes, shifts, and
    rotations are random.

    Args:
        foreground: Emoji that are the classes, in the order of their labels.
        clutter: Emoji that fill the other cells.
        images_per_class: Number of images of each class.
        seed: Seed of all random choices.
        distilled: Whether the clutter cells stay empty. Gives an upper bound for methods that ignore clutter.

    Raises:
        ConfigError: If an argument is too small.
    """

    def __init__(
        self,
        foreground: Sequence[Emoji],
        clutter: Sequence[Emoji],
        *,
        images_per_class: int = 8,
        seed: int = 0,
        distilled: bool = False,
    ) -> None:
        if images_per_class < 1:
            raise ConfigError(f"images_per_class={images_per_class}: expected at least 1. Increase it.")
        if seed < 0:
            raise ConfigError(f"seed={seed}: expected at least 0. Increase it.")
        if len(clutter) < 3:
            raise ConfigError(f"clutter: expected at least 3 emoji, got {len(clutter)}. Add emoji.")
        self.foreground = tuple(foreground)
        self.clutter = tuple(clutter)
        self.images_per_class = images_per_class
        self.seed = seed
        self.distilled = distilled
        self.labels = np.repeat(np.arange(len(foreground), dtype=np.int64), images_per_class)
        self.class_names = tuple(one.name for one in foreground)
        # The choice of clutter depends on the whole pool, and so does the cache key of every image.
        self._pool = hashlib.sha256(" ".join(one.codepoint for one in clutter).encode()).hexdigest()[:12]

    def _locate(self, index: int) -> tuple[Emoji, int]:
        """Return the emoji of an image, and its number among the images of its class."""
        index = range(len(self))[index]
        return self.foreground[index // self.images_per_class], index % self.images_per_class

    def artist(self, index: int) -> str:
        """Return the artist of the foreground of an image."""
        one, number = self._locate(index)
        return one.artists[number % len(one.artists)]

    def name(self, index: int) -> str:
        """Return a generated name: emoji, number in its class, artist of the foreground."""
        one, number = self._locate(index)
        return f"{one.name}/{number}-{self.artist(index)}"

    def cache_key(self, index: int) -> str:
        """Return a text that changes whenever the pixels of the image may have changed."""
        one, number = self._locate(index)
        kind = "distilled" if self.distilled else self._pool
        return f"emoji-{COMPOSITION}-{data_digest()}/{kind}/{self.seed}/{one.codepoint}/{number}"

    def _compose(self, index: int) -> _Collage:
        one, number = self._locate(index)
        rng = np.random.default_rng([self.seed, number, *(int(code, 16) for code in one.codepoint.split("-"))])
        # Soft colors, neither white nor black, so both white and dark drawings contrast with them.
        hue, saturation, value = rng.uniform((0, 0.18, 0.62), (1, 0.45, 0.92))
        red, green, blue = (round(255 * part) for part in colorsys.hsv_to_rgb(hue, saturation, value))
        cells = rng.permutation(4).tolist()
        chosen = rng.choice(len(self.clutter), size=3, replace=False).tolist()
        turns = rng.integers(1 << 16, size=3).tolist()
        drawn = [drawing(one, number), *(drawing(self.clutter[c], t) for c, t in zip(chosen, turns, strict=True))]
        jitter = rng.uniform(-1, 1, size=(4, 4)).tolist()
        placed = [_place(*each) for each in zip(drawn, cells, jitter, strict=True)]
        return _Collage((red, green, blue), placed[0], tuple(placed[1:]))

    def read(self, index: int) -> Image.Image:
        """Compose one image, (128, 128) RGB."""
        collage = self._compose(index)
        image = Image.new("RGB", (SIDE, SIDE), collage.ground)
        for placed in (collage.foreground, *(() if self.distilled else collage.clutter)):
            layer = placed.render()
            image.paste(layer, placed.corner, layer)
        return image

    def foreground_box(self, index: int) -> Box:
        """Return left, top, right, and bottom (both excluded) of the foreground drawing."""
        placed = self._compose(index).foreground
        box = placed.render().getchannel("A").getbbox()
        assert box is not None, "a drawing has opaque pixels in its cell"
        left, top = placed.corner
        return left + box[0], top + box[1], left + box[2], top + box[3]


def _place(drawn: Drawing, cell: int, jitter: Sequence[float]) -> _Placed:
    """Rotate, scale, and shift a drawing within its cell by four numbers from -1 to 1."""
    angle = _MAX_ANGLE * jitter[0]
    cos, sin = math.cos(angle), abs(math.sin(angle))
    # Extent of the rotated drawing from its center: its rotated box or, if smaller, its radius. At the largest scale
    # the drawing just fills the cell, so nothing is cut off.
    across = min(drawn.radius, drawn.half_width * cos + drawn.half_height * sin)
    down = min(drawn.radius, drawn.half_width * sin + drawn.half_height * cos)
    fraction = (1 + _MIN_SCALE) / 2 + (1 - _MIN_SCALE) / 2 * jitter[1]
    scale = fraction * CELL / 2 / max(across, down)
    shift = jitter[2] * (CELL / 2 - scale * across), jitter[3] * (CELL / 2 - scale * down)
    return _Placed(drawn, cell, angle, scale, shift)
