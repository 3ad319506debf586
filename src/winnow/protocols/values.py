"""The numbers of a method's finished runs: of every ensemble, or of every run where there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from winnow.errors import DataError, ModelError
from winnow.protocols.joined import joined_metrics, other_images, told_apart
from winnow.protocols.runs import Task, Trial
from winnow.protocols.statistics import Values, mean_of_members
from winnow.protocols.variants import Variant
from winnow.training.config import make_config

HEADLINE = ("MAP@R", "P@1")
"""What every table shows, and the documents report."""

Results = Mapping[tuple[str, int, int], Mapping[str, Any]]
"""What was measured, by method, model and run."""

Numbers = dict[tuple[int, str], Values]
"""Of all ensembles (or runs), in percent, by size and metric."""


def _folds(task: Task, method: str, trials: Sequence[Trial], results: Results) -> list[list[Trial]]:
    """Return the finished runs of each fold, in order: those of two methods are paired by their place."""
    finished = sorted((t for t in trials if (t.method, t.model, t.run) in results), key=lambda t: t.run)
    return [
        [t for t in finished if (t.method, t.model) == (method, model)] for model in range(1, task.protocol.models + 1)
    ]


def all_values(task: Task, trials: Sequence[Trial], results: Results) -> tuple[dict[str, Numbers], dict[str, str]]:
    """Return the numbers of every method, and why there are none of some whose runs are finished."""
    values: dict[str, Numbers] = {}
    faults: dict[str, str] = {}
    for method in task.methods:
        try:
            values[method] = values_of(task, method, trials, results)
        except (DataError, ModelError) as error:
            values[method], faults[method] = {}, str(error)
    if task.protocol.report == "ensembles":
        owners = {
            t.planned.run_dir: t.method for t in trials if values[t.method] and (t.method, t.model, t.run) in results
        }
        odd = other_images(list(owners))
        for method in {owners[run]: None for run in odd}:
            values[method], faults[method] = {}, told_apart([run for run in odd if owners[run] == method])
    return values, faults


def values_of(
    task: Task, method: str, trials: Sequence[Trial], results: Results
) -> Numbers:  # fmt: skip
    """Return the numbers of all ensembles (or runs) in percent, by size and metric; none while a fold has no run."""
    folds = _folds(task, method, trials, results)
    if not all(folds):
        return {}
    protocol = task.protocol
    judged = [[results[t.method, t.model, t.run]["metrics"][protocol.judged] for t in fold] for fold in folds]
    names = _names([metrics for fold in judged for metrics in fold])
    alone = {name: [[metrics[name] for metrics in fold] for fold in judged] for name in names}
    first = results[method, 1, folds[0][0].run]
    size = first["config"]["dim"]
    found = {(size, name): 100 * mean_of_members(values) for name, values in alone.items()}
    if protocol.report == "ensembles":
        places = [[t.planned.run_dir for t in fold] for fold in folds]
        joined = joined_metrics(
            places, normalize=make_config(first["config"]).normalize, folder=task.folder / Variant.read(method).folder,
            ks=task.target.ks, queries=first["data"].get("queries"),
        )  # fmt: skip
        found |= {(size * len(folds), name): 100 * joined[name] for name in names if name in joined}
    return found


def _names(found: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the metrics that all runs have, those of every table first and R@k by rank."""
    common = set.intersection(*(set(metrics) for metrics in found))
    ranks = sorted((name for name in common if name.startswith("R@")), key=lambda name: int(name[2:]))
    return [*(name for name in (*HEADLINE, "P@R") if name in common), *ranks]
