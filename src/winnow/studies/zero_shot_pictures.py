"""Pictures of the study of zero-shot prediction: histograms, accuracies, and images coloured by prototype."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from winnow.report.style import INK, method_colors, new_figure, styled
from winnow.studies.zero_shot_report import MEASURES, Seen

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = "Set1"  # eight that differ most


@styled
def draw(pictured: Mapping[str, Seen], accuracies: Mapping[str, Sequence[Mapping[str, Tensor]]]) -> Figure:
    """Draw class histograms over the prototypes, a map for each method, and accuracies over splits below."""
    count = max(len(pictured), 1)
    columns = min(count, next((each for each in (4, 5, 3) if count % each == 0), 4))  # full lines where that can be
    lines = -(-count // columns)
    figure = new_figure(1.4 + 2.3 * max(columns, 2), 2.4 + 2.7 * lines)
    grid = figure.add_gridspec(lines + 1, columns, height_ratios=[1.5] * lines + [1.2])
    most = max((float(one.attributes[: len(one.classes)].max()) for one in pictured.values()), default=1.0)
    maps = []
    for place, (name, one) in enumerate(pictured.items()):
        axes = figure.add_subplot(grid[place // columns, place % columns])
        shown = one.attributes[: len(one.classes)]
        maps.append(axes.imshow(shown.numpy(), cmap="cividis", aspect="auto", vmin=0, vmax=most))
        axes.set_yticks(range(len(shown)), one.classes if place % columns == 0 else [""] * len(shown))
        axes.set_xticks(range(shown.shape[1]), [str(number + 1) for number in range(shown.shape[1])])
        axes.set_xlabel("prototype")
        axes.grid(False)
        axes.set_title(broken(name), fontsize=8)
    if maps:
        above = list(figure.axes)
        figure.colorbar(maps[0], ax=above, label="share of a class's attributes", shrink=0.8, aspect=30)
    axes = figure.add_subplot(grid[-1, :])
    colours = method_colors(MEASURES)
    names = [name for name, each in accuracies.items() if each]
    for shift, measure in enumerate(MEASURES):
        places = [number + 0.3 * shift - 0.15 for number in range(len(names))]
        runs = [[100 * float(each[measure].mean()) for each in accuracies[name]] for name in names]
        # Over all splits of all seeds.
        spread = [100 * float(torch.cat([each[measure] for each in accuracies[name]]).std()) for name in names]
        means = [statistics.mean(each) for each in runs]
        axes.bar(places, means, 0.28, yerr=spread, color=colours[measure], alpha=0.75, label=measure)
        for where, each in zip(places, runs, strict=True):
            axes.plot([where] * len(each), each, ".", color=INK, markersize=3)
    axes.axhline(20, color=INK, linestyle=(0, (3, 3)), linewidth=0.8, label="chance")
    axes.set_xticks(range(len(names)), [broken(name) for name in names], fontsize=7)
    axes.set_ylim(0, 105)
    axes.set_xlabel("dots: seeds; whiskers: deviation over splits")
    axes.set_title("Classes recognised by predicted embeddings, %")
    axes.legend(fontsize=8, loc="upper left", ncols=3)
    return figure


def broken(name: str) -> str:
    """Return a method's name on lines of its own for settings, start and regularisation."""
    settings, _, zsr = name.partition(" + ")
    return "\n".join([settings.replace(", from", "\nfrom"), zsr or "without ZSR"])


@styled
def overlays(pictured: Mapping[str, Seen]) -> Figure:
    """Draw images in grey with every place in the colour of its nearest prototype, the more so the more it weighs."""
    columns = max(len(one.images) for one in pictured.values())
    figure = new_figure(1.0 * columns, 0.6 + 1.25 * (len(pictured) + 1))
    first = next(iter(pictured.values()))
    grid = figure.subplots(len(pictured) + 1, columns, squeeze=False)
    for row, one in zip(grid, [None, *pictured.values()], strict=True):
        for column, axes in enumerate(row):
            axes.axis("off")
            shown = first if one is None else one
            if column < len(shown.images):
                picture = shown.images[column]
                axes.imshow(picture if one is None else coloured(picture, one.dominant[column], one.weights[column]))
            if one is None and column < len(first.classes):
                axes.set_title(first.classes[column], fontsize=7)
    for row, name in zip(grid[1:], pictured, strict=True):
        # Longer than its column is wide: as a title it would push the next one away.
        row[0].annotate(name, (0, 1.06), xycoords="axes fraction", fontsize=7, fontweight="bold", annotation_clip=False,
                        in_layout=False)  # fmt: skip
    numbers = range(first.attributes.shape[1])
    keys = [figure.axes[0].bar(0, 0, color=palette()[number % len(palette())])[0] for number in numbers]
    figure.legend(keys, [str(number + 1) for number in numbers], ncols=len(numbers), fontsize=8,
                  loc="outside lower center", title="prototype; each method has its own, as in the histograms",
                  title_fontsize=8)  # fmt: skip
    return figure


def palette() -> np.ndarray:
    """Return the colours (n, 3) of prototypes."""
    import matplotlib

    return np.array(matplotlib.colormaps[COLOURS].colors)  # type: ignore[attr-defined]


def coloured(picture: Image.Image, dominant: Tensor, weights: Tensor) -> Image.Image:
    """Return an image in grey under the colours of places (h, w): none where the weight is 0, most at the largest."""
    tint = (255 * palette()[dominant.numpy() % len(palette())]).astype(np.uint8)
    cover = (200 * (weights / weights.max().clamp(min=1e-12)).numpy()).astype(np.uint8)
    above = Image.fromarray(tint).resize(picture.size, Image.Resampling.NEAREST)
    grey = picture.convert("L").convert("RGB")  # so that all colour is that of a prototype
    return Image.composite(above, grey, Image.fromarray(cover).resize(picture.size, Image.Resampling.NEAREST))
