"""What `table.json` keeps of every run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from winnow.errors import ModelError
from winnow.protocols.runs import Trial
from winnow.training.run_dir import RunDir
from winnow.training.sweep import VALIDATION_COLUMNS

_KEPT = (
    "command", "commit", "winnow", "machine", "versions", "config", "data", "metrics", "steps", "best_step", "seconds",
    "problems", "prototypes_ready",
)  # fmt: skip


def record(trial: Trial, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return where a finished run comes from, its settings, its numbers and how it went."""
    return {
        "method": trial.method, "fold": trial.model, "run": trial.run,
        **{name: result[name] for name in _KEPT if name in result},
        "validations": _validations(trial.planned.run_dir),
    }  # fmt: skip


def _validations(folder: RunDir) -> dict[str, list[float]]:
    """Return how a run went: step and metrics of each validation and, where it is lowered, the learning rate before it.

    Empty where its log is gone: the numbers of the table do not need it.
    """
    try:
        history = folder.read_history()
    except ModelError:
        return {}
    if not history:  # of a run that was taken in from a table that does not tell it
        return {}
    there = {name: key for name, key in VALIDATION_COLUMNS.items() if all(key in entry for entry in history)}
    return {
        "step": [entry["step"] for entry in history],
        **{name: [float(f"{entry[key]:.6g}") for entry in history] for name, key in there.items()},
    }
