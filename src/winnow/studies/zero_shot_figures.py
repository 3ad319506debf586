"""Figures of zero-shot prediction: class histograms, accuracies, and images colored by prototype."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from winnow.report.style import INK, method_colors, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from winnow.studies.zero_shot import ExplainedModel

COLORS = "Set1"  # eight that differ most
CHANCE = 20


@styled
def draw(explained: Mapping[str, Sequence[ExplainedModel]]) -> Figure:
    """Draw a map of the class histograms for each variant, and below it the accuracies over splits."""
    count = len(explained)
    columns = min(count, next((each for each in (4, 5, 3) if count % each == 0), 4))  # full lines if possible
    lines = -(-count // columns)
    figure = new_figure(1.4 + 2.3 * max(columns, 2), 2.4 + 2.7 * lines)
    grid = figure.add_gridspec(lines + 1, columns, height_ratios=[1.5] * lines + [1.2])
    first = {name: each[0] for name, each in explained.items()}
    highest = max(float(one.attributes[: len(one.classes)].max()) for one in first.values())
    maps = []
    for position, (name, one) in enumerate(first.items()):
        axes = figure.add_subplot(grid[position // columns, position % columns])
        shown = one.attributes[: len(one.classes)]
        maps.append(axes.imshow(shown.numpy(), cmap="cividis", aspect="auto", vmin=0, vmax=highest))
        axes.set_yticks(range(len(shown)), one.classes if position % columns == 0 else [""] * len(shown))
        axes.set_xticks(range(shown.shape[1]), [str(number + 1) for number in range(shown.shape[1])])
        axes.set_xlabel("prototype")
        axes.grid(False)
        axes.set_title(break_name(name), fontsize=8)
    figure.colorbar(maps[0], ax=list(figure.axes), label="fraction of a class's attributes", shrink=0.8, aspect=30)
    draw_accuracies(figure.add_subplot(grid[-1, :]), explained)
    return figure


def draw_accuracies(axes: Axes, explained: Mapping[str, Sequence[ExplainedModel]]) -> None:
    """Draw a bar per variant and measure: dots for seeds, whiskers for the deviation over splits of all seeds."""
    names = list(explained)
    measures = list(explained[names[0]][0].accuracies)
    for number, (measure, color) in enumerate(method_colors(measures).items()):
        positions = [position + 0.3 * number - 0.15 for position in range(len(names))]
        each = [[100 * one.accuracies[measure] for one in explained[name]] for name in names]
        seeds = [[float(values.mean()) for values in one] for one in each]
        spread = [float(torch.cat(one).std()) for one in each]
        axes.bar(positions, [statistics.mean(one) for one in seeds], 0.28, yerr=spread, color=color, ecolor=INK,
                 alpha=0.75, label=measure)  # fmt: skip
        for position, values in zip(positions, seeds, strict=True):
            axes.plot([position] * len(values), values, ".", color=INK, markersize=3)
    axes.axhline(CHANCE, color=INK, linestyle=(0, (3, 3)), linewidth=0.8, label="chance")
    axes.set_xticks(range(len(names)), [break_name(name) for name in names], fontsize=7)
    axes.set_ylim(0, 105)
    axes.set_xlabel("dots: seeds; whiskers: standard deviation over splits")
    axes.set_title("Accuracy of predicted embeddings (%)")
    axes.legend(fontsize=8, loc="upper left", ncols=3)


def break_name(name: str) -> str:
    """Return the name of a variant on separate lines for settings, start, and regularization."""
    settings, _, zsr = name.partition(" + ")
    return "\n".join([settings.replace(", from", "\nfrom"), zsr or "without ZSR"])


@styled
def draw_prototypes(first: Mapping[str, ExplainedModel]) -> Figure:
    """Draw gray images in which each local feature has the color of its nearest prototype, as strong as its weight."""
    columns = max(len(one.images) for one in first.values())
    figure = new_figure(1.0 * columns, 0.6 + 1.25 * (len(first) + 1))
    top = next(iter(first.values()))
    grid = figure.subplots(len(first) + 1, columns, squeeze=False)
    for row, one in zip(grid, [None, *first.values()], strict=True):
        for column, axes in enumerate(row):
            axes.axis("off")
            shown = top if one is None else one
            if column < len(shown.images):
                image = shown.images[column]
                axes.imshow(image if one is None else colored(image, one.nearest[column], one.weights[column]))
            if one is None and column < len(top.classes):
                axes.set_title(top.classes[column], fontsize=7)
    for row, name in zip(grid[1:], first, strict=True):
        # Longer than its column is wide: as a title it would push the next one away.
        row[0].annotate(name, (0, 1.06), xycoords="axes fraction", fontsize=7, fontweight="bold", annotation_clip=False,
                        in_layout=False)  # fmt: skip
    numbers = range(top.attributes.shape[1])
    keys = [figure.axes[0].bar(0, 0, color=prototype_colors()[number % len(prototype_colors())])[0]
            for number in numbers]  # fmt: skip
    figure.legend(keys, [str(number + 1) for number in numbers], ncols=len(numbers), fontsize=8,
                  loc="outside lower center", title="prototype; each variant has its own, as in the histograms",
                  title_fontsize=8)  # fmt: skip
    return figure


def prototype_colors() -> np.ndarray:
    """Return the colors (n, 3) of prototypes."""
    import matplotlib

    return np.array(matplotlib.colormaps[COLORS].colors)  # type: ignore[attr-defined]


def colored(image: Image.Image, nearest: Tensor, weights: Tensor) -> Image.Image:
    """Return a gray image under the colors of its local features (h, w): none at weight 0, strongest at the largest."""
    tint = (255 * prototype_colors()[nearest.numpy() % len(prototype_colors())]).astype(np.uint8)
    cover = (200 * (weights / weights.max().clamp(min=1e-12)).numpy()).astype(np.uint8)
    above = Image.fromarray(tint).resize(image.size, Image.Resampling.NEAREST)
    gray = image.convert("L").convert("RGB")  # all color marks a prototype
    return Image.composite(above, gray, Image.fromarray(cover).resize(image.size, Image.Resampling.NEAREST))
