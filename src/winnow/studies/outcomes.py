"""What runs of a comparison come to: scores over seeds, how far seeds deviate, and whether that bears out a claim."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnow.studies.base import Findings, Row, Task, paragraphs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from winnow.studies.methods import Comparison

Runs = Sequence[Mapping[str, Any]]
"""Results of a method's runs."""
Found = Mapping[str, Runs]
"""Results by the name of their method."""

MANY = 10  # names in a sentence
_KEPT = ("command", "commit", "machine", "versions", "config", "metrics", "steps", "best_step", "seconds", "problems")


def percent(runs: Runs, metric: str = "MAP@R") -> list[float]:
    """Return a metric on the test classes in percent, of every run."""
    return [100 * run["metrics"]["test"][metric] for run in runs]


def scores(found: Found, metric: str = "MAP@R") -> dict[str, float]:
    """Return every method's mean over its runs in percent, of those with runs."""
    return {name: statistics.mean(percent(runs, metric)) for name, runs in found.items() if runs}


def deviation(found: Found, metric: str = "MAP@R") -> float:
    """Return the largest standard deviation of a method over its seeds, in points; 0 where most have one seed."""
    trained = [percent(runs, metric) for runs in found.values() if runs]
    several = [statistics.stdev(values) for values in trained if len(values) > 1]
    return max(several) if several and 2 * len(several) >= len(trained) else 0.0  # a few do not speak for the others


def verdict(gain: float, deviation: float, *, of: str = "seed") -> str:
    """Say whether a gain that a document reports is one here too.

    Args:
        gain: What was measured; above 0 is what the document says.
        deviation: How much it takes to be told from chance; 0 where next to nothing was done twice.
        of: What was done several times.
    """
    if deviation and abs(gain) <= deviation:
        return f"cannot be told from what {of}s deviate by"
    told = "agrees" if gain > 0 else "does not agree"
    return told if deviation else f"{told} (one {of})"


def without_empty(rows: list[dict[str, Any]], *columns: str) -> list[dict[str, Any]]:
    """Return rows without those of some columns that say nothing in any of them."""
    empty = {column for column in columns if all(row.get(column) in ("", None) for row in rows)}
    return [{key: value for key, value in row.items() if key not in empty} for row in rows]


def lacking(seeds: Sequence[int], runs: Runs) -> str:
    """Say which seeds have no run; nothing where all have one."""
    left = [str(seed) for seed in seeds if seed not in {run["config"]["seed"] for run in runs}]
    return f"seed{'s' * (len(left) > 1)} {', '.join(left)}" if left else ""


def finished(done: int, asked: int, command: str, what: str = "runs") -> str:
    """Say how many runs are in, and what trains the others; nothing where all are."""
    return "" if done >= asked else f"{done} of {asked} {what} are in: `{command}` trains the others."


def records(found: Found) -> list[dict[str, Any]]:
    """Return every run as a study's JSON file keeps it: where it comes from, its settings and its numbers."""
    return [
        {"method": name, "seed": run["config"]["seed"], **{key: run[key] for key in _KEPT if key in run}}
        for name, runs in found.items()
        for run in runs
    ]


def findings(
    task: Task,
    name: str,
    title: str,
    text: str,
    compared: Comparison,
    found: Found,
    figure: Figure,
    rows: Sequence[Row],
) -> Findings:
    """Put together what a comparison found, with the runs behind it."""
    asked = len(compared.seeds) * len(compared.methods)
    trained = sum(map(len, found.values()))
    missing = finished(trained, asked, task.command(name))
    if trained and not all(found.values()):
        without = [name for name, runs in found.items() if not runs]
        missing += f" Without a run, and so not in the table, {'are' if len(without) > 1 else 'is'} {_listed(without)}."
        rows = without_empty([dict(row) for row in rows if row.get("runs") != 0], "missing")
    once = sum(len(runs) == 1 for runs in found.values())
    if once and any(len(runs) > 1 for runs in found.values()):
        some = f"{once} methods have" if once > 1 else "1 method has"
        missing += f" {some} one run{'; what seeds deviate by is that of the others' if deviation(found) else ''}."
    settings = {"small": task.small, "words": list(compared.words), "seeds": list(compared.seeds)}
    if compared.file is not None:
        settings["config"] = Path(compared.file).name
    left = {each.name: lacking(compared.seeds, found[each.name]) for each in compared.methods}
    left = {method: seeds for method, seeds in left.items() if seeds}
    runs = records(found)
    machines = sorted({run["machine"]["gpu"] or run["machine"]["processor"] for run in runs if "machine" in run})
    details = {"missing": left, "trained on": machines, "runs": runs}
    return Findings(title, paragraphs(text, missing.lstrip()), rows, figure, settings, details)


def _listed(names: Sequence[str]) -> str:
    """Return names in a row, not too many of them."""
    more = len(names) - MANY
    return "; ".join(names) if more <= 0 else f"{'; '.join(names[:MANY])} and {more} more"
