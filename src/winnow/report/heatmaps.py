"""Heat maps of pooling weights over images, on one scale: weight / mean weight."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageEnhance

from winnow.errors import DataError
from winnow.report.style import new_figure, save, styled

Weights = npt.NDArray[np.floating[Any]]

FULL_SCALE = 4.0
"""Weight / mean weight at and above which the color is the brightest, where images are compared."""
SCALE_LABEL = "weight / mean weight"
"""Label of color bars."""

_COLOR_MAP = "inferno"
_OPACITY = 0.54
_SATURATION = 0.25
_COLUMNS = 6


def relative_weights(weights: Weights, uniform: float | None = None) -> npt.NDArray[np.float64]:
    """Return weights divided by the mean weight.

    Args:
        weights: (h, w) pooling weights.
        uniform: Weight of each location under average pooling. None takes the mean of the weights.

    Raises:
        DataError: If weights are not two-dimensional, finite, and nonnegative with a positive mean.
    """
    values = np.asarray(weights, dtype=np.float64)
    if values.ndim != 2 or values.size == 0:
        raise DataError(f"weights: expected shape (h, w), got {values.shape}. Pass one weight per location.")
    mean = values.mean() if uniform is None else uniform
    if not np.isfinite(values).all() or values.min() < 0 or not mean > 0:
        raise DataError(
            f"weights: expected finite, nonnegative values with a positive mean, got {values.min():g} to "
            f"{values.max():g} with mean {mean:g}. Pass pooling weights."
        )
    return np.asarray(values / mean)


def is_uniform(weights: Weights) -> bool:
    """Return whether all locations have the same weight within 1%."""
    return bool(np.abs(relative_weights(weights) - 1).max() < 0.01)


def colors(relative: npt.NDArray[np.float64], full_scale: float = FULL_SCALE) -> npt.NDArray[np.float64]:
    """Return the color of each relative weight: shape (..., 3), channels in [0, 1]."""
    import matplotlib

    mapped = matplotlib.colormaps[_COLOR_MAP](np.clip(relative / full_scale, 0, 1))
    return np.asarray(mapped[..., :3], dtype=np.float64)


def overlay(
    image: Image.Image, weights: Weights, *, uniform: float | None = None, full_scale: float = FULL_SCALE
) -> Image.Image:
    """Return an image under a smooth heat map of its pooling weights.

    The image is nearly gray, so color shows weight: dark locations are dropped, bright ones are kept.

    Args:
        image: Image of any mode.
        weights: (h, w) pooling weights, spread evenly over the image.
        uniform: Weight of each location under average pooling. None takes the mean of the weights.
        full_scale: Weight / mean weight of the brightest color.

    Returns:
        RGB image of the same size.
    """
    relative = Image.fromarray(relative_weights(weights, uniform).astype(np.float32))
    smooth = np.asarray(relative.resize(image.size, Image.Resampling.BICUBIC), dtype=np.float64)
    pale = ImageEnhance.Color(image.convert("RGB")).enhance(_SATURATION)
    mixed = (1 - _OPACITY) * np.asarray(pale, dtype=np.float64) / 255 + _OPACITY * colors(smooth, full_scale)
    return Image.fromarray(np.round(255 * mixed.clip(0, 1)).astype(np.uint8))


def heat_image(weights: Weights, side: int = 48) -> Image.Image:
    """Return the colors of pooling weights as a small image, to be stretched over a picture by its reader.

    Weights are interpolated before they get a color, so every color is on the scale.

    Args:
        weights: (h, w) pooling weights.
        side: Longer side in pixels.
    """
    relative = relative_weights(weights)
    height, width = (max(1, round(side * size / max(relative.shape))) for size in relative.shape)
    fine = Image.fromarray(relative.astype(np.float32)).resize((width, height), Image.Resampling.BICUBIC)
    return Image.fromarray(np.round(255 * colors(np.asarray(fine, dtype=np.float64))).astype(np.uint8))


@styled
def save_explanation(
    path: str | Path, image: Image.Image, maps: Mapping[str, Weights], *, below: Mapping[str, Image.Image] | None = None
) -> None:
    """Write an image next to its heat maps, with a color bar.

    The maps share one scale that ends at their largest weight (2 to 8 times the mean), so both gentle and sharp
    selections are visible.

    Args:
        path: File to write; its extension selects the format, such as .png.
        image: Image shown first.
        maps: Title to (h, w) pooling weights.
        below: Title to the image below the heat map, for models with different crops. None takes `image`.

    Raises:
        DataError: If no heat map is given, or weights are invalid.
    """
    if not maps:
        raise DataError("maps: expected at least one heat map, got none. Pass the weights of a pooling.")
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    largest = max(float(relative_weights(each).max()) for each in maps.values())
    full = float(np.clip(np.ceil(2 * largest) / 2, 2, 8))
    under = dict.fromkeys(maps, image) if below is None else below
    overlays = {name: overlay(under[name], each, full_scale=full) for name, each in maps.items()}
    pictures = {"Image": image.convert("RGB"), **overlays}
    side, columns = 2.6, min(len(pictures), _COLUMNS)
    rows = -(-len(pictures) // columns)
    figure = new_figure(side * columns + 0.9, (side * min(2.0, image.height / image.width) + 0.4) * rows)
    grid = figure.add_gridspec(rows, columns)
    every = []
    for number, (title, picture) in enumerate(pictures.items()):
        axes = figure.add_subplot(grid[divmod(number, columns)])
        axes.imshow(np.asarray(picture), interpolation="lanczos")
        axes.set_title(title, loc="center")
        axes.set_axis_off()
        every.append(axes)
    scale = ScalarMappable(Normalize(0, full), _COLOR_MAP)
    bar = figure.colorbar(scale, ax=every, label=SCALE_LABEL, shrink=0.9, pad=0.02, extend="max")
    bar.set_ticks(list(range(int(full) + 1)))
    bar.outline.set_visible(False)
    save(figure, path)
