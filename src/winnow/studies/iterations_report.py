"""What the study of iterations tells: its text and its picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from winnow.report.style import method_colors, new_figure, styled
from winnow.studies.base import Row, paragraphs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from winnow.studies.timing import StepTime

TIME, KEPT, STEP = "time, ms", "kept for backward, MB", "training step"
CONVERGED = 1.0  # percent of a weight
LITTLE = 10.0  # percent of a training step, up to which a cost is said to be little
EXACT = 1e-6  # percent: nothing in single precision
CLAIMED = 50  # steps, after which the documents' problems have converged
THEIRS = {(0.5, 0.3), (5.0, 0.3)}  # eps and mu of the documents
THEIR_K = 100
THEIR_STEP = 97.0  # ms, of a batch of 32 with a contrastive loss on an RTX 2080 Ti (section 3.3.2.3)


def told(rows: Sequence[Row], errors: Sequence[Row], device: str, step: StepTime) -> str:
    """Set growth with k, as a share of a training step, and convergence beside what the documents say of both."""
    by_k = {way: {int(row["k"]): row for row in rows if row["way"] == way} for way in ("autodiff", "closed form")}
    auto, closed = by_k.values()
    low, high = min(closed), max(closed)
    usual = THEIR_K if THEIR_K in closed else high
    more = {way: own[high][TIME] - own[low][TIME] for way, own in by_k.items()}
    grown = {way: own[high][KEPT] / own[low][KEPT] for way, own in by_k.items()}
    overhead = closed[usual][TIME]

    def share(ms: float) -> str:
        return f"{_percent(100 * ms / step.ms)} of a training step"

    items = [
        f"- Autodiff costs substantially more with k: from k = {low} to {high} the layer goes from "
        f"{auto[low][TIME]:.2f} to {auto[high][TIME]:.2f} ms, {share(more['autodiff'])} more (substantial: above "
        f"{LITTLE:g} %), and keeps {grown['autodiff']:.1f} times as much for the backward: "
        f"{_agrees(100 * more['autodiff'] > LITTLE * step.ms)}.",
        f"- With the closed form k has a marginal effect: from {closed[low][TIME]:.2f} to {closed[high][TIME]:.2f} ms, "
        f"{share(more['closed form'])} more (marginal: up to {LITTLE:g} %): "
        f"{_agrees(100 * more['closed form'] <= LITTLE * step.ms)}.",
        f"- With the closed form GSP is a little overhead: {overhead:.2f} ms at k = {usual}, {share(overhead)} "
        f"(little: up to {LITTLE:g} %): {_agrees(100 * overhead <= LITTLE * step.ms)}.",
        f"- The closed form keeps nothing of the iterations: {grown['closed form']:.2f} times as much at k = {high} as "
        f"at {low}: {_agrees(grown['closed form'] < 1.05)}.",
        *_told_convergence(errors),
    ]
    return paragraphs("\n".join(items), _told_root(rows, errors, closed[high]), _told_how(device, step, more, overhead))


def _percent(value: float) -> str:
    """Return two digits, or all of those before the point."""
    return f"{value:.0f} %" if value >= 10 else f"{value:.2g} %"


def _agrees(does: bool) -> str:
    return "agrees" if does else "does not agree"


def _told_root(rows: Sequence[Row], errors: Sequence[Row], closed: Row) -> str:
    """Say what the root costs and how exact it and the iteration are."""
    root = next(row for row in rows if row["way"] == "scalar root")
    settled = {(row["eps"], row["mu"]): row["error"] for row in errors if row["k"] == 100}
    off = sorted((pair for pair, error in settled.items() if error > CONVERGED), key=lambda pair: -settled[pair])
    where = "; ".join(f"{settled[pair]:.0f} % at eps {pair[0]:g}, mu {pair[1]:g}" for pair in off[:3])
    gradients = [key for key in closed if key.startswith("gradient error")]

    def wrong(row: Row) -> str:
        return ", ".join(f"{_error(row[key])} {key.removeprefix('gradient error ').removesuffix(', %')}"
                         for key in gradients)  # fmt: skip

    return (
        f"The scalar root, which has no k, takes {root[TIME]:.2f} ms and keeps {root[KEPT]:.2f} MB; {closed['k']} "
        f"steps with the closed form keep {closed[KEPT]:.2f}. Its gradient is off by {wrong(root)}, the closed form's "
        f"after {closed['k']} steps by {wrong(closed)}. After 100 steps no weight is off by more than {CONVERGED:g} % "
        f"of the largest in {len(settled) - len(off)} of {len(settled)} pairs of eps and mu"
        + (f"; the worst are off by {where}: selections that sharp take more." if off else ".")
    )


def _told_how(device: str, step: StepTime, more: Mapping[str, float], overhead: float) -> str:
    """Say what was timed, on what, and what the documents' own step would make of it."""
    beside = (
        f" Of the documents' own step, {THEIR_STEP:g} ms for a batch of 32 on an RTX 2080 Ti (section 3.3.2.3), these "
        f"times of another GPU would be {_percent(100 * more['closed form'] / THEIR_STEP)} and "
        f"{_percent(100 * overhead / THEIR_STEP)}." if device == "cuda" else ""
    )  # fmt: skip
    return (
        f"Times are of {'a GPU' if device == 'cuda' else 'a CPU'}, forward and backward of the pooling layer alone. A "
        f"training step has C2 and average pooling and takes {step.ms:.1f} ms: {step.of}. The documents' Fig. 5.9 is "
        f"of training on CUB-200-2011 with C2.{beside}"
    )


