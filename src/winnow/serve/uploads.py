"""Uploaded images: type by content, size checks, and decoding."""

from __future__ import annotations

import io
import warnings
from collections.abc import AsyncIterator

from PIL import Image, UnidentifiedImageError

from winnow.data import upright_rgb
from winnow.serve.middleware import Limits, RequestError

MEDIA_TYPES = {
    "JPEG": "image/jpeg",
    "PNG": "image/png",
    "WEBP": "image/webp",
    "GIF": "image/gif",
    "BMP": "image/bmp",
}
"""Media types of accepted images, by Pillow's format names."""

_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"BM")

_MAX_SCANS = 64
"""Scans of a progressive JPEG, of which 10 are usual. Each is a pass over the whole image, so a small file with
thousands of scans would occupy a core for minutes."""


async def read_body(chunks: AsyncIterator[bytes], declared: str | None, max_bytes: int) -> bytes:
    """Read a request's body, at most to the limit.

    Args:
        chunks: The body.
        declared: The header Content-Length, if any.
        max_bytes: Largest body.

    Raises:
        RequestError: 413 if the body is too large.
    """
    error = RequestError(413, f"upload: larger than {max_bytes:,} bytes. Send a smaller image.")
    if declared is not None and declared.isdecimal() and int(declared) > max_bytes:
        raise error
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > max_bytes:
            raise error
    return bytes(body)


def decode_upload(data: bytes, limits: Limits) -> Image.Image:
    """Decode an upload to an upright RGB image.

    Raises:
        RequestError: 415 if the type is not accepted, 413 if the image has too many pixels, 422 if it is damaged.
    """
    if data.startswith(b"\xff\xd8\xff") and data.count(b"\xff\xda") > _MAX_SCANS:
        raise RequestError(422, f"image: JPEG with more than {_MAX_SCANS} scans. Save it again as a usual JPEG.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data), formats=list(MEDIA_TYPES))
        if image.width * image.height > limits.max_pixels:
            raise Image.DecompressionBombError
        return upright_rgb(image)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise RequestError(413, f"image: more than {limits.max_pixels:,} pixels. Send a smaller one.") from None
    except UnidentifiedImageError:
        if not _has_signature(data):
            raise RequestError(415, _describe_other(data)) from None
        raise RequestError(422, "image: damaged or truncated. Send another one.") from None
    except Exception as error:  # Pillow's decoders raise many types of exceptions on damaged files
        reason = " ".join(str(error).split()) if isinstance(error, ValueError) else "damaged or truncated"
        raise RequestError(422, f"image: cannot be decoded ({reason}). Send another one.") from None


def _has_signature(data: bytes) -> bool:
    """Return whether the first bytes belong to an accepted type.

    Pillow does not identify a damaged header.
    """
    return data.startswith(_SIGNATURES) or (data[:4] == b"RIFF" and data[8:12] == b"WEBP")


def _describe_other(data: bytes) -> str:
    if not data:
        return "upload: the request has no body. Send an image file as the body."
    if data.startswith(b"--"):
        return "upload: the body is a form. Send the image file as the body (curl --data-binary @photo.jpg)."
    return f"upload: not an accepted image type. Send one of {', '.join(MEDIA_TYPES)}."
