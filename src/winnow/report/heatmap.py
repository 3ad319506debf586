"""Pooling weights as heat maps over the image they weigh, on one scale for all images: times the average weight."""

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
"""The weight, in times the average, from which on a place has the hottest colour where images are compared."""

_COLOUR_MAP = "inferno"
_OPACITY = 0.54
_SATURATION = 0.25
_COLUMNS = 6


def relative_weights(weights: Weights, uniform: float | None = None) -> npt.NDArray[np.float64]:
    """Return weights in times the average weight.

    Args:
        weights: (h, w) pooling weights.
        uniform: The weight each place would have if all weighed the same; default the sum of the weights shared among
            all places.
    """
    values = np.asarray(weights, dtype=np.float64)
    if values.ndim != 2 or values.size == 0:
        raise DataError(f"a heat map needs weights of shape (h, w), got {values.shape}")
    if not np.isfinite(values).all() or values.min() < 0:
        raise DataError("a heat map needs weights that are finite and not negative")
    average = values.mean() if uniform is None else uniform
    if not average > 0:
        raise DataError("a heat map needs weights of which at least one is above zero, and a uniform weight above zero")
    return np.asarray(values / average)


def is_uniform(weights: Weights) -> bool:
    """Whether all places weigh the same to within 1 %, as in average pooling."""
    return bool(np.abs(relative_weights(weights) - 1).max() < 0.01)


def colours(relative: npt.NDArray[np.float64], full_scale: float = FULL_SCALE) -> npt.NDArray[np.float64]:
    """Return the colour of each weight given in times the average: shape (..., 3), each part in [0, 1]."""
    import matplotlib

    mapped = matplotlib.colormaps[_COLOUR_MAP](np.clip(relative / full_scale, 0, 1))
    return np.asarray(mapped[..., :3], dtype=np.float64)


def overlay(
    image: Image.Image, weights: Weights, *, uniform: float | None = None, full_scale: float = FULL_SCALE
) -> Image.Image:
    """Lay pooling weights over an image as a smooth heat map.

    The image keeps only a hint of its colours, so that colour means weight: dark places are dropped, bright ones are
    kept. The scale runs from nothing to `full_scale` times the average; images on one scale compare.

    Args:
        image: Any image.
        weights: (h, w) pooling weights, spread evenly over the image.
        uniform: The weight of every place in average pooling; default the mean of the weights.
        full_scale: The weight, in times the average, that has the hottest colour.

    Returns:
        An RGB image of the same size.
    """
    relative = Image.fromarray(relative_weights(weights, uniform).astype(np.float32))
    smooth = np.asarray(relative.resize(image.size, Image.Resampling.BICUBIC), dtype=np.float64)
    pale = ImageEnhance.Color(image.convert("RGB")).enhance(_SATURATION)
    mixed = (1 - _OPACITY) * np.asarray(pale, dtype=np.float64) / 255 + _OPACITY * colours(smooth, full_scale)
    return Image.fromarray(np.round(255 * mixed.clip(0, 1)).astype(np.uint8))


@styled
def save_explanation(
    path: str | Path, image: Image.Image, maps: Mapping[str, Weights], *, below: Mapping[str, Image.Image] | None = None
) -> None:
    """Write a picture of an image beside its heat maps, with a colour bar.

    The maps share one scale that reaches to their heaviest place (2 to 8 times the average), so that a gentle selection
    can be seen as well as a sharp one.

    Args:
        path: The file to write; its ending says how, such as .png.
        image: The image.
        maps: Title of each heat map to its (h, w) pooling weights.
        below: What each heat map lies over, where models see different crops; default the image.
    """
    if not maps:
        raise DataError("there is no heat map to save")
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    heaviest = max(float(relative_weights(each).max()) for each in maps.values())
    full = float(np.clip(np.ceil(2 * heaviest) / 2, 2, 8))
    under = dict.fromkeys(maps, image) if below is None else below
    overlays = {name: overlay(under[name], each, full_scale=full) for name, each in maps.items()}
    pictures = {"Image": image.convert("RGB"), **overlays}
    side, columns = 2.6, min(len(pictures), _COLUMNS)
    rows = -(-len(pictures) // columns)
    figure = new_figure(side * columns + 0.9, (side * min(2.0, image.height / image.width) + 0.4) * rows)
    grid = figure.add_gridspec(rows, columns)
    every = []
    for place, (title, picture) in enumerate(pictures.items()):
        axes = figure.add_subplot(grid[divmod(place, columns)])
        axes.imshow(np.asarray(picture), interpolation="lanczos")
        axes.set_title(title, loc="center")
        axes.set_axis_off()
        every.append(axes)
    scale = ScalarMappable(Normalize(0, full), _COLOUR_MAP)
    bar = figure.colorbar(scale, ax=every, label="times the average weight", shrink=0.9, pad=0.02, extend="max")
    bar.set_ticks(ticks := list(range(int(full) + 1)), labels=[f"{tick}×" for tick in ticks])
    bar.outline.set_visible(False)
    save(figure, path)
