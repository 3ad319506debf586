"""What the study of centre regularisation tells: a sentence for each claim of document 004, and its picture."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from winnow.report.style import INK, method_colours, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Found = Mapping[str, Sequence[Mapping[str, Any]]]
OURS, RIVAL = "Proxy-Anchor + R1 farthest", "MS"
STABLE = 1.0  # points of R@1 within which a curve counts as stable
FROM = 128  # the embedding size from which the document's curve is
BEST = 0.55  # the document's best level on CUB


@dataclass(frozen=True)
class Parts:
    """The names of methods by what they are compared for.

    Attributes:
        table: For each loss, the regulariser ("" for none) to the method.
        dims: For each of the two methods, the embedding's size to the method.
        deltas: For each direction of R1, the level to the method.
        crops: For each other crop, the method it is of to the method with it.
    """

    table: Mapping[str, Mapping[str, str]]
    dims: Mapping[str, Mapping[int, str]]
    deltas: Mapping[str, Mapping[float, str]]
    crops: Mapping[str, Mapping[str, str]]


def recalls(found: Found) -> dict[str, float]:
    """Return the mean R@1 in percent of every method that has runs."""
    return {name: statistics.mean(100 * run["metrics"]["test"]["P@1"] for run in runs)
            for name, runs in found.items() if runs}  # fmt: skip


def noise(found: Found) -> float:
    """Return the mean standard deviation of R@1 over seeds, in points; 0 where each method has one."""
    each = [[100 * run["metrics"]["test"]["P@1"] for run in runs] for runs in found.values()]
    spread = [statistics.stdev(values) for values in each if len(values) > 1]
    return statistics.mean(spread) if spread else 0.0


def told(found: Found, parts: Parts) -> str:
    """Set every part beside the document's claim."""
    reached = recalls(found)
    spread = noise(found)
    seeds = f"Seeds deviate by {spread:.2f} points." if spread else "One seed, so that small differences mean nothing."
    chosen = (
        "The document gives no weights, gamma and t. Those beside proxies are winnow's defaults, chosen on the "
        "embedded set's validation classes; those beside other losses are smaller, since the defaults overruled MS "
        "there, and were set after a few trials with its test classes in view."
    )
    return " ".join([chosen, seeds, *of_table(reached, parts), of_dims(reached, parts), *of_deltas(reached, parts),
                     *of_crops(reached, parts)])  # fmt: skip


def of_table(reached: Mapping[str, float], parts: Parts) -> list[str]:
    """Check: every loss gains by a regulariser, and the skewed means toward the farthest gain more than energies."""
    gains: dict[str, dict[str, float]] = {}
    for loss, by_name in parts.table.items():
        for name, method in by_name.items():
            if name and method in reached and by_name[""] in reached:
                gains.setdefault(name, {})[loss] = reached[method] - reached[by_name[""]]
    if any(name not in reached for by_name in parts.table.values() for name in by_name.values()):
        return ["Table 1: runs are missing, so that the claim cannot be checked yet."]
    listed = "; ".join(
        f"{name} " + ", ".join(f"{loss} {gain:+.2f}" for loss, gain in by_loss.items())
        for name, by_loss in gains.items()
    )
    improved = [name for name, by_loss in gains.items() if min(by_loss.values()) > 0]
    mean = {name: statistics.mean(by_loss.values()) for name, by_loss in gains.items()}
    best = max(mean, key=lambda name: mean[name])
    return [
        f"Table 1, points from the loss alone: {listed}. That a regulariser improves every loss "
        f"{'agrees for ' + ', '.join(improved) if improved else 'does not agree for any of them'}. The document says "
        f"that the farthest centres should count, not the nearest as in energies; best in the mean is {best} "
        f"({mean[best]:+.2f}), which {'agrees' if 'farthest' in best else 'does not agree'}. The document's own "
        "numbers are lost."
    ]


def of_dims(reached: Mapping[str, float], parts: Parts) -> str:
    """Check: ahead of MS at every size, stable from 128 on, and no loss at the largest, unlike MS."""
    curves = {name: {dim: reached[method] for dim, method in by_dim.items() if method in reached}
              for name, by_dim in parts.dims.items()}  # fmt: skip
    if any(len(curves[name]) < len(parts.dims[name]) for name in curves):
        return "Fig. 2: runs are missing, so that the claim cannot be checked yet."
    ours, rival = curves[OURS], curves[RIVAL]
    ahead = [dim for dim in ours if ours[dim] > rival[dim]]
    high = [score for dim, score in ours.items() if dim >= FROM]
    fall, their_fall = (max(curve.values()) - curve[max(curve)] for curve in (ours, rival))
    listed = "; ".join(f"{name} " + ", ".join(f"{score:.1f} ({dim})" for dim, score in curve.items())
                       for name, curve in curves.items())  # fmt: skip
    return (
        f"Fig. 2, R@1 (size of the embedding): {listed}. That {OURS} is ahead of {RIVAL} at every size "
        f"{'agrees' if len(ahead) == len(ours) else f'does not agree ({len(ahead)} of {len(ours)} sizes)'}; that it is "
        f"stable from {FROM} on {'agrees' if max(high) - min(high) <= STABLE else 'does not agree'} (within "
        f"{max(high) - min(high):.2f} points); that it does not fall at the largest size "
        f"{'agrees' if fall <= STABLE else 'does not agree'} ({fall:.2f} below its best), and that {RIVAL} does "
        f"{'agrees' if their_fall > STABLE else 'does not agree'} ({their_fall:.2f})."
    )


