"""Installed emoji drawings: list of emoji, and the drawing of each by each artist."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib import resources
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image


@dataclass(frozen=True)
class Emoji:
    """Emoji of the dataset.

    Attributes:
        name: English name, unique in the dataset.
        codepoint: Unicode code points in hexadecimal, joined by "-".
        category: Unicode category, such as "Food & Drink".
        role: "foreground" (a class) or "clutter".
        split: "train", "val", or "test".
        tiles: (artist, number of the drawing in the atlas of the artist), in the order of rotation.
    """

    name: str
    codepoint: str
    category: str
    role: str
    split: str
    tiles: tuple[tuple[str, int], ...]

    @property
    def artists(self) -> tuple[str, ...]:
        """Artists who drew it."""
        return tuple(artist for artist, _ in self.tiles)


@dataclass(frozen=True)
class Drawing:
    """Drawing of an emoji by one artist, centered in a square tile.

    Attributes:
        tile: (64, 64) RGBA.
        half_width: Distance from the tile center to the farthest opaque column, in pixels.
        half_height: Distance from the tile center to the farthest opaque row, in pixels.
        radius: Distance from the tile center to the farthest opaque pixel, in pixels.
    """

    tile: Image.Image
    half_width: float
    half_height: float
    radius: float


def _read(name: str) -> bytes:
    return resources.files(__package__).joinpath(name).read_bytes()


@cache
def _index() -> dict[str, Any]:
    index: dict[str, Any] = json.loads(_read("index.json"))
    return index


@cache
def emoji() -> tuple[Emoji, ...]:
    """Return all emoji of the dataset."""
    found = []
    # An atlas contains its tiles in the order of the emoji that list the artist, so counting gives the numbers.
    next_tile: Counter[str] = Counter()
    for entry in _index()["emoji"]:
        fields = {key: value for key, value in entry.items() if key != "artists"}
        found.append(Emoji(**fields, tiles=tuple((artist, next_tile[artist]) for artist in entry["artists"])))
        next_tile.update(entry["artists"])
    return tuple(found)


@cache
def data_digest() -> str:
    """Return a hash of the installed files. Cache keys of collages contain it."""
    digest = hashlib.sha256(_read("index.json"))
    for artist in _index()["artists"]:
        digest.update(_read(f"drawings_{artist}.webp"))
    return digest.hexdigest()[:12]


@cache
def drawings(artist: str) -> tuple[Drawing, ...]:
    """Decode the atlas of an artist once, and return its drawings by number."""
    index = _index()
    side, columns = index["tile"], index["columns"]
    count = sum(artist in one.artists for one in emoji())
    with Image.open(BytesIO(_read(f"drawings_{artist}.webp"))) as file:
        atlas = file.convert("RGBA")
    opaque = np.asarray(atlas.getchannel("A")) > 24
    offsets = np.abs(np.arange(side) - (side - 1) / 2) + 0.5
    squares = offsets[:, None] ** 2 + offsets**2
    found = []
    for number in range(count):
        left, top = number % columns * side, number // columns * side
        mask = opaque[top : top + side, left : left + side]
        found.append(
            Drawing(
                tile=atlas.crop((left, top, left + side, top + side)),
                half_width=float(offsets[mask.any(axis=0)].max()),
                half_height=float(offsets[mask.any(axis=1)].max()),
                radius=float(np.sqrt(squares[mask].max())),
            )
        )
    return tuple(found)


def drawing(one: Emoji, turn: int) -> Drawing:
    """Return drawing number `turn` of an emoji, with its artists in rotation."""
    artist, number = one.tiles[turn % len(one.tiles)]
    return drawings(artist)[number]
