"""Figures: how training went, and how methods compare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from winnow.errors import DataError
from winnow.report.style import INK, MUTED, UNTRAINED, method_colours, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

History = Sequence[Mapping[str, Any]]
"""A run's log: one entry per validation, with "step" and whatever was measured then."""

METRICS = ("MAP@R", "P@1", "P@R")

_VAL = "val/MAP@R"
_WIDTH = 5.2


@styled
def run_curves(history: History) -> Figure:
    """Show one training run: loss and validation MAP@R against the step, the best step marked.

    Args:
        history: The run's log. Entries without a loss (the one before training) or a validation are passed over.
    """
    loss, val = series_of(history, "loss"), series_of(history, _VAL)
    panels = [(title, series) for title, series in (("Training loss", loss), ("Validation MAP@R, %", val)) if series]
    if not panels:
        raise DataError(f"the history of {len(history)} entries holds neither 'loss' nor '{_VAL}': nothing to draw")
    figure = new_figure(6.4, 0.6 + 2.2 * len(panels))
    grid = figure.add_gridspec(len(panels), 1)
    first: Axes | None = None
    for row, (title, series) in enumerate(panels):
        axes = figure.add_subplot(grid[row, 0])
        if first is None:
            first = axes
        else:
            axes.sharex(first)
        percent = 100 if series is val else 1
        steps, values = list(series), [percent * value for value in series.values()]
        colour = method_colours("12")["2"] if series is val else method_colours("1")["1"]
        axes.plot(steps, values, color=colour, linewidth=1.8, marker="o" if len(steps) < 25 else "", markersize=3)
        axes.set_title(title)
        if series is val:
            axes.set_ylim(0, 1.04 * axes.get_ylim()[1])  # room for the mark
            _mark_best(axes, steps, values, colour)
        step_axis(axes, label=row == len(panels) - 1)
    return figure


def _mark_best(axes: Axes, steps: list[int], values: list[float], colour: str) -> None:
    best = int(np.argmax(values))
    axes.axvline(steps[best], color=colour, linewidth=0.8, linestyle=(0, (3, 3)), zorder=1)
    axes.plot([steps[best]], [values[best]], "o", color=colour, markersize=7, markeredgecolor="white", zorder=4)
    right = steps[best] > (steps[0] + steps[-1]) / 2
    axes.annotate(
        f"best: {values[best]:.1f} % at step {steps[best]:,}", (steps[best], 0),
        xycoords=("data", "axes fraction"), xytext=(-6 if right else 6, 8), textcoords="offset points",
        ha="right" if right else "left", color=INK, fontweight="bold", fontsize=9,
    )  # fmt: skip


def has_validation(runs: Mapping[str, Sequence[History]]) -> bool:
    """Whether any history holds a validation, so that there are training curves to draw."""
    return any(_all_series(each, _VAL) for each in runs.values())


