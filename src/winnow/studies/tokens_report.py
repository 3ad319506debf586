"""What the study of bags of tokens tells: hulls and their overlap, its table, its paragraph and its picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from winnow.functional import convex_hull, hull_overlap
from winnow.report.style import INK, MUTED, new_figure, styled
from winnow.studies.base import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from winnow.studies.tokens import Trained

CLAIM = 70  # points of MAP@R, thesis chapter 6


def overlap(run: Trained) -> float:
    """Return the share of test bags within the hull of another class's bags."""
    groups = [run.embedded[run.labels == label] for label in range(run.setting.classes)]
    corners = [group[convex_hull(group)] for group in groups]
    return float(hull_overlap(run.embedded, run.labels, corners).mean())


def table(runs: Sequence[Trained]) -> list[dict[str, Any]]:
    """Return a row for each method and margin: means over seeds, in percent."""
    rows: list[dict[str, Any]] = []
    for margin, method in dict.fromkeys((run.setting.margin, run.method) for run in runs):
        own = [run.numbers for run in runs if (run.setting.margin, run.method) == (margin, method)]
        mean = {key: statistics.mean(each[key] for each in own) for key in own[0]}
        spread = statistics.stdev(100 * each["MAP@R"] for each in own) if len(own) > 1 else None
        rows.append({
            "method": method, "margin": margin, "runs": len(own), "MAP@R": round(100 * mean["MAP@R"], 1),
            "MAP@R sd": None if spread is None else round(spread, 1), "validation": round(100 * mean["validation"], 1),
            "bags in another class's hull, %": round(100 * mean["overlap"], 1), "steps": round(mean["steps"]),
        })  # fmt: skip
    return rows


def told(rows: Sequence[Row], bag: int) -> str:
    """Set each method at its best margin beside the documents' claims."""
    gap, gsp = (max((row for row in rows if row["method"] == name), key=lambda row: float(row["validation"]))
                for name in ("GAP", "GSP"))  # fmt: skip
    gain = gsp["MAP@R"] - gap["MAP@R"]
    widest = max(
        (other["MAP@R"] - row["MAP@R"], row["margin"]) for row in rows for other in rows
        if (row["method"], other["method"]) == ("GAP", "GSP") and row["margin"] == other["margin"]
    )  # fmt: skip
    hulls = [row["bags in another class's hull, %"] for row in (gap, gsp)]
    direction = "agrees" if gain > 0 else "does not agree"
    size, size_there = ("as large as claimed" if each >= 0.9 * CLAIM else "smaller" for each in (gain, widest[0]))
    apart = "agrees" if hulls[1] < 5 < hulls[0] else "agrees in part" if hulls[1] < 0.5 * hulls[0] else "does not agree"
    return (
        f"Sixteen classes of four learned tokens and four background tokens of all, bags of {bag} of which about half "
        "are background, embedded in the plane, C2, nothing normalised. Loss, dimension, eps and number of prototypes "
        "of the documents' run are not recorded; the margin is chosen for each method by validation bags. The "
        f"documents claim {CLAIM} points of MAP@R for GSP over GAP: here GAP has {gap['MAP@R']} (margin "
        f"{gap['margin']}), GSP {gsp['MAP@R']} (margin {gsp['margin']}), {gain:+.1f} points. That {direction} in "
        f"direction; the gain is {size}. At one and the same margin the gain is at most {widest[0]:+.1f} points "
        f"(margin {widest[1]}), {size_there}. "
        "Their picture shows class hulls that overlap with GAP and are apart with GSP: here "
        f"{hulls[0]:.0f} % of the bags lie in another class's hull with GAP and {hulls[1]:.0f} % with GSP, which "
        f"{apart}."
    )


@styled
def draw(runs: Sequence[Trained]) -> Figure:
    """Draw tokens, bags and hulls of the first seed of each method, at its best margin by validation."""
    figure = new_figure(7.4, 4.0)
    for place, method in enumerate(dict.fromkeys(run.method for run in runs)):
        own = [run for run in runs if run.method == method and run.seed == 0]
        run = max(own, key=lambda each: float(each.numbers["validation"]))
        axes = figure.add_subplot(1, 2, place + 1)
        scatter(axes, run)
        score, foreign = 100 * run.numbers["MAP@R"], 100 * run.numbers["overlap"]
        axes.set_title(f"{method}: MAP@R {score:.0f} %, {foreign:.0f} % in another hull")
    figure.supxlabel("first seed; dots: bags in their class's hull, rings: its tokens, crosses: the background's",
                     fontsize=8, color=MUTED)  # fmt: skip
    return figure


def scatter(axes: Axes, run: Trained) -> None:
    """Draw one run: dots are bags within their class's hull, rings its tokens, crosses the background's."""
    import matplotlib

    colours = matplotlib.colormaps["tab20"]
    count = run.setting.classes * run.setting.tokens
    for label in range(run.setting.classes):
        colour = colours(label % 20)
        bags = run.embedded[run.labels == label]
        corners = bags[convex_hull(bags)]
        own = run.tokens[label * run.setting.tokens : (label + 1) * run.setting.tokens]
        axes.fill(corners[:, 0], corners[:, 1], color=colour, alpha=0.35, linewidth=0)
        axes.scatter(bags[:, 0], bags[:, 1], color=colour, s=1.5, linewidths=0, rasterized=True)
        axes.scatter(own[:, 0], own[:, 1], s=22, facecolors="none", edgecolors=[colour], linewidths=1.2)
    shared = run.tokens[count:]
    axes.scatter(shared[:, 0], shared[:, 1], marker="x", color=INK, s=30, linewidths=1.4)
    limit = 1.1 * float(torch.as_tensor(run.tokens).abs().max())
    axes.set_xlim(-limit, limit)
    axes.set_ylim(-limit, limit)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    axes.spines[:].set_visible(True)
