"""What the study of CCP in the plane tells: its table, its paragraph and its picture."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from winnow.data import Labels
from winnow.functional import covering_radius, pairwise_distance
from winnow.report.style import MUTED, method_colors, new_figure, styled
from winnow.studies.base import paragraphs
from winnow.studies.outcomes import verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLASSES, PER_CLASS, POOL = 10, 4, 16
SAMPLE = 2000  # training images whose covering radius is measured
POINT = 0.01  # from the mean of their class: proxies that have collapsed, in a disc of radius 1


@dataclass(frozen=True)
class Solution:
    """What a problem came to, in the normalised plane.

    Attributes:
        points: (N, 2) embeddings of the sampled training images.
        converged: (C, K, 2) proxies at the problem's best validation; None without proxies.
        next: (C, K, 2) proxies that the next problem starts with; None for the last.
        test: MAP@R of the test images.
    """

    points: Tensor
    converged: Tensor | None
    next: Tensor | None
    test: float


def table(
    method: str,
    seed: int,
    labels: Labels,
    solutions: list[Solution],
    records: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return a row for each problem."""
    rows = []
    for number, (solution, record) in enumerate(zip(solutions, records, strict=False), 1):
        spread = None
        if solution.converged is not None:
            centre = solution.converged.mean(dim=1, keepdim=True)
            spread = float((solution.converged - centre).norm(dim=2).mean())
        rows.append({
            "method": method, "seed": seed, "problem": number if len(solutions) > 1 else None, "steps": record["steps"],
            "validation MAP@R": record["best"], "test MAP@R": solution.test,
            "radius, converged": cover(labels, solution.points, solution.converged)[0],
            "radius, next": cover(labels, solution.points, solution.next)[0],
            "distance, converged": cover(labels, solution.points, solution.converged)[1],
            "distance, next": cover(labels, solution.points, solution.next)[1], "proxy spread": spread,
        })  # fmt: skip
    return rows


def cover(labels: Labels, points: Tensor, proxies: Tensor | None) -> tuple[float, float] | tuple[None, None]:
    """Return how far images are from the nearest proxy of their class: the farthest, and the mean; mean over classes.

    The first is the covering radius. A few images that look like another class decide it.
    """
    if proxies is None:
        return None, None
    members = [points[torch.from_numpy(labels == label)] for label in range(CLASSES)]
    radii = [covering_radius(own, proxies[label]) for label, own in enumerate(members)]
    means = [pairwise_distance(own, proxies[label]).amin(dim=1).mean() for label, own in enumerate(members)]
    return float(torch.stack(radii).mean()), float(torch.stack(means).mean())


def told(rows: list[dict[str, Any]]) -> str:
    """Return what came of the documents' claims: proxies stay diverse, radii fall, retrieval improves."""
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {(row["method"], row["seed"]): [] for row in rows}
    for row in rows:
        runs[row["method"], row["seed"]].append(row)
    ccp = [run for (name, _), run in runs.items() if name == "CCP"]

    def best(method: str, key: str) -> list[float]:
        """Return a number of every run at its best validation."""
        of_method = [run for (name, _), run in runs.items() if name == method]
        return [max(run, key=lambda row: row["validation MAP@R"])[key] for run in of_method]

    def through(key: str, sign: int) -> str:
        """Say how a number changed from the first problem to the last, and whether that is the documents' way."""
        first, last = [run[0][key] for run in ccp], [run[-1][key] for run in ccp]
        factor = 100 if key == "test MAP@R" else 1
        moved = sum(sign * (after - before) > 0 for before, after in zip(first, last, strict=True))
        way = "higher" if sign > 0 else "lower"
        return (
            f"{shown(first, factor)} to {shown(last, factor)} ({way} in {moved} of {len(ccp)} runs), "
            f"{checked(first, last, sign)}"
        )

    single, many = (best(method, "proxy spread") for method in ("one problem", "CCP"))
    alone, with_ccp, samples = (best(method, "test MAP@R") for method in ("one problem", "CCP", "samples"))
    problems = ", ".join(str(len(run)) for run in ccp)
    items = [
        f"with a single problem a class's proxies collapse to a point: {shown(single, 1)} from the mean of their "
        f"class, {'agrees' if statistics.mean(single) < POINT else 'does not agree'} (closer than {POINT:g})",
        f"alternation keeps them diverse: {shown(many, 1)} with CCP, {checked(single, many)}",
        f"the covering radius falls through the problems: {through('radius, converged', -1)}; the mean distance to the "
        f"nearest proxy: {through('distance, converged', -1)}",
        f"retrieval improves through the problems: test MAP@R {through('test MAP@R', 1)}",
        f"it does so by new proxies: CCP has {shown(with_ccp, 100)} % test MAP@R, one problem trained on for as long "
        f"{shown(alone, 100)} %, {checked(alone, with_ccp)}; samples in the place of proxies {shown(samples, 100)} %",
    ]
    begin = f"What the documents say of CCP in the plane, and what came of it in runs of {problems} problems:"
    return paragraphs(begin, "\n".join(f"- {item}" for item in items))


