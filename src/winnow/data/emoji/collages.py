"""Collages of emoji drawings: one foreground drawing, which gives the class, among three of clutter."""

from __future__ import annotations

import colorsys
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from winnow.data.emoji.drawings import Drawing, Emoji, data_digest, drawing
from winnow.data.imageset import ImageSet
from winnow.errors import ConfigError

CELL = 64
SIDE = 2 * CELL

# Part of every identity; count it up when the same drawings come to be composed to other pixels.
COMPOSITION = 1

_MIN_SCALE = 0.75
_MAX_TURN = math.radians(20)

Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class _Placed:
    """A drawing in a cell: how it is turned (radians), scaled and shifted (pixels) from the cell's centre."""

    drawing: Drawing
    cell: int
    turn: float
    scale: float
    shift: tuple[float, float]

    @property
    def corner(self) -> tuple[int, int]:
        """The (left, top) of its cell in the image."""
        return self.cell % 2 * CELL, self.cell // 2 * CELL

    def render(self) -> Image.Image:
        """Return the cell's layer, (64, 64) RGBA."""
        cos, sin = math.cos(self.turn) / self.scale, math.sin(self.turn) / self.scale
        x, y = CELL / 2 + self.shift[0], CELL / 2 + self.shift[1]
        centre = self.drawing.tile.width / 2
        # Pillow wants the way back: from a pixel of the cell to the place in the tile.
        way_back = (cos, sin, centre - cos * x - sin * y, -sin, cos, centre + sin * x - cos * y)
        return self.drawing.tile.transform((CELL, CELL), Image.Transform.AFFINE, way_back, Image.Resampling.BILINEAR)


@dataclass(frozen=True)
class _Collage:
    """What one image is composed of."""

    ground: tuple[int, int, int]
    foreground: _Placed
    clutter: tuple[_Placed, ...]


class EmojiCollages(ImageSet):
    """Images of 128x128 pixels in four cells: one holds a drawing of the class's emoji, three hold clutter.

    Images are composed when read. Image `k` of a class is made of the seed, the emoji and `k` alone (and of the
    clutter to choose from); its drawing is by the artist whose turn `k` is. Ground colour, places, sizes, shifts and
    turns are random.

    Args:
        foreground: The emoji that are the classes, in the order of their labels.
        clutter: The emoji that fill the other cells.
        images_per_class: How many images each class has.
        seed: Chooses everything random.
        distilled: Leave the clutter cells empty, all else unchanged: an upper bound for whatever ignores clutter.

    Attributes:
        foreground: As given.
        clutter: As given.
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
            raise ConfigError(f"images_per_class is {images_per_class}; a class needs at least 1 image")
        if seed < 0:
            raise ConfigError(f"seed is {seed}; it must not be negative")
        if len(clutter) < 3:
            raise ConfigError(f"a collage needs at least 3 clutter emoji; there are {len(clutter)}")
        self.foreground = tuple(foreground)
        self.clutter = tuple(clutter)
        self.images_per_class = images_per_class
        self.seed = seed
        self.distilled = distilled
        self.labels = np.repeat(np.arange(len(foreground), dtype=np.int64), images_per_class)
        self.class_names = tuple(one.name for one in foreground)
        # The choice of clutter depends on the whole pool, hence so does the identity of every image.
        self._pool = hashlib.sha256(" ".join(one.codepoint for one in clutter).encode()).hexdigest()[:12]

    def _locate(self, index: int) -> tuple[Emoji, int]:
        """Return an image's emoji and its number among the images of its class."""
        index = range(len(self))[index]
        return self.foreground[index // self.images_per_class], index % self.images_per_class

    def artist(self, index: int) -> str:
        """Return who drew the foreground of an image."""
        one, number = self._locate(index)
        return one.artists[number % len(one.artists)]

    def name(self, index: int) -> str:
        """Return a made-up name: emoji, number in its class, artist of the foreground."""
        one, number = self._locate(index)
        return f"{one.name}/{number}-{self.artist(index)}"

    def identity(self, index: int) -> str:
        """Return a text that changes whenever the image's pixels may have changed."""
        one, number = self._locate(index)
        kind = "distilled" if self.distilled else self._pool
        return f"emoji-{COMPOSITION}-{data_digest()}/{kind}/{self.seed}/{one.codepoint}/{number}"

    def _compose(self, index: int) -> _Collage:
        one, number = self._locate(index)
        rng = np.random.default_rng([self.seed, number, *(int(code, 16) for code in one.codepoint.split("-"))])
        # Soft colours, neither white nor black: white and dark drawings must both stand out against them.
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
        """Return the pixels that hold the foreground drawing: (left, top, right, bottom), the last two excluded."""
        placed = self._compose(index).foreground
        box = placed.render().getchannel("A").getbbox()
        assert box is not None, "a drawing has opaque pixels, and they lie in its cell"
        left, top = placed.corner
        return left + box[0], top + box[1], left + box[2], top + box[3]


def _place(drawn: Drawing, cell: int, jitter: Sequence[float]) -> _Placed:
    """Turn, scale and shift a drawing within its cell by four numbers from -1 to 1."""
    turn = _MAX_TURN * jitter[0]
    cos, sin = math.cos(turn), abs(math.sin(turn))
    # How far the turned drawing reaches from its centre: its box turned, or, where that is less, its radius. The
    # largest size just fills the cell, so that nothing is ever cut off.
    across = min(drawn.radius, drawn.half_width * cos + drawn.half_height * sin)
    down = min(drawn.radius, drawn.half_width * sin + drawn.half_height * cos)
    share = (1 + _MIN_SCALE) / 2 + (1 - _MIN_SCALE) / 2 * jitter[1]
    scale = share * CELL / 2 / max(across, down)
    shift = jitter[2] * (CELL / 2 - scale * across), jitter[3] * (CELL / 2 - scale * down)
    return _Placed(drawn, cell, turn, scale, shift)
