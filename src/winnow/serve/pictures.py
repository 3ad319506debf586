"""The picture of an indexed image: its file where that is still the same, and else its thumbnail."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

from PIL import Image

from winnow.data import upright_rgb
from winnow.index import Entry
from winnow.serve.limits import Limits


def picture(entry: Entry, limits: Limits) -> Image.Image:
    """Return an image of the index, upright RGB, as large as it can be had.

    The path is the index's own, never one that a request names, and the file counts only if its hash is the entry's.
    """
    original = _unchanged(entry, limits)
    if original is not None:
        try:
            image = Image.open(io.BytesIO(original))
            if image.width * image.height <= limits.pixels:
                return upright_rgb(image)
        except Exception:  # it was read once; what a newer or older Pillow makes of it, the thumbnail does not need
            pass
    return upright_rgb(Image.open(io.BytesIO(entry.thumbnail), formats=["JPEG"]))


def _unchanged(entry: Entry, limits: Limits) -> bytes | None:
    try:
        file = Path(entry.path)
        if not file.is_file() or file.stat().st_size > limits.upload_bytes:
            return None
        content = file.read_bytes()
    except (OSError, ValueError):
        return None
    return content if hashlib.sha256(content).hexdigest() == entry.hash else None
