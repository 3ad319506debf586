"""Decoding of an image file to upright RGB, and resizing to one short side."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from winnow.errors import DataError
from winnow.files import open_regular

IMAGE_SUFFIXES = frozenset(
    {
        ".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".gif", ".bmp", ".dib",
        ".tif", ".tiff", ".jp2", ".avif", ".tga", ".ppm", ".pgm", ".pbm", ".pnm",
    }
)  # fmt: skip
"""Suffixes of image files, in lower case."""

Resize = int | Literal["original"]
"""Short side of decoded images in pixels, or their original size."""

MAX_ELONGATION = 16
"""Largest ratio of the long to the short side that `resize_short` keeps."""

MAX_ORIGINAL_SIDE = 1024
"""Short side to which larger images are reduced where the original size is requested."""

SMALLEST_LEVEL = 16
"""An image of original size is halved while the result has at least this short side."""

MAX_FILE_BYTES = 2**31
"""Largest image file that is read."""

MISSING = "file not found"

_TRANSPOSE_BY_ORIENTATION = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = (5, 6, 7, 8)
"""EXIF orientations that exchange width and height."""


class UnreadableImageError(DataError):
    """Image file that cannot be decoded; `reason` omits the file name."""

    def __init__(self, path: str | Path, reason: str) -> None:
        self.path, self.reason = path, " ".join(reason.split())
        advice = "Check its name" if self.reason == MISSING else "Replace or remove it"
        skip = "In training, data.unreadable_images=skip skips such images."
        super().__init__(f"{path}: image cannot be read ({self.reason}). {advice}. {skip}")

    def __reduce__(self) -> tuple[type[UnreadableImageError], tuple[str | Path, str]]:
        return type(self), (self.path, self.reason)  # Decoder processes send the error to the main process.


def read_image(path: str | Path) -> Image.Image:
    """Decode an image file to upright 8-bit RGB.

    EXIF rotation is applied. Transparency is composited on white. 16-bit grayscale is scaled to 8 bits. The first
    frame of an animation is used.

    Raises:
        UnreadableImageError: (a DataError) If the file is missing, damaged, not an image, not a regular file, or larger
            than the limits of bytes and pixels.
    """
    try:
        with open_regular(path, max_bytes=MAX_FILE_BYTES) as file:
            image = Image.open(file)
            image.load()
            return upright_rgb(image)
    except FileNotFoundError:
        raise UnreadableImageError(path, MISSING) from None
    except UnidentifiedImageError:
        empty = Path(path).stat().st_size == 0
        raise UnreadableImageError(path, "empty file" if empty else "not a supported image format") from None
    except Image.DecompressionBombError:
        reason = f"more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels, Pillow's limit"
        raise UnreadableImageError(path, reason) from None
    except OSError as error:
        raise UnreadableImageError(path, error.strerror or str(error) or "damaged file") from None
    except Exception as error:
        # Pillow's decoders raise nearly any error on damaged files: SyntaxError, struct.error, IndexError, ...
        raise UnreadableImageError(path, str(error) or type(error).__name__) from None


def upright_rgb(image: Image.Image) -> Image.Image:
    """Convert a Pillow image of any mode to upright 8-bit RGB.

    Raises:
        ValueError: If the pixels are floating-point numbers.
    """
    image.load()  # Pillow rotates some formats (TIFF) while loading and then drops the tag.
    transpose = _TRANSPOSE_BY_ORIENTATION.get(_orientation(image))
    pixels = _to_rgb(image)
    return pixels if transpose is None else pixels.transpose(transpose)


def resize_short(image: Image.Image, short: int) -> Image.Image:
    """Scale an image, antialiased, to a short side of `short`.

    The long side is rounded down.

    An image with a long side above `MAX_ELONGATION` times its short side is cropped to the center first. A line one
    pixel wide would become gigabytes otherwise. Neither the center crop nor the random crop with its default scale
    and ratio reaches outside the kept center.
    """
    return _crop_elongated(image).resize(resized_size(image.size, short)[1], Image.Resampling.BILINEAR)


def resized_size(size: tuple[int, int], short: int) -> tuple[tuple[int, int, int, int], tuple[int, int]]:
    """Return the region of an image that `resize_short` keeps, and the size that it is resized to.

    Args:
        size: Width and height of the image.
        short: Short side of the result.

    Returns:
        Left, top, right, and bottom of the region, and width and height of the result.
    """
    left, top, right, bottom = region = _elongated_region(size)
    width, height = right - left, bottom - top
    return region, (short, height * short // width) if width <= height else (width * short // height, short)


def upright_size(path: str | Path) -> tuple[int, int]:
    """Return width and height of an upright image; only the header of the file is read.

    Raises:
        UnreadableImageError: (a DataError) If the file is missing or is no image.
    """
    try:
        with open_regular(path, max_bytes=MAX_FILE_BYTES) as file:
            image = Image.open(file)
            width, height = image.size
            return (height, width) if _orientation(image) in _SIDEWAYS else (width, height)
    except FileNotFoundError:
        raise UnreadableImageError(path, MISSING) from None
    except Exception as error:  # Pillow raises nearly any error on damaged files
        raise UnreadableImageError(path, str(error) or type(error).__name__) from None


def resize_levels(image: Image.Image, resize: Resize) -> list[Image.Image]:
    """Return an image at one short side, or at its original size and halved again and again.

    A halved copy averages squares of 2 x 2 pixels. A box that is much larger than the crop is cut from such a copy,
    because bilinear interpolation alone would skip pixels. All copies together have a third of the pixels. An image
    above `MAX_ORIGINAL_SIDE` is reduced to it, so the memory of an image is bounded.
    """
    if resize != "original":
        return [resize_short(image, resize)]
    image = _crop_elongated(image)
    levels = [resize_short(image, MAX_ORIGINAL_SIDE) if min(image.size) > MAX_ORIGINAL_SIDE else image]
    while min(levels[-1].size) >= 2 * SMALLEST_LEVEL:
        levels.append(levels[-1].reduce(2))
    return levels


def _crop_elongated(image: Image.Image) -> Image.Image:
    """Crop an image to the center if its long side is above `MAX_ELONGATION` short sides."""
    region = _elongated_region(image.size)
    return image if region == (0, 0, *image.size) else image.crop(region)


def _elongated_region(size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return left, top, right, and bottom of the center that `_crop_elongated` keeps."""
    width, height = size
    reach = MAX_ELONGATION * min(width, height)
    left, top = max(0, (width - reach) // 2), max(0, (height - reach) // 2)
    return left, top, left + min(width, reach), top + min(height, reach)


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation; 1 (upright) if the EXIF data are damaged."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:
        return 1


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise ValueError("floating-point pixels of unknown range; convert the image to 8 bits")
    if image.mode == "I" or image.mode.startswith("I;16"):
        # Pillow's conversion clips at 255 and turns nearly every 16-bit image white.
        gray = np.asarray(image).astype(np.int64).clip(0, 65535)
        return Image.fromarray(((gray + 128) // 257).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        # Pillow converts the premultiplied modes La and RGBa only to LA and RGBA.
        image = image.convert({"La": "LA"}.get(image.mode, "RGBA")).convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")
