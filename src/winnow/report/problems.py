"""The problems of a CCP run as a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from winnow.errors import DataError
from winnow.report.figures import History, series_of, step_axis
from winnow.report.style import GRID, MUTED, method_colours, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@styled
def problem_curves(problems: Sequence[Mapping[str, Any]], history: History, by: str = "MAP@R") -> Figure:
    """Show the problems of a run as bands: validation with each problem's best, and covering radii.

    A radius falls where a problem begins, as proxies are picked out of the pool, and grows while they and the
    embeddings move: dots are radii around picked proxies, rings those around converged ones.

    Args:
        problems: `problems` of the run's `result.json`.
        history: The run's log.
        by: The metric that problems went by (`references.monitor`).
    """
    if not problems:
        raise DataError("there are no problems to draw")
    figure = new_figure(6.4, 5.0)
    grid = figure.add_gridspec(2, 1)
    above = figure.add_subplot(grid[0, 0])
    below = figure.add_subplot(grid[1, 0], sharex=above)
    _, first, second = method_colours("012").values()
    values = series_of(history, f"val/{by}")
    above.plot(list(values), [100 * value for value in values.values()], color=second, linewidth=1.6)
    solved = [problem for problem in problems if problem["steps"] > 0]
    above.plot(
        [problem["best_step"] for problem in solved], [100 * problem["best"] for problem in solved],
        "o", color=second, markersize=5, markeredgecolor="white", label="best of a problem",
    )  # fmt: skip
    above.set_title(f"Validation {by}, % ({len(problems)} problems)")
    _radii(below, problems, first)
    for axes in (above, below):
        for problem in problems[1::2]:
            start = problem["first_step"]
            axes.axvspan(start, start + problem["steps"], color=GRID, alpha=0.5, linewidth=0, zorder=0)
        step_axis(axes, label=axes is below)
        axes.legend(fontsize=8, loc="best")
    return figure


def _radii(axes: Axes, problems: Sequence[Mapping[str, Any]], colour: str) -> None:
    """Draw from each picked radius to the converged one it grew to, and down to the next."""
    steps, radii = [], []
    for problem in problems:
        for radius in (problem["radius_before"], problem["radius_after"]):
            if radius is not None:
                steps.append(problem["first_step"])
                radii.append(radius)
    axes.plot(steps, radii, color=MUTED, linewidth=0.8)
    later = problems[1:]
    axes.plot(
        [problem["first_step"] for problem in later], [problem["radius_before"] for problem in later],
        "o", color="white", markeredgecolor=colour, markersize=5, label="around converged proxies",
    )  # fmt: skip
    axes.plot(
        [problem["first_step"] for problem in problems], [problem["radius_after"] for problem in problems],
        "o", color=colour, markersize=5, label="around picked proxies",
    )  # fmt: skip
    axes.set_title("Mean covering radius of a class's pool")
    axes.set_ylim(bottom=0)
