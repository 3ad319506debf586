"""Figures of grids: bars, curves with seed bands, heat maps, and main effects."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from winnow.report.style import INK, MUTED, method_colors, new_figure, styled
from winnow.studies.runner import Runs
from winnow.studies.scores import MissingScoreError, main_effects
from winnow.studies.spec import Bars, Curve, Effects, GridStudy, Heatmap, Measurement, Variant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Lines = Mapping[str, Mapping[float, str]]
"""For each line, the value of the axis to the name of the variant."""


def draw_grid(study: GridStudy, measured: Measurement) -> Figure:
    """Draw the figure that a grid asks for."""
    found: Runs = measured.artifacts["runs"]
    variants, metric, spec = measured.variants, study.metric, study.figure
    if isinstance(spec, Curve):
        return curve_figure(spec, variants, found, study.title, metric)
    if isinstance(spec, Heatmap):
        return heatmap_figure(spec, variants, found, metric)
    if isinstance(spec, Effects):
        return effects_figure(spec, variants, found, metric)
    return bar_figure(spec, variants, found, study.title, metric)


def percents(found: Runs, name: str, metric: str) -> list[float]:
    """Return a metric of a variant's runs in percent."""
    return [run.percent(metric) for run in found.get(name, ())]


@styled
def bar_figure(spec: Bars, variants: Sequence[Variant], found: Runs, title: str, metric: str = "MAP@R") -> Figure:
    """Draw a dot per variant, the highest of each group first: mean, a whisker for the std, and a mark for each seed.

    The band of a group is the seed noise of its first variant: mean ± std.
    """
    groups: dict[str, list[Variant]] = {}
    for one in variants:
        if found.get(one.name):
            groups.setdefault(one.group, []).append(one)
    means = {one.name: statistics.mean(percents(found, one.name, metric)) for each in groups.values() for one in each}
    shown = [one for each in groups.values() for one in sorted(each, key=lambda one: -means[one.name])]
    figure = new_figure(5.6, 1.1 + 0.25 * len(shown))
    axes = figure.subplots()
    colors = method_colors(groups)
    for group, members in groups.items():
        values = percents(found, members[0].name, metric)
        if len(values) > 1:
            mean, std = statistics.mean(values), statistics.stdev(values)
            rows = [position for position, one in enumerate(shown) if one.group == group]
            band = [rows[0] - 0.5, rows[-1] + 0.5]
            axes.fill_betweenx(band, mean - std, mean + std, color=colors[group], alpha=0.25, linewidth=0)
    for position, one in enumerate(shown):
        values = percents(found, one.name, metric)
        std = statistics.stdev(values) if len(values) > 1 else 0.0
        color = colors[one.group]
        axes.errorbar(means[one.name], position, xerr=std, fmt="o", color=color, markersize=5.5, linewidth=1.6)
        axes.plot(values, [position] * len(values), "|", color=INK, markersize=6, markeredgewidth=0.8)
    axes.set_yticks(range(len(shown)), [one.name for one in shown])
    axes.set_ylim(max(len(shown), 1) - 0.4, -0.6)  # from the top down
    axes.set_xlim(left=0)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    axes.set_xlabel(f"{metric} on test classes (%)")
    axes.set_title(title)
    if len(colors) > 1:
        handles = [axes.plot([], [], "o", color=color)[0] for color in colors.values()]
        # Below the axes, because every line may be long.
        figure.legend(handles, list(colors), loc="outside lower center", ncols=min(len(colors), 4), fontsize=8)
    return figure


@styled
def curve_figure(
    spec: Curve, variants: Sequence[Variant], found: Runs, title: str, metric: str = "MAP@R"
) -> Figure:  # fmt: skip
    """Draw a line per group over `Variant.x`, and its baseline dashed."""
    figure = new_figure(6.0, 3.6)
    axes = figure.subplots()
    groups = dict.fromkeys(one.group for one in variants if one.x is not None)
    lines = {
        group: {one.x: one.name for one in variants if one.group == group and one.x is not None} for group in groups
    }
    baselines = {group: spec.baseline.format(group=group) for group in groups} if spec.baseline else {}
    shared = len(set(baselines.values())) == 1  # one baseline of several lines has a color of its own
    colors = method_colors([*dict.fromkeys(baselines.values()), *lines] if shared else lines)
    draw_curves(axes, found, lines, colors, metric)
    for group, name in {name: (group, name) for group, name in baselines.items()}.values():
        if found.get(name):
            level = statistics.mean(percents(found, name, metric))
            color = colors[name if shared else group]
            axes.axhline(level, color=color, linestyle=(0, (4, 3)), linewidth=1, label=name)
    finish_axis(axes, spec.x, sorted({x for line in lines.values() for x in line}), log=spec.log)
    axes.set_title(f"{title}: {metric} on test classes (%)")
    axes.legend(fontsize=8)
    return figure


