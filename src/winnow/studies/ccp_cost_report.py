"""What the study of CCP's cost tells: its text and its picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from winnow.report.style import method_colors, new_figure, styled
from winnow.studies.base import paragraphs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGE = "resnet50"
BATCH = 32
SHORTEST = 100  # steps of the shortest problem: four validations, 25 steps apart
MOST = 10.0  # percent of a step; the documents have 97 ms without CCP and 105 with it, on all sets
PICKING = {"cub": 10.0, "sop": 400.0}
"""Milliseconds that picking proxies takes at most: no more than they add to a step (5 to 10), and 200 to 400."""
PICKED = {
    "cub": "picking new proxies costs nothing on CUB",
    "sop": "picking new proxies costs 200 to 400 ms on SOP and has no significant effect in the long run",
}
THEIR_MEMORY = 60.0  # MB, with their largest model
THEIR_COUNT = "in all as the documents count, MB"
"""The last problem's weights and the proxies, without gradients and moments of these and the best weights."""


def told(rows: list[dict[str, Any]]) -> str:
    """Check: a step takes about 8 % longer, picking proxies up to 400 ms on SOP alone, and memory grows by 60 MB."""
    plain, *others = rows
    items = []
    for row, preset in zip(others, PICKED, strict=True):
        name, longer = f"{row['method']} ({row['proxies']:,} proxies)", 100 * (row["ratio"] - 1)
        picking, theirs = row["picking proxies, ms"], row[THEIR_COUNT]
        items += [
            f"a step takes about 8 % longer: {name} {longer:+.1f} %, {_within(longer, MOST)} (up to {MOST:.0f} %)",
            f"{PICKED[preset]}: {picking:.1f} ms, {_within(picking, PICKING[preset])} (up to "
            f"{PICKING[preset]:.0f} ms), {100 * picking / SHORTEST / plain['step, ms']:+.2f} % of a step at most, with "
            f"a new problem every {SHORTEST} steps",
            f"the last problem's weights and the proxies take {THEIR_MEMORY:.0f} MB at most: {theirs:.1f} MB, "
            f"{_within(theirs, THEIR_MEMORY)}; {row['in all, MB'] - plain['in all, MB']:+.1f} MB in all",
        ]
        if row["new problem, ms"] is not None:
            whole, share = row["new problem, ms"], 100 * row["new problem, ms"] / SHORTEST / plain["step, ms"]
            items.append(
                f"new problems do not count in the long run: {name} takes {whole:.0f} ms for one with its pool "
                f"embedded, {share:+.1f} % of a step if they are as short as can be, {_within(longer + share, MOST)} "
                f"(with the step's own, up to {MOST:.0f} %)"
            )
    begin = f"What the documents say of CCP's cost, beside C2's {plain['step, ms']:.1f} ms a step:"
    return paragraphs(begin, "\n".join(f"- {item}" for item in items))


def _within(value: float, most: float) -> str:
    return "agrees" if value <= most else "does not agree"


def how(network: str, crop: int, device: str) -> str:
    """Say how it was measured, and what the documents cannot have counted."""
    smaller = (
        "" if network == LARGE else " The network is far smaller than theirs, so that proxies weigh more in its time."
    )
    return (
        f"Measured with {network} at {crop} pixels on {'a GPU' if device == 'cuda' else 'a CPU'} (the documents: "
        f"BN-Inception, an RTX 2080 Ti), batches of {BATCH}, random weights, noise for images and made embeddings in "
        "the pools; steps of all methods were timed in turns. A whole new problem, measured on CUB alone, also embeds "
        'its pool; the documents\' milliseconds are of "sampling for proxy initialization" and too few to embed the '
        "59,416 images of SOP's. Memory in all has gradients and moments of the proxies, what a backward pass keeps, "
        f"and the best weights of the problem.{smaller}"
    )


@styled
def draw(rows: list[dict[str, Any]]) -> Figure:
    """Draw the time of a step, with what new problems add, and what memory is made of."""
    figure = new_figure(8.0, 2.9)
    left, right = figure.subplots(1, 2)
    names = [row["method"] for row in rows]
    slate, orange = list(method_colors("ab").values())
    own = [row["step, ms"] for row in rows]
    extra = [(row["picking proxies, ms"] or 0.0) / SHORTEST for row in rows]
    left.barh(names, own, color=slate, height=0.6, label="step")
    left.barh(names, extra, left=own, color=orange, height=0.6, label="share of picking proxies")
    left.set_title("Time of a step, ms")
    parts = [key for key in rows[0] if key.endswith("MB") and not key.startswith("in all")]
    at = [0.0] * len(rows)
    for part, colour in method_colors(parts).items():
        sizes = [row[part] for row in rows]
        right.barh(names, sizes, left=at, color=colour, height=0.6, label=part.removesuffix(", MB"))
        at = [a + b for a, b in zip(at, sizes, strict=True)]
    right.set_title("Memory, MB")
    right.set_yticks(range(len(names)), [""] * len(names))
    for axes in (left, right):
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", visible=True)
        axes.legend(fontsize=7.5, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
    return figure
