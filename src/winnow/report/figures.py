"""Figures of training, methods, CCP subproblems, and hyperparameter search."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from winnow.errors import DataError
from winnow.report.style import (
    GRID,
    GROUND,
    INK,
    MUTED,
    PRETRAINED,
    Look,
    method_color,
    method_looks,
    new_figure,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

History = Sequence[Mapping[str, Any]]
"""Log of a run: one entry per validation, with "step" and the values measured at it."""

METRICS = ("MAP@R", "P@1", "P@R")
"""Metrics that tables and bars show."""

_VAL = "val/MAP@R"
_RAW = "raw/MAP@R"  # of the weights, where the validation is of their average
_TEST, _RAW_TEST = "test/MAP@R", "raw_test/MAP@R"  # the same on the test classes, with `train.test_curve`
_WIDTH = 5.2
_ACCENT = method_color("GSP")
_SECOND = method_color("GMP")


@styled
def run_curves(history: History) -> Figure:
    """Draw training loss, validation and test MAP@R, ZSR, the learning rate, and the turn of CCP's proxies of a run.

    The best validation is marked, and the loss of guessing is a line next to that of ZSR.

    Args:
        history: Log of the run. Entries without a loss or without a validation are skipped in that panel.

    Raises:
        DataError: If no entry has a loss or a validation.
    """
    loss, val, rate = (series_of(history, key) for key in ("loss", _VAL, "lr"))
    titled = {"Training loss": loss, "Validation MAP@R (%)": val, "Test MAP@R (%), not used for selection": series_of(
        history, _TEST)}  # fmt: skip
    panels = [(title, series) for title, series in titled.items() if series]
    zsr, guess, turned = (series_of(history, key) for key in ("zsr", "zsr/guess", "turned"))
    if panels and guess:
        panels.append(("Loss of ZSR; dashed: guessing", zsr))
    if panels and len(set(rate.values())) > 1:
        panels.append(("Learning rate", rate))
    if panels and turned:
        panels.append(("Turn of CCP's proxies since their selection (degrees)", turned))
    raw_of = {title: series_of(history, key) for title, key in zip(titled, ("", _RAW, _RAW_TEST), strict=True)}
    if not panels:
        raise DataError(f"history: none of {len(history)} entries has 'loss' or '{_VAL}'. Pass the log of a run.")
    figure = new_figure(6.4, 0.6 + 2.2 * len(panels))
    all_axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (title, series) in zip(all_axes, panels, strict=True):
        raw = raw_of.get(title)
        scale, color = (100, _ACCENT if series is val else _SECOND) if "MAP@R" in title else (1, MUTED)
        steps, values = list(series), [scale * value for value in series.values()]
        marker = "o" if len(steps) < 25 else ""
        label = "averaged weights" if raw else ""
        axes.plot(steps, values, color=color, linewidth=1.8, marker=marker, markersize=3, label=label)
        axes.set_title(title)
        axes.tick_params(labelbottom=True)
        if series is zsr:
            axes.plot(list(guess), list(guess.values()), color=INK, linewidth=0.8, linestyle=(0, (3, 3)))
        if raw:
            scaled = [scale * value for value in raw.values()]
            axes.plot(list(raw), scaled, color=MUTED, linewidth=1.2, linestyle="--", label="weights")
            axes.legend(fontsize=8, loc="lower right")
        if series is val:
            axes.set_ylim(0, 1.04 * axes.get_ylim()[1])  # room for the mark
            _mark_best(axes, steps, values, color)
        step_axis(axes, label=axes is all_axes[-1])
    return figure


def _mark_best(axes: Axes, steps: list[int], values: list[float], color: str) -> None:
    best = int(np.argmax(values))
    axes.axvline(steps[best], color=color, linewidth=0.8, linestyle=(0, (3, 3)), zorder=1)
    axes.plot([steps[best]], [values[best]], "o", color=color, markersize=7, markeredgecolor=GROUND, zorder=4)
    right = steps[best] > (steps[0] + steps[-1]) / 2
    axes.annotate(
        f"best: {values[best]:.1f}% at step {steps[best]:,}", (steps[best], 0),
        xycoords=("data", "axes fraction"), xytext=(-6 if right else 6, 8), textcoords="offset points",
        ha="right" if right else "left", color=INK, fontweight="bold", fontsize=9,
    )  # fmt: skip


def has_validation(runs: Mapping[str, Sequence[History]]) -> bool:
    """Return whether any history has a validation, which `training_curves` requires."""
    return any(_all_series(each, _VAL) for each in runs.values())


@styled
def training_curves(runs: Mapping[str, Sequence[History]], *, losses: bool = True) -> Figure:
    """Draw validation MAP@R of all methods above the loss of each method.

    Thin lines are single seeds. Thick lines are means over the steps that all seeds of a method have.

    Args:
        runs: Method name to the histories of its seeds.
        losses: Whether to draw the losses.

    Raises:
        DataError: If no history has a validation.
    """
    looks = method_looks(runs)
    val = {name: found for name, each in runs.items() if (found := _all_series(each, _VAL))}
    loss = {name: found for name, each in runs.items() if losses and (found := _all_series(each, "loss"))}
    if not val:
        raise DataError(f"runs: no history has '{_VAL}'. Pass logs of runs with a validation split.")
    columns = min(3, max(1, len(loss)))
    rows = -(-len(loss) // columns)
    figure = new_figure(_WIDTH, 3.1 + 1.5 * rows if loss else 4.6)
    # Subfigures, so names next to the curves take no room from the losses.
    parts = figure.subfigures(2 if loss else 1, 1, squeeze=False, height_ratios=(3.1, 1.5 * rows) if loss else None)
    axes = parts[0, 0].subplots()
    axes.set_title("Validation MAP@R (%)")
    ends = {name: _draw_seeds(axes, seeds, looks[name], 100) for name, seeds in val.items()}
    axes.set_ylim(bottom=0)
    axes.margins(x=0.02)
    step_axis(axes, label=not loss)
    _label_ends(axes, ends, looks)
    top = max((value for seeds in loss.values() for series in seeds for value in series.values()), default=1.0)
    for number, (name, seeds) in enumerate(loss.items()):
        small = parts[1, 0].add_subplot(rows, columns, number + 1)
        small.set_xlim(axes.get_xlim())
        _draw_seeds(small, seeds, looks[name], 1)
        small.set_ylim(0, 1.05 * top)
        small.set_title(_shorten(name), color=looks[name].color, fontsize=8.5)
        step_axis(small, label=number + columns >= len(loss), ticks=3)
        if number % columns:
            small.tick_params(labelleft=False)
        else:
            small.set_ylabel("training loss")
    return figure


@styled
def method_curves(runs: Mapping[str, Sequence[History]], stops: Mapping[str, float]) -> Figure:
    """Draw the validation and the test curve of every method: mean, and a band of one standard deviation over its runs.

    A dotted line is the curve of the weights themselves where the method evaluates their average. Lines end where the
    first run of a method ends. Dots mark the mean step of the selected weights.

    Args:
        runs: Method name to the validations of its runs, with the columns of a recorded run, such as `test MAP@R`.
        stops: Method name to the mean step of the selected weights.

    Raises:
        DataError: If no run has a validation.
    """
    titles = {"MAP@R": "Validation MAP@R (%)", "test MAP@R": "Test MAP@R (%), not used for selection"}
    found = {
        key: {name: series for name, each in runs.items() if (series := _all_series(each, key))}
        for start in titles
        for key in (start, f"raw {start}")
    }
    panels = [key for key in titles if found[key]]
    if not panels:
        raise DataError("runs: no run has a validation. Pass finished runs with their logs.")
    looks = method_looks(runs)
    figure = new_figure(_WIDTH + 1.2, 3.0 * len(panels))
    for axes, key in zip(figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0], panels, strict=True):
        ends = {}
        for name, seeds in found[key].items():
            steps, mean = _draw_band(axes, seeds, looks[name], looks[name].line)
            ends[name] = mean[-1]
            if name in stops and steps[0] <= stops[name] <= steps[-1]:
                axes.plot([stops[name]], np.interp([stops[name]], steps, mean), marker=looks[name].marker,
                          color=looks[name].color, markersize=6, markeredgecolor=GROUND, zorder=4)  # fmt: skip
            if name in found[f"raw {key}"]:
                _draw_band(axes, found[f"raw {key}"][name], looks[name], ":", width=1.2)
        axes.set_title(titles[key])
        axes.margins(x=0.02)
        axes.tick_params(labelbottom=True)
        step_axis(axes, label=key == panels[-1])
        _label_ends(axes, ends, looks)
    return figure


def _draw_band(
    axes: Axes, seeds: list[dict[int, float]], look: Look, line: Any, width: float = 1.8
) -> tuple[list[int], list[float]]:
    """Draw mean and standard deviation over the steps that all seeds have; return these steps and the mean."""
    steps = sorted(set.intersection(*(set(series) for series in seeds)))
    values = 100 * np.array([[series[step] for step in steps] for series in seeds])
    mean = values.mean(axis=0)
    if len(seeds) > 1:
        std = values.std(axis=0, ddof=1)
        axes.fill_between(steps, mean - std, mean + std, color=look.color, alpha=0.15, linewidth=0)
    axes.plot(steps, mean, color=look.color, linewidth=width, linestyle=line)
    return steps, mean.tolist()


def _draw_seeds(axes: Axes, seeds: list[dict[int, float]], look: Look, scale: float) -> float:
    """Draw the seeds of a method and their mean; return the last value of the mean."""
    common = sorted(set.intersection(*(set(series) for series in seeds)))
    if len(seeds) > 1:
        for series in seeds:
            axes.plot(list(series), [scale * value for value in series.values()], color=look.color, lw=0.7, alpha=0.45)
    mean = [scale * float(np.mean([series[step] for series in seeds])) for step in common]
    marks = {"marker": look.marker, "markevery": [-1], "markersize": 5} if len(common) > 1 else {"marker": look.marker}
    axes.plot(common, mean, color=look.color, linewidth=2.0, linestyle=look.line, **marks)
    return mean[-1] if mean else scale * float(np.mean([list(series.values())[-1] for series in seeds]))


def _label_ends(axes: Axes, ends: dict[str, float], looks: Mapping[str, Look]) -> None:
    """Write each method's name at the end of its line, without overlaps."""
    low, high = axes.get_ylim()
    gap = 0.075 * (high - low)
    order = sorted(ends, key=lambda name: ends[name])
    heights: list[float] = []
    for name in order:
        heights.append(max(ends[name], heights[-1] + gap if heights else low))
    limit = high
    for number in reversed(range(len(heights))):  # names above the top move down, and push those below them
        heights[number] = min(heights[number], limit)
        limit = heights[number] - gap
    for name, height in zip(order, heights, strict=True):
        axes.annotate(
            _shorten(name), (1, height), xycoords=("axes fraction", "data"), xytext=(5, 0), textcoords="offset points",
            va="center", color=looks[name].color, fontweight="bold", annotation_clip=False,
        )  # fmt: skip


