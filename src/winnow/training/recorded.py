"""Runs that a result file tells of, made finished runs again: their folders may be gone, or on another machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from winnow.errors import ConfigError, DataError
from winnow.training.config import make_config
from winnow.training.plan import Planned, difference

COLUMNS = {"MAP@R": "val/MAP@R", "P@1": "val/P@1", "lr": "lr"}
"""What a record keeps of each validation, to its name in the log of a run."""

_NAMES = ("method", "seed", "fold", "run", "validations")
"""What a record has beside the run's result."""


def take_in(runs: Sequence[Planned], file: Path) -> int:
    """Make those of some runs finished that a result file tells of and that have no folder; return how many it has.

    A run has its settings, numbers, validations and where it comes from again, but no model and no embeddings.

    Args:
        runs: All that are planned; a record is that of the run with the same choices.
        file: The `table.json` of a protocol, or the JSON file of a study.

    Raises:
        DataError: for another file, and one that does not tell the settings of its runs.
        ConfigError: where it has none of these runs, or one of other settings, before anything is written.
    """
    found = []
    for record in read_records(file):
        run = next((run for run in runs if _is_of(record, run)), None)
        if run is not None:
            other = difference(run.config, make_config(record["config"]), record)
            if other is not None:
                raise ConfigError(f"--from {file}: its run {run.name} was made with another {other}")
            found.append((run, record))
    if not found:
        raise ConfigError(f"--from {file}: it tells of none of the runs that are asked for here")
    for run, record in found:
        if not run.folder.config_file.exists():
            run.folder.create(make_config(record["config"]))
            run.folder.write_history(_history(record.get("validations", {})))
            run.folder.write_result({key: value for key, value in record.items() if key not in _NAMES})
    return len(found)


def read_records(file: Path) -> list[dict[str, Any]]:
    """Return the finished runs that a result file tells of.

    Raises:
        DataError: where it cannot be read, or does not tell their settings.
    """
    try:
        records: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["runs"]
        complete = all({"config", "metrics", "best_step", "steps"} <= set(record) for record in records)
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(
            f"--from {file}: this is not a file with runs, such as the table.json of a protocol or the JSON of a study"
        ) from None
    if not complete:
        raise DataError(f"--from {file}: it does not tell the settings of its runs, so that they cannot be taken in")
    return records


def _is_of(record: Mapping[str, Any], run: Planned) -> bool:
    return all(str(record.get(key)) == choice for key, choice in run.choices.items())


def _history(validations: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Return the lines of a log: the columns of a record, row by row."""
    names = {name: COLUMNS.get(name, name) for name in validations}
    rows = zip(*validations.values(), strict=True)
    return [dict(zip(names.values(), row, strict=True)) for row in rows]
