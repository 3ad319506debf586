"""Figures of a search for settings: how much each one decides, and how two of them go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from winnow.report.style import INK, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@styled
def importance_figure(importances: Mapping[str, float]) -> Figure:
    """Draw a bar for each setting: its share of what decides the result."""
    figure = new_figure(6.0, 0.9 + 0.3 * len(importances))
    axes = figure.subplots()
    names = list(importances)
    axes.barh(range(len(names)), [100 * importances[name] for name in names], height=0.65)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    axes.set_xlabel("share of what decides the result, percent")
    axes.set_title("What matters (PED-ANOVA)")
    return figure


@styled
def contour_figure(
    keys: tuple[str, str], trials: Sequence[tuple[Any, Any]], values: Sequence[float], logarithmic: tuple[bool, bool],
    metric: str,
) -> Figure:  # fmt: skip
    """Draw the result over two settings: a dot for each trial, and levels between them where that can be.

    Args:
        keys: The two settings.
        trials: Their values in each trial; words have places of their own along the axis.
        values: Of the validation, in percent.
        logarithmic: Whether an axis is.
        metric: What is measured.
    """
    from matplotlib.tri import Triangulation

    figure = new_figure(5.6, 4.4)
    axes = figure.subplots()
    x, y = (_place(axes, "xy"[n], [trial[n] for trial in trials], logarithmic[n]) for n in range(2))
    z = np.asarray(values)
    if len(set(zip(x.tolist(), y.tolist(), strict=True))) >= 4 and np.linalg.matrix_rank(
        np.stack([x, y, np.ones_like(x)]), tol=1e-9
    ) == 3:  # fmt: skip
        axes.tricontourf(Triangulation(x, y), z, levels=12, alpha=0.6)
    points = axes.scatter(x, y, c=z, edgecolors=INK, linewidths=0.6, s=26, zorder=3)
    best = int(z.argmax())
    axes.scatter(x[best], y[best], s=120, facecolors="none", edgecolors=INK, linewidths=1.5, zorder=4)
    figure.colorbar(points, ax=axes, label=f"{metric} on validation classes, percent")
    axes.use_sticky_edges = False  # a dot on the edge of the levels is a whole one
    axes.margins(0.05)
    axes.set_xlabel(keys[0])
    axes.set_ylabel(keys[1])
    axes.set_title(f"{keys[0]} and {keys[1]}; the best is circled")
    return figure


def _place(axes: Axes, side: str, found: Sequence[Any], log: bool) -> Any:
    """Return where values are along an axis, and set it up.

    A logarithmic one is an even axis of logarithms: levels between trials are then straight where they are seen.
    """
    if any(isinstance(value, str) for value in found):
        names = sorted(set(map(str, found)))
        getattr(axes, f"set_{side}ticks")(range(len(names)), names)
        return np.array([names.index(str(value)) for value in found], dtype=float)
    if log:
        getattr(axes, f"{side}axis").set_major_formatter(lambda value, _: f"{10**value:.3g}")
        return np.log10(np.array(found, dtype=float))
    return np.array(found, dtype=float)
