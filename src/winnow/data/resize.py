"""Images to one short side."""

from __future__ import annotations

from PIL import Image

MAX_ELONGATION = 16


def resize_short(image: Image.Image, short: int) -> Image.Image:
    """Scale an image, antialiased, so that its short side is `short`; the long side is rounded down.

    Of an image more than `MAX_ELONGATION` times as long as wide only the middle is kept: a line one pixel wide would
    otherwise become gigabytes, and neither the centre crop nor (with its usual areas and aspects) the random crop
    reaches farther out.
    """
    width, height = image.size
    reach = MAX_ELONGATION * min(width, height)
    if max(width, height) > reach:
        left, top = max(0, (width - reach) // 2), max(0, (height - reach) // 2)
        image = image.crop((left, top, left + min(width, reach), top + min(height, reach)))
        width, height = image.size
    if width <= height:
        return image.resize((short, height * short // width), Image.Resampling.BILINEAR)
    return image.resize((width * short // height, short), Image.Resampling.BILINEAR)