@styled
def training_curves(runs: Mapping[str, Sequence[History]]) -> Figure:
    """Show how methods learn: validation MAP@R above, the loss of each method below.

    A thin line is one seed; a thick one the mean over the steps that all seeds of the method have.

    Args:
        runs: Method name to the histories of its seeds; the first method gets the neutral colour.
    """
    colours = method_colours(runs)
    val = {name: found for name, each in runs.items() if (found := _all_series(each, _VAL))}
    loss = {name: found for name, each in runs.items() if (found := _all_series(each, "loss"))}
    if not val:
        raise DataError(f"no run's history holds '{_VAL}': nothing to draw")
    columns = min(3, max(1, len(loss)))
    rows = -(-len(loss) // columns)
    figure = new_figure(_WIDTH, 3.1 + 1.5 * rows)
    # Parts of their own, so that the names beside the curves take no room from the losses.
    parts = figure.subfigures(2 if loss else 1, 1, squeeze=False, height_ratios=(3.1, 1.5 * rows) if loss else None)
    axes = parts[0, 0].subplots()
    axes.set_title("Validation MAP@R, %")
    ends = {name: _bundle(axes, seeds, colours[name], 100) for name, seeds in val.items()}
    axes.set_ylim(bottom=0)
    axes.margins(x=0.02)
    step_axis(axes, label=not loss)
    _label_ends(axes, ends, colours)
    top = max((value for seeds in loss.values() for series in seeds for value in series.values()), default=1.0)
    for number, (name, seeds) in enumerate(loss.items()):
        small = parts[1, 0].add_subplot(rows, columns, number + 1)
        small.set_xlim(axes.get_xlim())
        _bundle(small, seeds, colours[name], 1)
        small.set_ylim(0, 1.05 * top)
        small.set_title(_short(name), color=colours[name], fontsize=8.5)
        step_axis(small, label=number + columns >= len(loss), ticks=3)
        if number % columns:
            small.tick_params(labelleft=False)
        else:
            small.set_ylabel("loss")
    return figure


def _bundle(axes: Axes, seeds: list[dict[int, float]], colour: str, scale: float) -> float:
    """Draw the seeds of a method and their mean; return where the mean ends."""
    common = sorted(set.intersection(*(set(series) for series in seeds)))
    if len(seeds) > 1:
        for series in seeds:
            axes.plot(list(series), [scale * value for value in series.values()], color=colour, lw=0.7, alpha=0.45)
    mean = [scale * float(np.mean([series[step] for series in seeds])) for step in common]
    axes.plot(common, mean, color=colour, linewidth=2.2, marker="" if len(common) > 1 else "o")
    return mean[-1] if mean else scale * float(np.mean([list(series.values())[-1] for series in seeds]))


def _label_ends(axes: Axes, ends: dict[str, float], colours: dict[str, str]) -> None:
    """Write each method's name at the end of its line, pushed apart where they would overlap."""
    low, high = axes.get_ylim()
    gap = 0.075 * (high - low)
    order = sorted(ends, key=lambda name: ends[name])
    places: list[float] = []
    for name in order:
        places.append(max(ends[name], places[-1] + gap if places else low))
    # Names that were pushed out at the top move down again, and those below with them.
    limit = high
    for number in reversed(range(len(places))):
        places[number] = min(places[number], limit)
        limit = places[number] - gap
    for name, place in zip(order, places, strict=True):
        axes.annotate(
            _short(name), (1, place), xycoords=("axes fraction", "data"), xytext=(5, 0), textcoords="offset points",
            va="center", color=colours[name], fontweight="bold", annotation_clip=False,
        )  # fmt: skip


@styled
def metric_bars(
    results: Mapping[str, Sequence[Mapping[str, float]]],
    *,
    metrics: Sequence[str] = METRICS,
    baseline: tuple[str, Mapping[str, float]] | None = None,
) -> Figure:
    """Show methods as bars per metric: mean over seeds, standard deviation, and every seed as a dot.

    Args:
        results: Method name to the metrics of its seeds, as fractions.
        metrics: Which to show; those that no method has are passed over.
        baseline: Name and metrics of what nothing was trained for; drawn pale, before the methods.
    """
    shown = [name for name in metrics if any(name in one for each in results.values() for one in each)]
    if not shown:
        raise DataError(f"no method has any of the metrics {', '.join(metrics)}: nothing to draw")
    bars = [] if baseline is None else [(baseline[0], [baseline[1]], UNTRAINED)]
    bars += [(name, list(results[name]), colour) for name, colour in method_colours(results).items()]
    figure = new_figure(_WIDTH, 4.6)
    axes = figure.add_subplot(figure.add_gridspec(1, 1)[0, 0])
    width = 0.82 / len(bars)
    top = 0.0
    for number, (name, seeds, colour) in enumerate(bars):
        for group, metric in enumerate(shown):
            values = 100 * np.array([one[metric] for one in seeds if metric in one], dtype=np.float64)
            if not len(values):
                continue
            x = group + (number - (len(bars) - 1) / 2) * width
            spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
            high = max(float(values.mean()) + spread, float(values.max()))
            top = max(top, high)
            axes.bar(x, values.mean(), 0.88 * width, color=colour, label=name if group == 0 else None, zorder=2)
            if len(values) > 1:
                axes.errorbar(x, values.mean(), spread, color=INK, linewidth=1.1, capsize=2.5, zorder=4)
                places = x + np.linspace(-0.22, 0.22, len(values)) * width
                axes.plot(places, values, "o", color="white", markeredgecolor=INK, mew=0.7, markersize=3.6, zorder=3)
            axes.annotate(
                f"{values.mean():.1f}", (x, high), xytext=(0, 4), textcoords="offset points",
                ha="center", va="bottom", fontsize=8.5 if len(bars) < 5 else 7, color=INK,
            )  # fmt: skip
    axes.set_xticks(range(len(shown)), shown, color=INK, fontweight="bold")
    axes.tick_params(axis="x", length=0)
    axes.set_ylim(0, 1.08 * top if top > 0 else 1)
    axes.set_title("Test metrics on unseen classes, %")
    figure.legend(loc="outside lower center", ncols=2 if len(bars) > 3 else len(bars), fontsize=8.5, handlelength=1)
    return figure


def series_of(history: History, key: str) -> dict[int, float]:
    """Return step to value for the entries that hold a finite one, in the order of the steps."""
    found = {int(entry["step"]): float(entry[key]) for entry in history if entry.get(key) is not None}
    return {step: found[step] for step in sorted(found) if math.isfinite(found[step])}


def _all_series(histories: Sequence[History], key: str) -> list[dict[int, float]]:
    return [series for history in histories if (series := series_of(history, key))]


def _short(name: str) -> str:
    """Cut the middle out of a name that would take a figure's room; the page's table has it in full."""
    return name if len(name) <= 20 else f"{name[:10].rstrip()}…{name[-9:].lstrip()}"


def step_axis(axes: Axes, *, label: bool, ticks: int = 6) -> None:
    """Let an axis count steps."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(ticks, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(6 if ticks > 3 else 4, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    if label:
        axes.set_xlabel("training step", color=MUTED)