def checked(before: list[float], after: list[float], sign: int = 1) -> str:
    """Say whether what was to grow (or, with -1, to fall) did, by more than seeds deviate."""
    spread = max((statistics.stdev(each) for each in (before, after) if len(each) > 1), default=0.0)
    return verdict(sign * (statistics.mean(after) - statistics.mean(before)), spread)


def how(where: str) -> str:
    """Say how it was made: on which images, with which network and for how long, and what the numbers are."""
    return (
        f"Made on {where}: embeddings in two dimensions, {PER_CLASS} proxies per class, pools of {POOL}, C2, chapter "
        "3's normalisation. Numbers are means and standard deviations over seeds, of each problem's or run's best "
        f"validation; radii and distances are of {SAMPLE:,} training images around the proxies of their class. A few "
        "images that look like another class decide a radius."
    )


def shown(values: list[float], factor: float) -> str:
    """Return the mean and the standard deviation of some values."""
    digits = 3 if factor == 1 else 1
    scaled = factor * np.array(values)
    return f"{scaled.mean():.{digits}f} ± {scaled.std(ddof=1) if len(scaled) > 1 else 0:.{digits}f}"


@styled
def draw(labels: Labels, solutions: list[Solution], rows: list[dict[str, Any]]) -> Figure:
    """Draw the plane after some problems, and below it radii and MAP@R over all of them."""
    from matplotlib.ticker import MaxNLocator

    count = len(solutions)
    shown = sorted({0, min(1, count - 1), min(2, count - 1), count - 1})
    figure = new_figure(2.3 * len(shown) + 0.4, 4.9)
    grid = figure.add_gridspec(2, 2 * len(shown), height_ratios=[1.25, 1])
    for place, number in enumerate(shown):
        axes = figure.add_subplot(grid[0, 2 * place : 2 * place + 2])
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
    for row, colour in ((row, slate) for row in rows if row["method"] == "one problem"):
        left.axhline(row["radius, converged"], color=colour, linestyle=(0, (3, 3)), label="one problem")
        right.axhline(100 * row["test MAP@R"], color=colour, linestyle=(0, (3, 3)), label="one problem")
    right.plot(problems, [100 * row["test MAP@R"] for row in ccp], "o-", color=blue, markersize=4, label="CCP")
    right.set_title("Test MAP@R, %")
    for axes in (left, right):
        axes.set_xlabel("problem")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(fontsize=7.5)
    return figure


def scatter(axes: Axes, labels: Labels, solution: Solution) -> None:
    """Draw a solution: dots are images, squares converged proxies, rings the next ones."""
    axes.scatter(*xy(solution.points), c=labels, cmap="tab10", s=2, alpha=0.35, linewidths=0, rasterized=True)
    own = np.repeat(np.arange(CLASSES), PER_CLASS)
    if solution.next is not None:
        axes.scatter(*xy(solution.next), c=own, cmap="tab10", s=16, marker="o", edgecolors="black", lw=0.6)
    if solution.converged is not None:
        axes.scatter(*xy(solution.converged), c=own, cmap="tab10", s=26, marker="s", edgecolors="white", lw=0.8)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    axes.spines[:].set_visible(False)


def xy(points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two coordinates of points (..., 2)."""
    return points[..., 0].flatten(), points[..., 1].flatten()
