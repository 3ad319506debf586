"""The drawings shipped in this folder: which emoji there are, and each artist's drawing of them."""

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
    """One emoji of the data set.

    Attributes:
        name: Its English name, unique in the data set.
        codepoint: Its Unicode code points in hexadecimal, joined by "-".
        category: Its Unicode category, such as "Food & Drink".
        role: "foreground" (a class) or "clutter".
        split: "train", "val" or "test".
        tiles: (artist, number of its drawing in the artist's atlas), in the order in which artists take turns.
    """

    name: str
    codepoint: str
    category: str
    role: str
    split: str
    tiles: tuple[tuple[str, int], ...]

    @property
    def artists(self) -> tuple[str, ...]:
        """The artists who drew it."""
        return tuple(artist for artist, _ in self.tiles)


@dataclass(frozen=True)
class Drawing:
    """One artist's drawing of one emoji, centred in a square tile.

    Attributes:
        tile: (64, 64) RGBA.
        half_width: From the tile's centre to the farthest opaque column, in pixels.
        half_height: The same for rows.
        radius: From the tile's centre to the farthest opaque pixel.
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
    """Return every emoji of the data set."""
    found = []
    # An atlas holds its tiles in the order of the emoji that list the artist, so counting gives the numbers.
    next_tile: Counter[str] = Counter()
    for entry in _index()["emoji"]:
        fields = {key: value for key, value in entry.items() if key != "artists"}
        found.append(Emoji(**fields, tiles=tuple((artist, next_tile[artist]) for artist in entry["artists"])))
        next_tile.update(entry["artists"])
    return tuple(found)


@cache
def data_digest() -> str:
    """Return a hash of the shipped files, so that caches of collages know when the drawings changed."""
    digest = hashlib.sha256(_read("index.json"))
    for artist in _index()["artists"]:
        digest.update(_read(f"drawings_{artist}.webp"))
    return digest.hexdigest()[:12]


@cache
def drawings(artist: str) -> tuple[Drawing, ...]:
    """Decode an artist's atlas once and return its drawings by number."""
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
    """Return the drawing by the emoji's artist whose turn it is; turns go round."""
    artist, number = one.tiles[turn % len(one.tiles)]
    return drawings(artist)[number]
