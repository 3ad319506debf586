"""The picture of the study of centre regularisation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from winnow.report.style import INK, method_colors, new_figure, styled
from winnow.studies.bands import bands
from winnow.studies.centres_report import Parts
from winnow.studies.outcomes import Found, scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@styled
def draw(found: Found, parts: Parts) -> Figure:
    """Draw R@1 of losses with each regulariser, over embedding sizes, and over delta."""
    reached = scores(found, "P@1")
    figure = new_figure(8.6, 6.2)
    grid = figure.add_gridspec(2, 2)
    _dots(figure.add_subplot(grid[0, :]), reached, parts)
    dims, deltas = figure.add_subplot(grid[1, 0]), figure.add_subplot(grid[1, 1])
    sizes = {name: {float(dim): method for dim, method in by_dim.items()} for name, by_dim in parts.dims.items()}
    _curves(dims, found, sizes, "R@1 over the embedding's size")
    _curves(deltas, found, parts.deltas, "R@1 of Proxy-Anchor over delta")
    dims.set_xlabel("numbers of an embedding")
    deltas.set_xlabel("delta; dashed: Proxy-Anchor alone")
    dims.set_xscale("log", base=2)
    ticks = sorted({dim for by_dim in parts.dims.values() for dim in by_dim})
    dims.set_xticks(ticks, [str(tick) for tick in ticks])
    dims.minorticks_off()
    alone = parts.table["Proxy-Anchor"][""]
    if alone in reached:
        deltas.axhline(reached[alone], color=INK, linestyle=(0, (3, 3)), linewidth=0.8)
    return figure


def _curves(axes: Axes, found: Found, lines: Mapping[str, Mapping[float, str]], title: str) -> None:
    """Draw R@1 over a setting."""
    bands(axes, found, lines, method_colors(["", *lines]), "P@1")
    axes.set_title(title)
    axes.legend(fontsize=7.5)


def _dots(axes: Axes, reached: Mapping[str, float], parts: Parts) -> None:
    """Draw every loss with every regulariser side by side."""
    names = list(next(iter(parts.table.values())))
    colours = method_colors(names)
    for shift, name in enumerate(names):
        there = [(place, reached[by_name[name]]) for place, by_name in enumerate(parts.table.values())
                 if by_name[name] in reached]  # fmt: skip
        places = [place + 0.7 * (shift / (len(names) - 1) - 0.5) for place, _ in there]
        axes.plot(places, [score for _, score in there], "o", color=colours[name], label=name or "loss alone")
    axes.set_xticks(range(len(parts.table)), list(parts.table))
    axes.set_title("R@1 on unseen classes, %: losses with each regulariser")
    axes.legend(fontsize=7.5, ncols=len(names), loc="upper center", bbox_to_anchor=(0.5, -0.1))
