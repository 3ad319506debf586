"""What the study of bags of tokens tells: hulls and their overlap, its table, its text and its picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from winnow.functional import convex_hull, hull_overlap
from winnow.report.style import INK, new_figure, styled
from winnow.studies.base import Row, paragraphs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from winnow.studies.tokens import Trained

CLAIM = 70  # points of MAP@R, thesis chapter 6
HULLS = "bags in another class's hull, %"


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
            HULLS: round(100 * mean["overlap"], 1), "steps": round(mean["steps"]),
        })  # fmt: skip
    return rows


def best_of(rows: Sequence[Row], method: str) -> Row:
    """Return the row of the margin that validation bags choose for a method."""
    return max((row for row in rows if row["method"] == method), key=lambda row: float(row["validation"]))


def told(rows: Sequence[Row], bag: int, drawn: Sequence[float]) -> str:
    """Set each method at its best margin beside the documents' claims.

    Args:
        rows: The table.
        bag: Tokens of a bag.
        drawn: The share of bags in another class's hull in the two runs of the picture, GAP's and GSP's.
    """
    gap, gsp = (best_of(rows, name) for name in ("GAP", "GSP"))
    gain = gsp["MAP@R"] - gap["MAP@R"]
    widest = max(
        (other["MAP@R"] - row["MAP@R"], row["margin"]) for row in rows for other in rows
        if (row["method"], other["method"]) == ("GAP", "GSP") and row["margin"] == other["margin"]
    )  # fmt: skip
    hulls = [row[HULLS] for row in (gap, gsp)]
    direction = "agrees" if gain > 0 else "does not agree"
    size, size_there = ("as large as claimed" if each >= 0.9 * CLAIM else "smaller" for each in (gain, widest[0]))
    apart = "agrees" if hulls[1] < 5 < hulls[0] else "agrees in part" if hulls[1] < 0.5 * hulls[0] else "does not agree"
    claims = (
        f"- GSP is {CLAIM} points of MAP@R ahead of GAP: GAP has {gap['MAP@R']} (margin {gap['margin']}) and GSP "
        f"{gsp['MAP@R']} (margin {gsp['margin']}), {gain:+.1f} points: {direction} in direction, the gain is {size}. "
        f"At one and the same margin it is at most {widest[0]:+.1f} points (margin {widest[1]}), {size_there}.\n"
        f"- Class hulls overlap with GAP and are apart with GSP: {hulls[0]:.1f} % of the bags lie in another class's "
        f"hull with GAP and {hulls[1]:.1f} % with GSP: {apart}."
    )
    how = (
        f"Sixteen classes of four learned tokens and four background tokens of all, bags of {bag} of which about half "
        "are background, embedded in the plane, C2, nothing normalised. Loss, dimension, eps and number of prototypes "
        "of the documents' run are not recorded; the margin is chosen for each method by validation bags. Numbers are "
        f"means over seeds; the picture is of the first, with {100 * drawn[0]:.1f} % of the bags in another hull with "
        f"GAP and {100 * drawn[1]:.1f} % with GSP. Its dots are bags in their class's hull, its rings tokens of the "
        "class, its crosses those of the background."
    )
    return paragraphs(claims, how)


def shown(runs: Sequence[Trained]) -> list[Trained]:
    """Return the runs of the picture: the first seed of each method, at the margin that validation chooses for it."""
    rows = table(runs)
    margins = {method: best_of(rows, method)["margin"] for method in dict.fromkeys(run.method for run in runs)}
    return [run for run in runs if run.seed == 0 and run.setting.margin == margins[run.method]]


@styled
def draw(runs: Sequence[Trained]) -> Figure:
    """Draw tokens, bags and hulls of the runs to be shown, under the numbers of the table."""
    figure = new_figure(7.4, 4.6)
    rows = table(runs)
    for place, run in enumerate(shown(runs)):
        axes = figure.add_subplot(1, 2, place + 1)
        scatter(axes, run)
        row = best_of(rows, run.method)
        axes.set_title(f"{run.method}: MAP@R {row['MAP@R']:.1f} %, {row[HULLS]:.1f} % in another hull")
    keys = {"bags in their class's hull": ".", "tokens of the class": "o", "tokens of the background": "x"}
    handles = [figure.axes[0].plot([], [], mark, color=INK, markerfacecolor="none" if mark == "o" else INK)[0]
               for mark in keys.values()]  # fmt: skip
    title = "numbers: means over seeds; drawn: the first seed"
    figure.legend(handles, list(keys), loc="outside lower center", ncols=3, fontsize=8, title=title, title_fontsize=8)
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
