"""Numbers of whole runs: means over the last third of training, and the columns that records hold."""

from __future__ import annotations

from collections.abc import Sequence

from winnow.errors import ModelError
from winnow.protocols.spec import ProtocolSpec
from winnow.training.results import Metrics, RunResult, ValidationEntry
from winnow.training.run_dir import RunDir
from winnow.training.sweep import recorded_digits

HEADLINE = ("MAP@R", "P@1")
"""Metrics of every table, which the published tables have too."""
LAST_THIRD = "last third "
"""Start of the names of metrics that are means over the last third of training."""
RAW = "raw "
"""Follows `LAST_THIRD` where the weights themselves are meant, and the run evaluates their average."""


def late_metrics(protocol: ProtocolSpec, run_dir: RunDir, result: RunResult) -> Metrics:
    """Return the means over the last third of a run's steps, by names such as `last third MAP@R`.

    They are of the classes that the protocol reports, and empty where a run has no curve of them.
    """
    # Where the test classes validate, the validation curve is that of the test classes.
    group = "val" if protocol.split == "val" or protocol.selects_on_test else "test"
    late = [entry for entry in read_curve(run_dir) if 3 * entry.step > 2 * result.steps]
    weights, raw = ("val", "raw") if group == "val" else ("test", "raw_test")
    return _means(late, weights, LAST_THIRD) | _means(late, raw, LAST_THIRD + RAW)


def _means(entries: Sequence[ValidationEntry], group: str, start: str) -> Metrics:
    """Return the means of the headline metrics of a group; none if an entry lacks one.

    Values have the digits of a record, so a table is the same from run folders and from its own record.
    """
    found: list[Metrics] = [getattr(entry, group) for entry in entries]
    if not found or not all(metric in one for one in found for metric in HEADLINE):
        return {}
    return {f"{start}{metric}": sum(recorded_digits(one[metric]) for one in found) / len(found) for metric in HEADLINE}


def read_curve(run_dir: RunDir) -> list[ValidationEntry]:
    """Return the log of a run; empty without one, as in a run that was imported without its validations."""
    try:
        return run_dir.read_history()
    except ModelError:
        return []


def is_late(metric: str) -> bool:
    """Return whether a metric is a mean over the last third of training."""
    return metric.startswith(LAST_THIRD)
