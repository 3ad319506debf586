"""Pictures of the study of collages: a bar for each pooling, and what models look at."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from winnow.data import ImageSet
from winnow.models import Embedder
from winnow.report.heatmaps import overlay
from winnow.report.style import INK, method_colors, new_figure, styled
from winnow.studies.collage_report import Places
from winnow.studies.outcomes import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ZOOM = 4
_SHOWN = 4


@styled
def draw(found: Places, bound: str) -> Figure:
    """Draw MAP@R of every pooling: a panel for each backbone, a bar for each loss, the upper bounds as dashed lines."""
    every = [name for name in next(iter(found.values())) if name != bound]
    shown = [name for name in every if any(by_name[name] for by_name in found.values())]
    backbones, losses = (list(dict.fromkeys(key[i] for key in found)) for i in (0, 1))
    # A backbone without any run yet has no panel, unless none has one.
    backbones = [seen for seen in backbones if any(any(found[seen, loss].values()) for loss in losses)] or backbones
    colours = method_colors(losses)
    figure = new_figure(8.0, 1.3 + 0.36 * len(shown))
    panels = figure.subplots(1, len(backbones), sharey=True, squeeze=False)[0]
    height = 0.8 / len(losses)
    for axes, seen in zip(panels, backbones, strict=True):
        for number, loss in enumerate(losses):
            by_name = found[seen, loss]
            for place, name in enumerate(shown):
                values = percent(by_name[name])
                if values:
                    at = place + (number - (len(losses) - 1) / 2) * height
                    axes.barh(at, statistics.mean(values), color=colours[loss], alpha=0.75, height=height)
                    axes.plot(values, [at] * len(values), ".", color=INK, markersize=2.5)
            if by_name.get(bound):
                best = statistics.mean(percent(by_name[bound]))
                axes.axvline(best, color=colours[loss], linestyle=(0, (4, 3)), linewidth=1)
        axes.set_title(f"pretrained on {seen}")
        axes.set_xlabel("MAP@R on unseen classes, percent")
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", visible=True)
    panels[0].set_yticks(range(len(shown)), shown)
    panels[0].invert_yaxis()
    handles = [panels[0].barh(0, 0, color=colours[loss]) for loss in losses]
    figure.legend(handles, [f"{loss} (dashed: distilled)" for loss in losses], loc="outside lower center", ncols=2)
    return figure


@styled
def draw_heat_maps(models: Mapping[str, Path], train: ImageSet, test: ImageSet) -> Figure:
    """Draw what models look at in a few training and test collages: a row for each, a column for each model.

    Args:
        models: What to call each model, and its folder.
        train: Collages, of which some are drawn.
        test: Likewise.
    """
    picked = [(kind, images.read(int(index))) for kind, images in (("train", train), ("test", test))
              for index in np.linspace(0, len(images) - 1, _SHOWN).astype(int)]  # fmt: skip
    pictures = [image for _, image in picked]
    columns: dict[str, list[Image.Image]] = {"": [_enlarged(image) for image in pictures]}
    for name, folder in models.items():
        seen = Embedder.from_pretrained(folder).explain(pictures)
        columns[name] = [_enlarged(one.image) if one.weights is None else overlay(_enlarged(one.image), one.weights)
                         for one in seen]  # fmt: skip
    figure = new_figure(1.4 * len(columns), 1.35 * len(pictures))
    grid = figure.subplots(len(pictures), len(columns), squeeze=False)
    for row, (kind, _) in enumerate(picked):
        for column, (name, images) in enumerate(columns.items()):
            axes = grid[row, column]
            axes.imshow(np.asarray(images[row]))
            axes.set_xticks([])
            axes.set_yticks([])
            axes.grid(False)
            axes.set_title(name if row == 0 else "", loc="center")
            axes.set_ylabel(kind if column == 0 else "")
    return figure


def _enlarged(image: Image.Image) -> Image.Image:
    """Return an image with pixels large enough to see."""
    return image.resize((_ZOOM * image.width, _ZOOM * image.height), Image.Resampling.NEAREST)
