"""An upload to an image: what it is shows in its bytes, and nothing large is decoded."""

from __future__ import annotations

import io
import warnings
from collections.abc import AsyncIterator

from PIL import Image

from winnow.data import upright_rgb
from winnow.serve.limits import Limits, Refusal

MEDIA_TYPES = {
    "JPEG": "image/jpeg",
    "PNG": "image/png",
    "WEBP": "image/webp",
    "GIF": "image/gif",
    "BMP": "image/bmp",
}
"""What is taken, by Pillow's names."""

_MOST_SCANS = 64
"""Scans of a progressive JPEG; usual are 10. Each passes over the whole image, so a small file of thousands of them
would keep a core busy for minutes."""


async def read_body(parts: AsyncIterator[bytes], declared: str | None, most: int) -> bytes:
    """Collect a request's body, and stop as soon as it is too large.

    Raises:
        Refusal: 413.
    """
    refusal = Refusal(413, f"the upload is larger than {most:,} bytes: send a smaller image")
    if declared is not None and declared.isdecimal() and int(declared) > most:
        raise refusal
    body = bytearray()
    async for part in parts:
        body += part
        if len(body) > most:
            raise refusal
    return bytes(body)


def decode_upload(data: bytes, limits: Limits) -> Image.Image:
    """Decode an upload to upright RGB.

    Raises:
        Refusal: 415 where it is none of the types taken, 413 where it has too many pixels, 422 where it is broken.
    """
    name = sniff(data)
    if name is None:
        raise Refusal(415, _not_taken(data))
    too_large = Refusal(413, f"the image has more than {limits.pixels:,} pixels: send a smaller one")
    if name == "JPEG" and data.count(b"\xff\xda") > _MOST_SCANS:
        raise Refusal(422, f"the JPEG has more than {_MOST_SCANS} scans: save it anew")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data), formats=[name])
        if image.width * image.height > limits.pixels:
            raise too_large
        return upright_rgb(image)
    except Refusal:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise too_large from None
    except Exception as error:  # on damaged files Pillow's decoders raise nearly anything
        reason = " ".join(str(error).split()) if isinstance(error, ValueError) else "it is damaged or cut off"
        raise Refusal(422, f"the image cannot be decoded ({reason}): send another") from None


def sniff(data: bytes) -> str | None:
    """Return Pillow's name of an image's type by its first bytes; None where it is none of those taken."""
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    if data.startswith(b"BM"):
        return "BMP"
    return None


def _not_taken(data: bytes) -> str:
    if not data:
        return "the request has no body: send an image file as it is"
    if data.startswith(b"--"):
        return "the body is a form: send the image file itself as the body (curl --data-binary @photo.jpg)"
    return f"the file is none of the image types taken: {', '.join(MEDIA_TYPES)}"
