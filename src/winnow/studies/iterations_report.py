"""What the study of iterations tells: its paragraph and its picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from winnow.report.style import method_colours, new_figure, styled
from winnow.studies.base import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TIME, KEPT = "time, ms", "kept for backward, MB"
CONVERGED = 1.0  # percent of a weight
LITTLE = 2.0  # times as long, up to which time is said to grow little
EXACT = 1e-6  # percent: nothing in single precision
CLAIMED = 50  # steps, after which the documents' problems have converged
THEIRS = {(0.5, 0.3), (5.0, 0.3)}  # eps and mu of the documents


def told(rows: Sequence[Row], errors: Sequence[Row], device: str) -> str:
    """Set growth with k, and convergence, beside what the documents say of both."""
    root = next(row for row in rows if row["way"] == "scalar root")
    growth = {}
    for way in ("autodiff", "closed form"):
        own = sorted((row for row in rows if row["way"] == way), key=lambda row: int(row["k"]))
        growth[way] = (own[-1][TIME] / own[0][TIME], own[-1][KEPT] / own[0][KEPT], own[0]["k"], own[-1])
    (auto_time, auto_kept, low, last), (time, kept, _, closed) = growth["autodiff"], growth["closed form"]
    high = last["k"]
    ahead = "agrees" if kept < 1.05 < auto_kept and auto_time > time else "does not agree"
    little = "agrees" if time <= LITTLE else "does not agree"
    settled = {(row["eps"], row["mu"]): row["error"] for row in errors if row["k"] == 100}
    off = sorted((pair for pair, error in settled.items() if error > CONVERGED), key=lambda pair: -settled[pair])
    where = "; ".join(f"{settled[pair]:.0f} % at eps {pair[0]:g}, mu {pair[1]:g}" for pair in off[:3])
    gradients = [key for key in closed if key.startswith("gradient error")]

    def wrong(row: Row) -> str:
        return ", ".join(
            f"{_error(row[key])} ({key.removeprefix('gradient error ').removesuffix(', %')})" for key in gradients
        )

    return (
        f"Times are of {'a GPU' if device == 'cuda' else 'a CPU'}. "
        "The documents say that k iterations cost ever more by autodiff, and little more with their closed-form "
        f"gradient. From k = {low} to {high} the time of a forward and backward grows by a factor of {auto_time:.1f} "
        f"with autodiff and {time:.1f} with the closed form, and what is kept for the backward by {auto_kept:.1f} and "
        f"{kept:.2f}. That autodiff costs more and more beside the closed form {ahead}; that k costs this one little "
        f"time {little} (up to a factor of {LITTLE:g}). The scalar root, which has no k, takes "
        f"{root[TIME]:.2f} ms where {high} steps with the closed form take {closed[TIME]:.2f} ms and with autodiff "
        f"{last[TIME]:.2f} ms, and keeps {root[KEPT]:.2f} MB beside {closed[KEPT]:.2f} and {last[KEPT]:.2f}. "
        f"{_told_convergence(errors)}After 100 steps no weight is off by more than {CONVERGED:g} % "
        f"of the largest in {len(settled) - len(off)} of {len(settled)} pairs of eps and mu"
        + (f"; the worst are off by {where}: selections that sharp take more" if off else "")
        + f". The closed form's gradient after {high} steps is off by {wrong(closed)}, the root's by {wrong(root)}."
    )


def _error(percent: float) -> str:
    return f"{percent:.2g} %" if percent > EXACT else f"less than {EXACT:g} %"


def _told_convergence(errors: Sequence[Row]) -> str:
    """Check, at the documents' own settings: converged for k > 50; nothing where these were not looked at."""
    own = [row["error"] for row in errors if (row["eps"], row["mu"]) in THEIRS and row["k"] == CLAIMED]
    if not own:
        return ""
    return (
        f"They also say that their problems converge for k > {CLAIMED}: after {CLAIMED} steps with their mu and eps "
        f"(0.3; 0.5 and 5) no weight is off by more than "
        f"{max(max(own), EXACT):.1g} % of the largest there can be, which "
        f"{'agrees' if max(own) <= CONVERGED else 'does not agree'} (up to {CONVERGED:g} %). "
    )


@styled
def draw(rows: Sequence[Row], errors: Sequence[Row]) -> Figure:
    """Draw time and memory over k for the three ways, and the error of a weight over k for pairs of eps and mu."""
    figure = new_figure(7.6, 5.2)
    grid = figure.add_gridspec(2, 2)
    colours = method_colours(("autodiff", "closed form", "scalar root"))
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
    sharpness = method_colours(dict.fromkeys(f"eps {row['eps']:g}" for row in errors))
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
