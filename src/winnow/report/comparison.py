"""Methods compared on the same data: runs, pictures, and numbers paired by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from PIL import Image

from winnow.errors import DataError
from winnow.report.claims import Estimate, Verdict, estimate, format_interval, format_points, verdict
from winnow.report.figures import METRICS, History
from winnow.report.heatmaps import Weights
from winnow.report.tables import Cell, Column, Styled, to_markdown


@dataclass(frozen=True, eq=False)
class MethodRun:
    """One training run of a method. Runs of two methods with the same seed are paired."""

    seed: int
    metrics: Mapping[str, float]  # of the test classes, as fractions: "MAP@R", "P@1", "P@R", "R@1", ...
    history: History  # log: one entry per validation
    seconds: float


@dataclass(frozen=True, eq=False)
class Method:
    """Method with one run per seed.

    Raises:
        DataError: If a method has no run, a seed occurs twice, or a run has no MAP@R.
    """

    name: str  # such as "GSP + ZSR"
    description: str  # one short sentence
    runs: Sequence[MethodRun]

    def __post_init__(self) -> None:
        if not self.runs:
            raise DataError(f"{self.name}: no runs. Pass at least one finished run.")
        seeds = [run.seed for run in self.runs]
        if len(set(seeds)) < len(seeds):
            raise DataError(f"{self.name}: two runs have the same seed, in {seeds}. Pass one run per seed.")
        for run in self.runs:
            if "MAP@R" not in run.metrics:
                raise DataError(f"{self.name}, seed {run.seed}: metric MAP@R missing. Pass test metrics of the run.")


@dataclass(frozen=True, eq=False)
class Neighbor:
    """Search result of a query."""

    image: Image.Image
    relevant: bool  # has the query's class
    distance: float  # of the embeddings
    name: str
    weights: Weights | None = None  # (h, w) pooling weights, sum 1


@dataclass(frozen=True, eq=False)
class Query:
    """Query image with the nearest neighbors of each method, nearest first."""

    image: Image.Image
    name: str
    neighbors: Mapping[str, Sequence[Neighbor]]  # by method name
    weights: Mapping[str, Weights] = field(default_factory=dict)  # by method name: (h, w), sum 1


@dataclass(frozen=True, eq=False)
class HeatMap:
    """Image with the pooling weights of each method."""

    image: Image.Image
    name: str
    weights: Mapping[str, Weights]  # by method name: (h, w), sum 1


@dataclass(frozen=True, eq=False)
class Prototype:
    """Learned prototype of GSP with the image patches nearest to it."""

    index: int
    fraction: float  # of the pooled weight, mean over images
    patches: Sequence[Image.Image]  # nearest first


@dataclass(frozen=True)
class NextStep:
    """Command to run after reading the report."""

    command: str
    purpose: str  # one short sentence


@dataclass(frozen=True, eq=False)
class Comparison:
    """Methods on the same data; the first one is the reference of differences.

    Raises:
        DataError: If `methods` is empty, or two methods have the same name.
    """

    title: str
    summary: str  # task and data; an empty line starts a new paragraph
    methods: Sequence[Method]
    baseline: tuple[str, Mapping[str, float]] | None = None  # name and test metrics of the pretrained backbone
    tuning: str = ""  # how settings were chosen, and on which classes
    queries: Sequence[Query] = ()
    heatmaps: Sequence[HeatMap] = ()
    prototypes: Sequence[Prototype] = ()
    next_steps: Sequence[NextStep] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the runs, may be nested
    provenance: Mapping[str, Any] = field(default_factory=dict)  # command, commit, machine, versions; may be nested

    def __post_init__(self) -> None:
        if not self.methods:
            raise DataError("methods: expected at least one, got none. Pass the methods to compare.")
        names = [method.name for method in self.methods]
        if len(set(names)) < len(names):
            raise DataError(f"methods: duplicate name in {', '.join(names)}. Give each method its own name.")


def summarize(method: Method, metric: str) -> Estimate | None:
    """Return a metric over the seeds of a method, as a fraction.

    The result is None if no run has the metric.
    """
    values = [run.metrics[metric] for run in method.runs if metric in run.metrics]
    return estimate(values) if values else None


def paired_difference(method: Method, reference: Method, metric: str) -> Estimate | None:
    """Return method minus reference over common seeds, or None without any."""
    theirs = {run.seed: run.metrics[metric] for run in reference.runs if metric in run.metrics}
    ours = {run.seed: run.metrics[metric] for run in method.runs if metric in run.metrics}
    values = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    return estimate(values) if values else None


def mean_map(method: Method) -> float:
    """Return the mean MAP@R over the seeds of a method, as a fraction."""
    return fmean(run.metrics["MAP@R"] for run in method.runs)


def best_other(comparison: Comparison) -> Method | None:
    """Return the method with the highest mean MAP@R except the first one.

    The result is None for a single method.
    """
    return max(comparison.methods[1:], key=mean_map, default=None)


def headline(comparison: Comparison) -> str:
    """Return the result in one sentence.

    It names mean MAP@R of the best other method and of the reference.
    """
    reference, other = comparison.methods[0], best_other(comparison)
    theirs = percent(mean_map(reference))
    if other is None:
        return f"{reference.name} reaches {theirs} MAP@R on test classes"
    return f"{other.name} reaches {percent(mean_map(other))} MAP@R on test classes, {reference.name} {theirs}"


def evidence(comparison: Comparison) -> str:
    """Return the paired difference of the headline with its interval and n.

    The text is empty without a common seed.
    """
    reference, other = comparison.methods[0], best_other(comparison)
    found = None if other is None else paired_difference(other, reference, "MAP@R")
    if other is None or found is None:
        return ""
    points = in_points(found)
    seeds = "1 seed" if found.n == 1 else f"{found.n} seeds"
    text = f"{other.name} − {reference.name}: {format_points(points.mean, 1)} points"
    text = " ".join(filter(None, [text, format_interval(points, 1)])) + f", n = {seeds}."
    return f"{text} Within seed noise." if verdict(points) is Verdict.WITHIN_SEED_NOISE else text


def metric_names(comparison: Comparison) -> list[str]:
    """Return all metrics of the runs, metrics of the tables first."""
    found = dict.fromkeys(name for method in comparison.methods for run in method.runs for name in run.metrics)
    return [name for name in METRICS if name in found] + [name for name in found if name not in METRICS]


def comparison_table(comparison: Comparison) -> list[dict[str, float | str | None]]:
    """Return a row per method, after a row for the baseline if there is one.

    Each metric M has the columns M (mean over seeds), "M std", and "M difference" from the first method, paired by
    seed, with "M difference std", "M difference low", and "M difference high", its 95% interval. Values are fractions;
    None where a number does not exist.
    """
    metrics = metric_names(comparison)
    rows: list[dict[str, float | str | None]] = []
    if comparison.baseline is not None:
        name, values = comparison.baseline
        rows.append({"method": name, "seeds": 0})
        for metric in metrics:
            rows[-1] |= _columns(metric, Estimate(values[metric]) if metric in values else None, None)
        rows[-1]["seconds"] = None
    for number, method in enumerate(comparison.methods):
        rows.append({"method": method.name, "seeds": len(method.runs)})
        for metric in metrics:
            difference = paired_difference(method, comparison.methods[0], metric) if number else None
            rows[-1] |= _columns(metric, summarize(method, metric), difference)
        rows[-1]["seconds"] = fmean(run.seconds for run in method.runs)
    return rows


def _columns(metric: str, found: Estimate | None, difference: Estimate | None) -> dict[str, float | None]:
    return {
        metric: found.mean if found else None,
        f"{metric} std": found.std if found else None,
        f"{metric} difference": difference.mean if difference else None,
        f"{metric} difference std": difference.std if difference else None,
        f"{metric} difference low": difference.low if difference else None,
        f"{metric} difference high": difference.high if difference else None,
    }


def display_table(comparison: Comparison) -> tuple[list[Column], list[dict[str, Cell]]]:
    """Return columns and rows of the results table.

    Cells are percent, mean ± std, and the difference in points.

    A difference is bold if its 95% interval excludes 0.
    """
    reference = comparison.methods[0]
    metrics = [name for name in METRICS if name in metric_names(comparison)]
    columns = [Column("method", align="left"), Column("n"), *(Column(name, f"{name} (%)") for name in metrics)]
    columns.append(Column("difference", f"MAP@R − {reference.name}, points [95% interval]"))
    rows: list[dict[str, Cell]] = []
    if comparison.baseline is not None:
        name, values = comparison.baseline
        cells = {metric: mean_and_std(Estimate(values[metric])) for metric in metrics if metric in values}
        rows.append({"method": name, **cells})
    for method in comparison.methods:
        rows.append({"method": method.name, "n": len(method.runs)})
        rows[-1] |= {metric: mean_and_std(found) for metric in metrics if (found := summarize(method, metric))}
        if method is not reference and (change := paired_difference(method, reference, "MAP@R")):
            rows[-1]["difference"] = difference_cell(change)
    return columns, rows


def table_note(comparison: Comparison) -> str:
    """Return the note below the results table."""
    text = "Test classes; none of them was used for training or validation."
    if all(len(method.runs) == 1 for method in comparison.methods):
        return f"{text} n = 1 seed."
    return (
        f"{text} n: seeds. ±: sample standard deviation over seeds. Brackets: 95% interval of the difference, paired "
        "by seed (Student's t). Bold: the interval excludes 0."
    )


def markdown_report(comparison: Comparison) -> str:
    """Return title, result, table, and the meaning of its numbers in Markdown."""
    lines = [f"# {comparison.title}", f"**{headline(comparison)}.** {evidence(comparison)}".strip()]
    return "\n\n".join([*lines, markdown_table(comparison), table_note(comparison)]) + "\n"


def markdown_table(comparison: Comparison) -> str:
    """Return the results table in Markdown."""
    columns, rows = display_table(comparison)
    return to_markdown(rows, columns)


def mean_and_std(one: Estimate) -> Styled:
    """Return a fraction in percent: 30.02 ± 0.21, or 30.02 for a single run."""
    std = "" if one.std is None else f" ± {100 * one.std:.2f}"
    return Styled(one.mean, f"{100 * one.mean:.2f}{std}")


def difference_cell(one: Estimate) -> Styled:
    """Return a difference of fractions in points, such as +28.37 [27.32, 29.42].

    It is bold if the interval excludes 0.
    """
    points = in_points(one)
    text = " ".join(filter(None, [format_points(points.mean), format_interval(points)]))
    bold = points.low is not None and points.high is not None and (points.low > 0 or points.high < 0)
    return Styled(one.mean, text, bold)


def in_points(one: Estimate) -> Estimate:
    """Return an estimate of fractions in percent, or of differences in points."""
    std, low, high = (None if value is None else 100 * value for value in (one.std, one.low, one.high))
    return Estimate(100 * one.mean, std, low, high, one.n)


def percent(value: float) -> str:
    """Return a fraction in percent with one decimal: 24.1%."""
    return f"{100 * value:.1f}%"
