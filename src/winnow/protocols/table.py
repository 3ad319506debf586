"""From finished runs to the table of a protocol, and to the comparison of its methods in pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from winnow.protocols.documents import Reported, reported
from winnow.protocols.joined import joined_metrics
from winnow.protocols.records import record
from winnow.protocols.runs import Task, Trial
from winnow.protocols.statistics import Spread, Values, mean_of_members, spread
from winnow.protocols.variants import Variant

METRICS = ("MAP@R", "P@1")


@dataclass(frozen=True)
class Cell:
    """A number of the table, in percent.

    Attributes:
        size: Of the embedding that is judged, such as 128 for models alone and 512 for four joined.
        metric: What is measured.
        value: What the protocol reports: a mean, or the best of the runs.
        spread: Mean, deviation and interval over ensembles or runs.
        document: What the documents report.
    """

    size: int
    metric: str
    value: float
    spread: Spread
    document: Reported | None


@dataclass(frozen=True)
class Row:
    """A method of the table; without cells where no run, or not every fold, is finished."""

    method: str
    finished: int
    planned: int
    steps: int | None
    cells: Sequence[Cell]


@dataclass(frozen=True)
class Pair:
    """How much better a method is than another, in points, over the same folds and seeds."""

    method: str
    against: str
    size: int
    metric: str
    difference: Spread
    models: int


@dataclass(frozen=True)
class Table:
    """Everything a protocol's runs say.

    Attributes:
        rows: One for each method.
        pairs: Methods against those they build on.
        missing: Commands of the runs that are not finished.
        records: Every finished run, with where it comes from.
        notes: What all results were made with, such as images that are missing.
    """

    rows: Sequence[Row]
    pairs: Sequence[Pair]
    missing: Sequence[str]
    records: Sequence[Mapping[str, Any]]
    notes: Sequence[str]


def make_table(task: Task, trials: Sequence[Trial]) -> Table:
    """Read what is finished and put it together."""
    results = {(t.method, t.model, t.run): result for t in trials if (result := t.result()) is not None}
    values = {method: _values(task, method, trials, results) for method in task.methods}
    rows = []
    for method in task.methods:
        of_method = [result for (name, _, _), result in results.items() if name == method]
        rows.append(
            Row(
                method,
                len(of_method),
                sum(trial.method == method for trial in trials),
                round(np.mean([result["best_step"] for result in of_method])) if of_method else None,
                _cells(task, method, values[method]),
            )
        )
    pairs = [
        pair
        for method in task.methods[1:]
        for pair in _pairs(task, method, base_of(method, task.methods), trials, results)
    ]
    missing = task.commands([t for t in trials if (t.method, t.model, t.run) not in results])
    records = [record(t, result) for t in trials if (result := results.get((t.method, t.model, t.run))) is not None]
    return Table(rows, pairs, missing, records, _notes(task, results))


def base_of(method: str, methods: Sequence[str]) -> str:
    """Return what a method is compared with: of those it adds to, the one with most of its settings, then additions.

    It is the first of all methods where it adds to none.
    """
    variants = {other: Variant.read(other) for other in methods}
    bases = [other for other in methods if variants[other].parts < Variant.read(method).parts]
    return max(bases, key=lambda base: (len(variants[base].settings), len(variants[base].parts)), default=methods[0])


Results = Mapping[tuple[str, int, int], Mapping[str, Any]]


def _folds(task: Task, method: str, trials: Sequence[Trial], results: Results) -> list[list[Trial]]:
    """Return the finished runs of each fold."""
    return [
        [t for t in trials if (t.method, t.model) == (method, model) and (method, model, t.run) in results]
        for model in range(1, task.protocol.models + 1)
    ]


def _values(
    task: Task, method: str, trials: Sequence[Trial], results: Results
) -> dict[tuple[int, str], Values]:  # fmt: skip
    """Return the numbers of all ensembles (or runs) in percent, by size and metric; none while a fold has no run."""
    folds = _folds(task, method, trials, results)
    if not all(folds):
        return {}
    protocol = task.protocol
    alone = {
        name: [[results[t.method, t.model, t.run]["metrics"][protocol.judged][name] for t in fold] for fold in folds]
        for name in METRICS
    }
    first = results[method, 1, folds[0][0].run]
    size = first["config"]["dim"]
    found = {(size, name): 100 * mean_of_members(values) for name, values in alone.items()}
    if protocol.report == "ensembles":
        places = [[t.planned.folder for t in fold] for fold in folds]
        joined = joined_metrics(
            places, normalise=first["config"]["normalise"], folder=task.folder / Variant.read(method).folder,
            ks=task.target.ks, queries=first["data"].get("queries"),
        )  # fmt: skip
        found |= {(size * len(folds), name): 100 * joined[name] for name in METRICS}
    return found


def _cells(task: Task, method: str, values: Mapping[tuple[int, str], Values]) -> list[Cell]:
    cells = []
    for (size, metric), all_of_them in values.items():
        document = reported(task.protocol, task.target.name, method, task.backbone.name, size, metric)
        over = spread(all_of_them)
        value = over.mean
        if task.protocol.report == "best":  # the run of the best P@1, also for the other metric
            value = float(all_of_them.flat[int(values[size, "P@1"].argmax())])
        cells.append(Cell(size, metric, value, over, document))
    return cells


def _pairs(task: Task, method: str, against: str, trials: Sequence[Trial], results: Results) -> list[Pair]:
    """Compare two methods over the runs both have."""
    both = [
        t
        for t in trials
        if t.method in (method, against) and all((name, t.model, t.run) in results for name in (method, against))
    ]
    one, other = (_values(task, name, both, results) for name in (method, against))
    return [
        Pair(method, against, size, metric, spread(one[size, metric] - other[size, metric]), len(both) // 2)
        for size, metric in one
        if (size, metric) in other
    ]


def _notes(task: Task, results: Results) -> list[str]:
    """Tell what makes these numbers differ from others'."""
    notes = []
    if task.protocol.on_test:
        notes.append("Weights were chosen on the test classes, as this protocol does: its numbers are too good.")
    missing = {
        f"{part} has {one['found']:,} of {one['expected']:,} images." for result in results.values()
        for part, one in result["data"]["missing"].items()
    }  # fmt: skip
    notes += [f"Of the set {text}" for text in sorted(missing)]
    notes += [task.note] if task.note else []
    for method in task.methods:
        of_method = [result for (name, _, _), result in results.items() if name == method]
        idle = sum(result["best_step"] == 0 for result in of_method)
        some = "1 run" if len(of_method) == 1 else f"{len(of_method)} runs"
        if idle:
            had = "had its" if idle == 1 else "had their"
            notes.append(f"Of the {some} of {method} {idle} {had} best validation before the first step: there the "
                         "network is untrained.")  # fmt: skip
        early = sum(result["best_step"] > 0 and not result.get("prototypes_ready", True) for result in of_method)
        if early:
            have = "has its" if early == 1 else "have their"
            notes.append(f"Of the {some} of {method} {early} {have} best weights from before the prototypes were set "
                         "from data: there it is average pooling.")  # fmt: skip
    return notes
