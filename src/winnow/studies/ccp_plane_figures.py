"""Figure of CCP in two dimensions: the plane after some problems, radii, and retrieval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from winnow.data import Labels
from winnow.report.style import MUTED, method_colors, new_figure, styled
from winnow.studies.spec import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from winnow.studies.ccp_plane import Solution


@styled
def draw_plane(labels: Labels, solutions: Sequence[Solution], rows: Sequence[Row]) -> Figure:
    """Draw the plane after the first three problems and the last, and radii and MAP@R over all of them.

    Args:
        labels: (N,) classes of the images.
        solutions: Solutions of CCP with one seed.
        rows: Rows of this seed.
    """
    from matplotlib.ticker import MaxNLocator

    count = len(solutions)
    shown = sorted({0, min(1, count - 1), min(2, count - 1), count - 1})
    figure = new_figure(2.3 * len(shown) + 0.4, 4.9)
    grid = figure.add_gridspec(2, 2 * len(shown), height_ratios=[1.25, 1])
    for position, number in enumerate(shown):
        axes = figure.add_subplot(grid[0, 2 * position : 2 * position + 2])
        scatter(axes, labels, solutions[number])
        axes.set_title(f"after problem {number + 1}")
    ccp = [row for row in rows if row["method"] == "CCP"]
    left = figure.add_subplot(grid[1, : len(shown)])
    right = figure.add_subplot(grid[1, len(shown) :])
    slate, orange, blue = method_colors("123").values()
    problems = list(range(1, len(ccp) + 1))
    left.plot(problems, [row["radius, converged"] for row in ccp], "s-", color=orange, markersize=4, label="converged")
    left.plot(problems[:-1], [row["radius, next"] for row in ccp[:-1]], "o-", color=MUTED, markersize=4, label="next")
    left.set_title("Mean covering radius around proxies")
    left.set_ylim(bottom=0)
    for row in (row for row in rows if row["method"] == "one problem"):
        left.axhline(row["radius, converged"], color=slate, linestyle=(0, (3, 3)), label="one problem")
        right.axhline(100 * row["test MAP@R"], color=slate, linestyle=(0, (3, 3)), label="one problem")
    right.plot(problems, [100 * row["test MAP@R"] for row in ccp], "o-", color=blue, markersize=4, label="CCP")
    right.set_title("Test MAP@R (%)")
    for axes in (left, right):
        axes.set_xlabel("problem")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(fontsize=7.5)
    return figure


def scatter(axes: Axes, labels: Labels, solution: Solution) -> None:
    """Draw a solution: dots for images, squares for converged proxies, rings for the next ones."""
    axes.scatter(*xy(solution.points), c=labels, cmap="tab10", s=2, alpha=0.35, linewidths=0, rasterized=True)
    if solution.next is not None:
        axes.scatter(*xy(solution.next), c=classes_of(solution.next), cmap="tab10", s=16, marker="o",
                     edgecolors="black", lw=0.6)  # fmt: skip
    if solution.converged is not None:
        axes.scatter(*xy(solution.converged), c=classes_of(solution.converged), cmap="tab10", s=26, marker="s",
                     edgecolors="white", lw=0.8)  # fmt: skip
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    axes.spines[:].set_visible(False)


def classes_of(proxies: Tensor) -> Labels:
    """Return the class of each of the proxies (C, K, 2)."""
    return np.repeat(np.arange(proxies.shape[0]), proxies.shape[1])


def xy(points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two coordinates of points (..., 2)."""
    return points[..., 0].flatten(), points[..., 1].flatten()