@styled
def metric_bars(
    results: Mapping[str, Sequence[Mapping[str, float]]],
    *,
    metrics: Sequence[str] = METRICS,
    baseline: tuple[str, Mapping[str, float]] | None = None,
) -> Figure:
    """Draw a bar per method and metric, with mean, std, and a dot for each seed.

    Args:
        results: Method name to the metrics of its seeds, as fractions.
        metrics: Metrics to draw; those that no method has are skipped.
        baseline: Name and metrics of the pretrained backbone, drawn hatched before the methods.

    Raises:
        DataError: If no method has any of the metrics.
    """
    shown = [name for name in metrics if any(name in one for each in results.values() for one in each)]
    if not shown:
        raise DataError(f"results: no method has any of {', '.join(metrics)}. Pass metrics of finished runs.")
    looks = method_looks(results)
    bars = [] if baseline is None else [(baseline[0], [baseline[1]], PRETRAINED, "////")]
    bars += [(name, list(seeds), looks[name].color, "") for name, seeds in results.items()]
    figure = new_figure(_WIDTH, 4.6)
    axes = figure.subplots()
    width = 0.82 / len(bars)
    top = 0.0
    for number, (name, seeds, color, hatch) in enumerate(bars):
        for group, metric in enumerate(shown):
            values = 100 * np.array([one[metric] for one in seeds if metric in one], dtype=np.float64)
            if not len(values):
                continue
            x = group + (number - (len(bars) - 1) / 2) * width
            std = float(values.std(ddof=1)) if len(values) > 1 else 0.0
            high = max(float(values.mean()) + std, float(values.max()))
            top = max(top, high)
            label = name if group == 0 else None
            axes.bar(x, values.mean(), 0.88 * width, color=color, hatch=hatch, label=label, zorder=2)
            if len(values) > 1:
                axes.errorbar(x, values.mean(), std, color=INK, linewidth=1.1, capsize=2.5, zorder=4)
                dots = x + np.linspace(-0.22, 0.22, len(values)) * width
                axes.plot(dots, values, "o", color=GROUND, markeredgecolor=INK, mew=0.7, markersize=3.6, zorder=3)
            axes.annotate(
                f"{values.mean():.1f}", (x, high), xytext=(0, 4), textcoords="offset points",
                ha="center", va="bottom", fontsize=8.5 if len(bars) < 5 else 7, color=INK,
            )  # fmt: skip
    axes.set_xticks(range(len(shown)), shown, color=INK, fontweight="bold")
    axes.tick_params(axis="x", length=0)
    axes.set_ylim(0, 1.08 * top if top > 0 else 1)
    axes.set_title("Metrics on test classes (%)")
    figure.legend(loc="outside lower center", ncols=2 if len(bars) > 3 else len(bars), fontsize=8.5, handlelength=1)
    return figure


