"""The numbers of a comparison: means, spreads, differences paired by seed, and the sentences made of them."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from winnow.report.content import Comparison, Method
from winnow.report.figures import METRICS


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; None where there is only one."""

    mean: float
    std: float | None


@dataclass(frozen=True)
class Difference:
    """A method minus the reference over the seeds both have.

    Attributes:
        mean: Of the differences.
        se: Its standard error; None with a single seed.
        seeds: How many seeds both have.
        ahead: With how many of them the method is better.
    """

    mean: float
    se: float | None
    seeds: int
    ahead: int


def spread(method: Method, metric: str) -> Spread | None:
    """Return a metric's mean and standard deviation over a method's seeds; None if no run has the metric."""
    values = np.array([run.metrics[metric] for run in method.runs if metric in run.metrics], dtype=np.float64)
    if not len(values):
        return None
    return Spread(float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else None)


def paired_difference(method: Method, reference: Method, metric: str) -> Difference | None:
    """Compare two methods seed by seed; None if they share no seed with the metric."""
    theirs = {run.seed: run.metrics[metric] for run in reference.runs if metric in run.metrics}
    ours = {run.seed: run.metrics[metric] for run in method.runs if metric in run.metrics}
    values = np.array([ours[seed] - theirs[seed] for seed in ours if seed in theirs], dtype=np.float64)
    count = len(values)
    if not count:
        return None
    se = float(values.std(ddof=1)) / count**0.5 if count > 1 else None
    return Difference(float(values.mean()), se, count, int((values > 0).sum()))


def percent(value: float) -> str:
    """Write a fraction in per cent, without the sign: 24.1."""
    return f"{100 * value:.1f}"


def signed(value: float) -> str:
    """Write a difference of fractions in percentage points with its sign: +21.6, −0.3, or 0.0."""
    points = f"{100 * value:+.1f}"
    return "0.0" if float(points) == 0 else points.replace("-", "−")


def best_other(comparison: Comparison) -> Method | None:
    """Return the method of the highest mean MAP@R apart from the first, the reference; None if it stands alone."""
    return max(comparison.methods[1:], key=_mean_map, default=None)


def headline(comparison: Comparison) -> str:
    """Return the finding in one sentence that holds whichever method is ahead."""
    reference, other = comparison.methods[0], best_other(comparison)
    theirs = percent(_mean_map(reference))
    if other is None:
        return f"{reference.name} reaches {theirs} % MAP@R on classes it has never seen."
    ours = percent(_mean_map(other))
    if ours == theirs:
        return f"{other.name} and {reference.name} both reach {ours} % MAP@R on classes they have never seen."
    if _mean_map(other) > _mean_map(reference):
        return f"{other.name} reaches {ours} % MAP@R on classes it has never seen; {reference.name} reaches {theirs} %."
    which = ", the best of the others," if len(comparison.methods) > 2 else ""
    return (
        f"{reference.name} stays ahead: it reaches {theirs} % MAP@R on classes it has never seen; "
        f"{other.name}{which} reaches {ours} %."
    )


def evidence(comparison: Comparison) -> str:
    """Return how sure the headline is: the difference paired by seed, and how many seeds agree; may be empty."""
    reference, other = comparison.methods[0], best_other(comparison)
    found = None if other is None else paired_difference(other, reference, "MAP@R")
    if other is None or found is None:
        return ""
    minus = f"{other.name} minus {reference.name}: {signed(found.mean)}"
    if found.se is None:
        return f"{minus} percentage points with the one seed they share, so the spread is not known."
    return (
        f"{minus} ± {percent(found.se)} percentage points (mean and standard error of {found.seeds} differences, "
        f"paired by seed); {other.name} is ahead with {found.ahead} of {found.seeds} seeds."
    )


def metric_names(comparison: Comparison) -> list[str]:
    """Return every metric any run has: the three of the page first, the others in their own order."""
    found = dict.fromkeys(name for method in comparison.methods for run in method.runs for name in run.metrics)
    return [name for name in METRICS if name in found] + [name for name in found if name not in METRICS]


def comparison_table(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the numbers as rows: one per method, after one for the baseline where there is one.

    Each metric has its mean over the seeds under its own name, and under "… std", "… difference" and "… difference se"
    the standard deviation, the difference to the first method paired by seed, and its standard error. All are
    fractions; None where there is no such number.
    """
    metrics = metric_names(comparison)
    rows: list[dict[str, Any]] = []
    if comparison.baseline is not None:
        name, values = comparison.baseline
        rows.append({"method": name, "seeds": 0})
        for metric in metrics:
            rows[-1] |= _columns(metric, None if metric not in values else Spread(values[metric], None), None)
        rows[-1]["seconds"] = None
    for number, method in enumerate(comparison.methods):
        rows.append({"method": method.name, "seeds": len(method.runs)})
        for metric in metrics:
            difference = paired_difference(method, comparison.methods[0], metric) if number else None
            rows[-1] |= _columns(metric, spread(method, metric), difference)
        rows[-1]["seconds"] = float(np.mean([run.seconds for run in method.runs]))
    return rows


def _columns(metric: str, found: Spread | None, difference: Difference | None) -> dict[str, float | None]:
    return {
        metric: found.mean if found else None,
        f"{metric} std": found.std if found else None,
        f"{metric} difference": difference.mean if difference else None,
        f"{metric} difference se": difference.se if difference else None,
    }


def best_rows(rows: list[dict[str, Any]], metric: str) -> set[int]:
    """Return the numbers of the rows that are best in a metric as written, with one decimal; none if all are equal."""
    written = {number: percent(row[metric]) for number, row in enumerate(rows) if row.get(metric) is not None}
    if len(set(written.values())) < 2:
        return set()
    best = max(written.values(), key=float)
    return {number for number, value in written.items() if value == best}


def markdown_table(comparison: Comparison) -> str:
    """Return the page's table in Markdown: per cent, mean ± standard deviation over seeds, the best in bold."""
    rows = comparison_table(comparison)
    metrics = [name for name in METRICS if name in rows[0]]
    reference = comparison.methods[0].name
    head = ["method", "seeds", *(f"{name}, %" for name in metrics), f"MAP@R − {_cell(reference)}, points"]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    best = {name: best_rows(rows, name) for name in metrics}
    for number, row in enumerate(rows):
        cells = [_cell(row["method"]), str(row["seeds"] or "–")]
        for name in metrics:
            text = "–" if row[name] is None else percent(row[name])
            text = f"**{text}**" if number in best[name] else text
            cells.append(text if row[f"{name} std"] is None else f"{text} ± {percent(row[f'{name} std'])}")
        cells.append("–" if row["MAP@R difference"] is None else signed(row["MAP@R difference"]))
        if row["MAP@R difference se"] is not None:
            cells[-1] += f" ± {percent(row['MAP@R difference se'])}"
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def write_csv(path: str | Path, comparison: Comparison) -> None:
    """Write the rows of `comparison_table` as CSV; what does not exist stays empty."""
    rows = comparison_table(comparison)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _mean_map(method: Method) -> float:
    found = spread(method, "MAP@R")
    assert found is not None, "every run has MAP@R"
    return found.mean


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
