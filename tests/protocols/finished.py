"""Finished runs of a protocol without any training: what they came to is made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from winnow.protocols import BACKBONES, SETS, Task, find_protocol
from winnow.protocols.runs import Trial
from winnow.training import RunResult

WORDS = ("backbone=resnet20", "dim=4")
LABELS = torch.arange(12) // 3
NAMES = tuple(f"class{label}/{index}.jpg" for index, label in enumerate(LABELS.tolist()))


def plan(protocol: str, folder: Path, *methods: str, target: str = "cub200", **more: Any) -> Task:
    return Task(
        find_protocol(protocol), SETS[target], methods, folder, BACKBONES[more.pop("backbone", "resnet50")],
        words=more.pop("words", WORDS), **more,
    )  # fmt: skip


def finish(
    trial: Trial, map_at_r: float, *, dim: int = 4, names: Sequence[str] = NAMES,
    more: Mapping[str, float] = MappingProxyType({}), data: Mapping[str, Any] = MappingProxyType({"missing": {}}),
) -> None:  # fmt: skip
    """Write what a run that came to some MAP@R leaves; P@1 is twice that."""
    place = trial.planned.run_dir
    place.create(trial.planned.config)
    metrics = {"MAP@R": map_at_r, "P@1": 2 * map_at_r, "P@R": 1.5 * map_at_r, "R@1": 2 * map_at_r, **more}
    embeddings = torch.randn(len(names), 4, generator=torch.Generator().manual_seed(int(map_at_r * 1e6)))
    place.write_embeddings(embeddings, LABELS[: len(names)], names)
    config = {"dim": dim, "normalise": "unit"}
    result = {"metrics": {"test": metrics, "val": metrics}, "best_step": 100, "data": dict(data), "config": config}
    place.write_result(RunResult.from_dict(result))
