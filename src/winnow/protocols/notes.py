"""What makes the numbers of a protocol's table differ from others', in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from winnow.protocols.runs import Task

_PARTS = {"train": "training"}


def notes(task: Task, results: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Tell of weights that were chosen on the test classes, of missing images and of weights that were not trained.

    Args:
        task: What was asked for.
        results: Of each method, those of its finished runs.
    """
    told = []
    if task.protocol.on_test:
        told.append("Weights were chosen on the test classes, as this protocol does: its numbers are too good.")
    missing = missing_images(result["data"] for of_method in results.values() for result in of_method)
    if missing:
        told.append(f"Images are missing: {'; '.join(missing)}.")
    told += [task.note] if task.note else []
    for method, of_method in results.items():
        idle = sum(result["best_step"] == 0 for result in of_method)
        some = "1 run" if len(of_method) == 1 else f"{len(of_method)} runs"
        if idle:
            had = "had its" if idle == 1 else "had their"
            told.append(f"Of the {some} of {method} {idle} {had} best validation before the first step: there the "
                        "network is untrained.")  # fmt: skip
        early = sum(result["best_step"] > 0 and not result.get("prototypes_ready", True) for result in of_method)
        if early:
            have = "has its" if early == 1 else "have their"
            told.append(f"Of the {some} of {method} {early} {have} best weights from before the prototypes were set "
                        "from data: there it is average pooling.")  # fmt: skip
    return told


def missing_images(data: Iterable[Mapping[str, Any]]) -> list[str]:
    """Say how many images each part of the set had in some runs; nothing of parts that lack none.

    Args:
        data: Of every run, what its result says of the data.
    """
    return sorted(
        {
            f"the {_PARTS.get(part, part)} part has {one['found']:,} of {one['expected']:,}"
            for run in data
            for part, one in run["missing"].items()
        }
    )