def draw_curves(
    axes: Axes, found: Runs, lines: Lines, colors: Mapping[str, str], metric: str = "MAP@R"
) -> None:  # fmt: skip
    """Draw a line, and a band of one standard deviation around it, for each name; values without runs are left out."""
    for name, by_value in lines.items():
        shown = {value: percents(found, variant, metric) for value, variant in by_value.items() if found.get(variant)}
        mean = np.array([statistics.mean(each) for each in shown.values()])
        std = np.array([statistics.stdev(each) if len(each) > 1 else 0.0 for each in shown.values()])
        axes.plot(list(shown), mean, "o-", color=colors[name], markersize=3.5, label=name)
        axes.fill_between(list(shown), mean - std, mean + std, color=colors[name], alpha=0.15, linewidth=0)


def finish_axis(axes: Axes, label: str, ticks: Sequence[float], *, log: bool = False) -> None:
    """Label the x axis, with a tick at every value."""
    if log:
        axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(label)


@styled
def heatmap_figure(spec: Heatmap, variants: Sequence[Variant], found: Runs, metric: str = "MAP@R") -> Figure:
    """Draw a map per group; cells without runs stay empty."""
    groups: dict[str, dict[tuple[float, float], float]] = {}
    for one in variants:
        if one.x is not None and one.y is not None and found.get(one.name):
            groups.setdefault(one.group, {})[one.y, one.x] = statistics.mean(percents(found, one.name, metric))
    figure = new_figure(3.7 * max(len(groups), 1), 3.3)
    for position, (group, grid) in enumerate(groups.items()):
        axes = figure.add_subplot(1, len(groups), position + 1)
        down, across = (sorted({key[i] for key in grid}) for i in (0, 1))
        table = np.full((len(down), len(across)), np.nan)
        for (row, column), value in grid.items():
            table[down.index(row), across.index(column)] = value
        axes.imshow(table, cmap="cividis", aspect="auto")
        middle = (np.nanmin(table) + np.nanmax(table)) / 2
        for (i, j), value in np.ndenumerate(table):
            if np.isfinite(value):
                color = INK if value > middle else "white"
                axes.text(j, i, f"{value:.1f}", ha="center", va="center", color=color, fontsize=8)
        axes.set_xticks(range(len(across)), [f"{one:g}" for one in across])
        axes.set_yticks(range(len(down)), [f"{one:g}" for one in down])
        axes.set_xlabel(spec.x, color=MUTED)
        axes.set_ylabel(spec.y, color=MUTED)
        axes.grid(False)
        axes.set_title(f"{group}: {metric} (%)")
    return figure


@styled
def effects_figure(spec: Effects, variants: Sequence[Variant], found: Runs, metric: str = "MAP@R") -> Figure:
    """Draw main effects per group, the published ones next to ours."""
    groups = list(dict.fromkeys(one.group for one in variants))
    figure = new_figure(3.6 * len(groups), 3.0)
    colors = method_colors(("published", "ours"))
    for position, group in enumerate(groups):
        axes = figure.add_subplot(1, len(groups), position + 1)
        members = [one for one in variants if one.group == group]
        published = {one.name: one.published[spec.published] for one in members if spec.published in one.published}
        ours = {one.name: statistics.mean(percents(found, one.name, metric)) for one in members if found.get(one.name)}
        for shift, (name, values) in enumerate((("published", published), ("ours", ours))):
            try:
                effects = main_effects(members, values, spec.factors)
            except MissingScoreError:
                continue
            places = [number + 0.4 * shift - 0.2 for number in range(len(effects))]
            axes.bar(places, list(effects.values()), 0.38, color=colors[name], label=name)
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.set_xticks(range(len(spec.factors)), list(spec.factors))
        axes.set_title(f"{group}: from low to high, points of {metric}")
        axes.legend(fontsize=8)
    return figure