@styled
def problem_curves(problems: Sequence[Mapping[str, Any]], history: History, by: str = "MAP@R") -> Figure:
    """Draw the CCP subproblems of a run as bands.

    Curves are validation, with the best of each subproblem, and covering radii.

    A radius falls where a subproblem starts, because proxies are selected from the pool. It grows while proxies and
    embeddings move. Filled dots are radii of selected proxies, open dots radii of converged ones.

    Args:
        problems: `problems` of `result.json`.
        history: Log of the run.
        by: Metric that ends subproblems (`references.monitor`).

    Raises:
        DataError: If there are no subproblems.
    """
    if not problems:
        raise DataError("problems: expected at least one CCP subproblem, got none. Pass the result of a CCP run.")
    figure = new_figure(6.4, 5.0)
    above, below = figure.subplots(2, 1, sharex=True)
    values = series_of(history, f"val/{by}")
    above.plot(list(values), [100 * value for value in values.values()], color=_ACCENT, linewidth=1.6)
    solved = [problem for problem in problems if problem["steps"] > 0]
    above.plot(
        [problem["best_step"] for problem in solved], [100 * problem["best"] for problem in solved],
        "o", color=_ACCENT, markersize=5, markeredgecolor=GROUND, label="best of a subproblem",
    )  # fmt: skip
    above.set_title(f"Validation {by} (%), {len(problems)} subproblems")
    _draw_radii(below, problems)
    for axes in (above, below):
        for problem in problems[1::2]:
            start = problem["first_step"]
            axes.axvspan(start, start + problem["steps"], color=GRID, alpha=0.5, linewidth=0, zorder=0)
        axes.tick_params(labelbottom=True)
        step_axis(axes, label=axes is below)
        axes.legend(fontsize=8, loc="best")
    return figure