def _error(percent: float) -> str:
    return f"{percent:.2g} %" if percent > EXACT else f"less than {EXACT:g} %"


def _told_convergence(errors: Sequence[Row]) -> list[str]:
    """Check, at the documents' own settings: converged for k > 50; nothing where these were not looked at."""
    own = [row["error"] for row in errors if (row["eps"], row["mu"]) in THEIRS and row["k"] == CLAIMED]
    if not own:
        return []
    return [
        f"- Their problems converge for k > {CLAIMED}: after {CLAIMED} steps with their mu and eps (0.3; 0.5 and 5) no "
        f"weight is off by more than {max(max(own), EXACT):.1g} % of the largest there can be (converged: up to "
        f"{CONVERGED:g} %): {_agrees(max(own) <= CONVERGED)}."
    ]


@styled
def draw(rows: Sequence[Row], errors: Sequence[Row]) -> Figure:
    """Draw time and memory over k for the three ways, and the error of a weight over k for pairs of eps and mu."""
    figure = new_figure(7.6, 5.2)
    grid = figure.add_gridspec(2, 2)
    colours = method_colors(("autodiff", "closed form", "scalar root"))
    for place, key in enumerate((TIME, KEPT)):
        axes = figure.add_subplot(grid[0, place])
        for way, colour in colours.items():
            own = [row for row in rows if row["way"] == way]
            if way == "scalar root":
                axes.axhline(own[0][key], color=colour, linestyle=(0, (4, 2)), label=way)
            else:
                axes.plot(
                    [row["k"] for row in own], [row[key] for row in own], "o-", color=colour, markersize=3, label=way
                )
        axes.set_ylim(bottom=0)
        axes.set_xlabel("iterations k")
        axes.set_title(key)
        axes.legend(fontsize=7.5)
    axes = figure.add_subplot(grid[1, :])
    sharpness = method_colors(dict.fromkeys(f"eps {row['eps']:g}" for row in errors))
    shares = list(dict.fromkeys(row["mu"] for row in errors))
    styles = dict(zip(shares, ("-", "--", "-.", ":"), strict=False))
    for eps, mu in dict.fromkeys((row["eps"], row["mu"]) for row in errors):
        own = [row for row in errors if (row["eps"], row["mu"]) == (eps, mu)]
        values = [max(row["error"], 1e-13) for row in own]
        axes.plot([row["k"] for row in own], values, styles[mu], color=sharpness[f"eps {eps:g}"], linewidth=1.3)
    handles = [axes.plot([], [], color=colour)[0] for colour in sharpness.values()]
    handles += [axes.plot([], [], style, color="black")[0] for style in styles.values()]
    names = [*sharpness, *(f"mu {mu:g}" for mu in styles)]
    axes.legend(handles, names, fontsize=7.5, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("iterations k")
    axes.set_title("worst error of a weight, % of the largest there can be")
    return figure