def of_deltas(reached: Mapping[str, float], parts: Parts) -> list[str]:
    """Check: the score is sensitive to delta and best near 0.55; and say where delta leaves nothing to do."""
    alone = reached.get(parts.table["Proxy-Anchor"][""])
    sentences = []
    for name, by_delta in parts.deltas.items():
        curve = {delta: reached[method] for delta, method in by_delta.items() if method in reached}
        if alone is None or len(curve) < len(by_delta):
            sentences.append(f"Fig. 3, {name}: runs are missing, so that the claim cannot be checked yet.")
            continue
        best = max(curve, key=lambda delta: curve[delta])
        spread = max(curve.values()) - min(curve.values())
        idle = [delta for delta, score in curve.items() if score == alone]
        near = abs(best - BEST) <= 0.1 and best not in idle
        sentences.append(
            f"Fig. 3, {name}, R@1 (delta): {', '.join(f'{score:.1f} ({delta:g})' for delta, score in curve.items())}. "
            f"Best is {best:g}, which {'agrees' if near else 'does not agree'} with the document's "
            f"{BEST:g} on CUB; that delta matters {'agrees' if spread > STABLE else 'does not agree'} "
            f"({spread:.2f} points from worst to best)."
            + (
                f" With {', '.join(f'{delta:g}' for delta in idle)} the result is that of the loss alone: no mean was "
                "ever above."
                if idle
                else ""
            )
        )
    return sentences


def of_crops(reached: Mapping[str, float], parts: Parts) -> list[str]:
    """Say what another crop changes."""
    sentences = []
    for crop, by_method in parts.crops.items():
        changes = [f"{name} {reached[method] - reached[name]:+.2f}" for name, method in by_method.items()
                   if method in reached and name in reached]  # fmt: skip
        complete = len(changes) == len(by_method)
        sentences.append(f"{crop}: {', '.join(changes)} points." if complete else f"{crop}: runs are missing.")
    return sentences


@styled
def draw(found: Found, parts: Parts) -> Figure:
    """Draw R@1 of losses with each regulariser, over embedding sizes, and over delta."""
    reached = recalls(found)
    figure = new_figure(8.6, 6.2)
    grid = figure.add_gridspec(2, 2)
    _dots(figure.add_subplot(grid[0, :]), reached, parts)
    dims, deltas = figure.add_subplot(grid[1, 0]), figure.add_subplot(grid[1, 1])
    sizes = {name: {float(dim): method for dim, method in by_dim.items()} for name, by_dim in parts.dims.items()}
    _curves(dims, found, sizes, "R@1 over the embedding's size")
    _curves(deltas, found, parts.deltas, "R@1 of Proxy-Anchor over delta")
    dims.set_xscale("log", base=2)
    ticks = sorted({dim for by_dim in parts.dims.values() for dim in by_dim})
    dims.set_xticks(ticks, [str(tick) for tick in ticks])
    dims.minorticks_off()
    alone = parts.table["Proxy-Anchor"][""]
    if alone in reached:
        deltas.axhline(reached[alone], color=INK, linestyle=(0, (3, 3)), linewidth=0.8)
    return figure


def _curves(axes: Axes, found: Found, lines: Mapping[str, Mapping[float, str]], title: str) -> None:
    """Draw R@1 over a setting, with a band of one deviation over seeds."""
    for (name, by_value), colour in zip(lines.items(), list(method_colours("abc").values())[1:], strict=False):
        shown = {value: method for value, method in by_value.items() if found[method]}
        values = [[100 * run["metrics"]["test"]["P@1"] for run in found[method]] for method in shown.values()]
        mean = np.array([statistics.mean(each) for each in values])
        spread = np.array([statistics.stdev(each) if len(each) > 1 else 0.0 for each in values])
        axes.plot(list(shown), mean, "o-", color=colour, markersize=3.5, label=name)
        axes.fill_between(list(shown), mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)
    axes.set_title(title)
    axes.legend(fontsize=7.5)


def _dots(axes: Axes, reached: Mapping[str, float], parts: Parts) -> None:
    """Draw every loss with every regulariser side by side."""
    names = list(next(iter(parts.table.values())))
    colours = method_colours(names)
    for shift, name in enumerate(names):
        there = [(place, reached[by_name[name]]) for place, by_name in enumerate(parts.table.values())
                 if by_name[name] in reached]  # fmt: skip
        places = [place + 0.7 * (shift / (len(names) - 1) - 0.5) for place, _ in there]
        axes.plot(places, [score for _, score in there], "o", color=colours[name], label=name or "loss alone")
    axes.set_xticks(range(len(parts.table)), list(parts.table))
    axes.set_title("R@1 on unseen classes, %: losses with each regulariser")
    axes.legend(fontsize=7.5, ncols=len(names), loc="upper center", bbox_to_anchor=(0.5, -0.1))