def _draw_radii(axes: Axes, problems: Sequence[Mapping[str, Any]]) -> None:
    """Draw the path of the covering radius: selected, converged, selected again."""
    path = [
        (problem["first_step"], problem[key])
        for problem in problems
        for key in ("radius_before", "radius_after")
        if problem[key] is not None
    ]
    axes.plot([step for step, _ in path], [radius for _, radius in path], color=MUTED, linewidth=0.8)
    later = problems[1:]
    axes.plot(
        [problem["first_step"] for problem in later], [problem["radius_before"] for problem in later],
        "o", color=GROUND, markeredgecolor=_SECOND, markersize=5, label="around converged proxies",
    )  # fmt: skip
    axes.plot(
        [problem["first_step"] for problem in problems], [problem["radius_after"] for problem in problems],
        "o", color=_SECOND, markersize=5, label="around selected proxies",
    )  # fmt: skip
    axes.set_title("Covering radius of a class's pool, mean over classes")
    axes.set_ylim(bottom=0)


@styled
def importance_figure(importances: Mapping[str, float]) -> Figure:
    """Draw the PED-ANOVA importance of each setting as a bar."""
    figure = new_figure(6.0, 0.9 + 0.3 * len(importances))
    axes = figure.subplots()
    names = list(importances)
    bars = axes.barh(
        range(len(names)), [100 * importances[name] for name in names], height=0.65, color=method_color("GAP")
    )
    axes.bar_label(bars, fmt="%.0f", padding=3, color=INK, fontsize=8)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    axes.set_xlabel("importance (%)")
    axes.set_title("Importance of settings (PED-ANOVA)")
    return figure


