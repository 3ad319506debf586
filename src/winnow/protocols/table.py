"""From finished runs to the table of a protocol, and to the comparison of its methods in pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from winnow.protocols.commands import commands
from winnow.protocols.comparisons import comparisons
from winnow.protocols.documents import Reported, reported
from winnow.protocols.notes import notes
from winnow.protocols.records import record
from winnow.protocols.runs import Task, Trial
from winnow.protocols.statistics import Spread, Values, spread
from winnow.protocols.values import Results, all_values, values_of


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
        faults: Methods that are left out though their runs are finished, and why.
    """

    rows: Sequence[Row]
    pairs: Sequence[Pair]
    missing: Sequence[str]
    records: Sequence[Mapping[str, Any]]
    notes: Sequence[str]
    faults: Mapping[str, str]


def make_table(task: Task, trials: Sequence[Trial]) -> Table:
    """Read what is finished and put it together; what cannot be is left out, and told."""
    results = {(t.method, t.model, t.run): result for t in trials if (result := t.result()) is not None}
    of_methods = {name: [one for key, one in results.items() if key[0] == name] for name in task.methods}
    values, faults = all_values(task, trials, results)
    rows = [
        Row(
            method,
            len(finished),
            sum(trial.method == method for trial in trials),
            round(np.mean([result["best_step"] for result in finished])) if finished else None,
            _cells(task, method, values[method]),
        )
        for method, finished in of_methods.items()
    ]
    pairs = [
        pair
        for method, against in comparisons(task.methods)
        if values[method] and values[against]
        for pair in _pairs(task, method, against, trials, results)
    ]
    missing = commands(task, [t for t in trials if (t.method, t.model, t.run) not in results])
    records = [record(t, result) for t in trials if (result := results.get((t.method, t.model, t.run))) is not None]
    return Table(rows, pairs, missing, records, notes(task, of_methods), faults)


def _cells(task: Task, method: str, values: Mapping[tuple[int, str], Values]) -> list[Cell]:
    cells = []
    for (size, metric), all_of_them in values.items():
        document = reported(task.protocol, task.target.name, method, task.backbone.name, size, metric)
        over = spread(all_of_them).within(0, 100)
        value = over.mean
        if task.protocol.report == "best":  # the run of the best P@1, also for the other metrics
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
    one, other = (values_of(task, name, both, results) for name in (method, against))
    return [
        Pair(method, against, size, metric, spread(one[size, metric] - other[size, metric]), len(both) // 2)
        for size, metric in one
        if (size, metric) in other
    ]
