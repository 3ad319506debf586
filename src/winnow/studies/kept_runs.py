"""Runs of studies that train in a way of their own: what came of each is kept, so that a broken study goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from winnow.errors import ConfigError, DataError
from winnow.files import write_atomically
from winnow.studies.base import Task
from winnow.training.config import first_difference


@dataclass(frozen=True)
class Kept:
    """What came of a run.

    Attributes:
        numbers: Everything that JSON can hold.
        tensors: What is drawn or measured later.
    """

    numbers: Mapping[str, Any]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


def keep_run(task: Task, name: str, asked: Mapping[str, Any], train: Callable[[], Kept]) -> Kept | None:
    """Train a run, or read what came of it; None where nothing more is to be trained.

    Args:
        task: Has the folder of the runs.
        name: Of the run, and of its file.
        asked: Everything that it depends on, as JSON can hold it; `config` are settings as a run has them.
        train: Trains it.

    Raises:
        ConfigError: for a run that was made with other settings.
    """
    file = Path(task.runs) / f"{name}.safetensors"
    asked = json.loads(json.dumps(asked))  # as it will be read again
    known = _read(file)
    if known is not None:
        made, kept = known
        try:
            same = _same(asked, made)
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}; remove it, or choose another folder (-o)") from None
        if not same:
            raise ConfigError(f"{file} was made with other data or settings: remove it, or choose another folder (-o)")
        return kept
    if task.only_finished:
        return None
    kept = train()
    tensors = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in kept.tensors.items()}
    notes = {"asked": json.dumps(asked), "numbers": json.dumps(kept.numbers)}
    write_atomically(file, lambda partial: save_file(tensors, partial, notes))
    return Kept(kept.numbers, tensors)


def need_run(task: Task, name: str, asked: Mapping[str, Any], train: Callable[[], Kept]) -> Kept:
    """Train a run, or read what came of it, for a study that can say nothing without it.

    Raises:
        ConfigError: for a run that was made with other settings.
        DataError: where nothing more is to be trained.
    """
    kept = keep_run(task, name, asked, train)
    if kept is None:
        raise DataError(
            f"the run '{name}' is not finished, and this study needs all of its runs: leave out --only-finished"
        )
    return kept


def _same(asked: Mapping[str, Any], made: Mapping[str, Any]) -> bool:
    """Whether a run was asked for the same; a config also where it was written before winnow learned some settings."""
    plain = [{key: value for key, value in each.items() if key != "config"} for each in (asked, made)]
    if plain[0] != plain[1] or ("config" in asked) != ("config" in made):
        return False
    return "config" not in asked or first_difference(asked["config"], made["config"]) is None


def _read(file: Path) -> tuple[Mapping[str, Any], Kept] | None:
    """Return what a run was asked for and came to; None where there is nothing, or only a damaged file."""
    try:
        with safe_open(file, framework="pt") as opened:
            notes = opened.metadata()
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118 (it is no mapping)
            return json.loads(notes["asked"]), Kept(json.loads(notes["numbers"]), tensors)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return None