@styled
def contour_figure(
    keys: tuple[str, str], trials: Sequence[tuple[Any, Any]], values: Sequence[float], logarithmic: tuple[bool, bool],
    metric: str,
) -> Figure:  # fmt: skip
    """Draw the result over two settings: a dot per trial, and contours.

    Args:
        keys: Names of the two settings.
        trials: Their values in each trial; texts get one position each.
        values: Validation results in percent.
        logarithmic: Whether each axis is logarithmic.
        metric: Name of the metric.
    """
    from matplotlib.tri import Triangulation

    figure = new_figure(5.6, 4.4)
    axes = figure.subplots()
    x, y = (_positions(axes, "xy"[n], [trial[n] for trial in trials], logarithmic[n]) for n in range(2))
    z = np.asarray(values)
    distinct = len(set(zip(x.tolist(), y.tolist(), strict=True)))
    if distinct >= 4 and np.linalg.matrix_rank(np.stack([x, y, np.ones_like(x)]), tol=1e-9) == 3:
        axes.tricontourf(Triangulation(x, y), z, levels=12, alpha=0.6)
    points = axes.scatter(x, y, c=z, edgecolors=INK, linewidths=0.6, s=26, zorder=3)
    best = int(z.argmax())
    axes.scatter(x[best], y[best], s=120, facecolors="none", edgecolors=INK, linewidths=1.5, zorder=4)
    figure.colorbar(points, ax=axes, label=f"{metric} on validation classes (%)")
    axes.use_sticky_edges = False  # a dot at the edge of the contours is not clipped
    axes.margins(0.05)
    axes.set_xlabel(keys[0])
    axes.set_ylabel(keys[1])
    axes.set_title(f"{keys[0]} and {keys[1]}; circle: best trial")
    return figure


def _positions(axes: Axes, side: str, found: Sequence[Any], log: bool) -> npt.NDArray[np.float64]:
    """Return positions of values along an axis, and set up its ticks.

    A logarithmic axis is a linear axis of logarithms, so contours between trials are straight on it.
    """
    if any(isinstance(value, str) for value in found):
        names = sorted(set(map(str, found)))
        getattr(axes, f"set_{side}ticks")(range(len(names)), names)
        return np.array([names.index(str(value)) for value in found], dtype=float)
    if log:
        getattr(axes, f"{side}axis").set_major_formatter(lambda value, _: f"{10**value:.3g}")
        return np.asarray(np.log10(np.array(found, dtype=float)))
    return np.array(found, dtype=float)


def series_of(history: History, key: str) -> dict[int, float]:
    """Return step to value for the entries with a finite value, ordered by step."""
    found = {int(entry["step"]): float(entry[key]) for entry in history if entry.get(key) is not None}
    return {step: found[step] for step in sorted(found) if math.isfinite(found[step])}


def _all_series(histories: Sequence[History], key: str) -> list[dict[int, float]]:
    return [series for history in histories if (series := series_of(history, key))]


def _shorten(name: str) -> str:
    """Return a name with its middle cut out if it is longer than 20 characters."""
    return name if len(name) <= 20 else f"{name[:10].rstrip()}…{name[-9:].lstrip()}"


def step_axis(axes: Axes, *, label: bool, ticks: int = 6) -> None:
    """Set up an x axis of training steps."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(ticks, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(6 if ticks > 3 else 4, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    if label:
        axes.set_xlabel("training step", color=MUTED)
