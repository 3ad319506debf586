"""One image file to upright RGB pixels, whatever it is stored as."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from winnow.errors import DataError

IMAGE_SUFFIXES = frozenset(
    {
        ".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".gif", ".bmp", ".dib",
        ".tif", ".tiff", ".jp2", ".avif", ".tga", ".ppm", ".pgm", ".pbm", ".pnm",
    }
)  # fmt: skip
"""Suffixes, in lower case, of the files that are taken for images."""

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

MISSING = "there is no such file"


class UnreadableImageError(DataError):
    """An image file that cannot be decoded; `reason` says why, without the file's name."""

    def __init__(self, path: str | Path, reason: str) -> None:
        self.path, self.reason = path, " ".join(reason.split())
        advice = "check its name" if self.reason == MISSING else "replace it or leave it out"
        super().__init__(
            f"{path} cannot be read ({self.reason}): {advice} (training can skip such files: data.on_error=skip)"
        )

    def __reduce__(self) -> tuple[type[UnreadableImageError], tuple[str | Path, str]]:
        return type(self), (self.path, self.reason)  # made again from these where another process raised it


def read_image(path: str | Path) -> Image.Image:
    """Decode an image file to upright 8-bit RGB.

    EXIF rotation is applied, transparency is laid on white, 16-bit grey is scaled to 8 bits, and of an animation the
    first frame is taken.

    Raises:
        UnreadableImageError: (a DataError) when the file is missing, broken, no image, or larger than Pillow's limit.
    """
    try:
        with open(path, "rb") as file:
            image = Image.open(file)
            image.load()
            return upright_rgb(image)
    except FileNotFoundError:
        raise UnreadableImageError(path, MISSING) from None
    except UnidentifiedImageError:
        empty = Path(path).stat().st_size == 0
        raise UnreadableImageError(path, "it is empty" if empty else "it is not an image Pillow knows") from None
    except Image.DecompressionBombError:
        reason = f"it has more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels, Pillow's limit"
        raise UnreadableImageError(path, reason) from None
    except OSError as error:
        raise UnreadableImageError(path, error.strerror or str(error) or "it is broken") from None
    except Exception as error:
        # On damaged files Pillow's decoders raise nearly anything: SyntaxError, struct.error, IndexError, ...
        raise UnreadableImageError(path, str(error) or type(error).__name__) from None


def upright_rgb(image: Image.Image) -> Image.Image:
    """Turn a Pillow image of any kind into upright 8-bit RGB, as `read_image` does.

    Raises:
        ValueError: for pixels that are floating-point numbers.
    """
    image.load()  # first, because Pillow turns some formats (TIFF) itself then and drops the tag
    turn = _UPRIGHT.get(_orientation(image))
    pixels = _to_rgb(image)
    return pixels if turn is None else pixels.transpose(turn)


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation; damaged EXIF counts as upright, since the pixels themselves are sound."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:
        return 1


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of unknown range; convert it to 8 bits")
    if image.mode == "I" or image.mode.startswith("I;16"):
        # Pillow's own conversion clips at 255, which turns nearly every 16-bit image white.
        grey = np.asarray(image).astype(np.int64).clip(0, 65535)
        return Image.fromarray(((grey + 128) // 257).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        # La and RGBa hold premultiplied colours, which Pillow converts only to their own plain kinds.
        image = image.convert({"La": "LA"}.get(image.mode, "RGBA")).convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")
