"""Finished runs of a protocol without any training, with synthetic metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from winnow.protocols import BACKBONES, DATASETS, ProtocolRequest, ProtocolRun, find_protocol
from winnow.training import RunResult, ValidationEntry

OVERRIDES = ("backbone=resnet20", "dim=4")
LABELS = torch.arange(12) // 3
NAMES = tuple(f"class{label}/{index}.jpg" for index, label in enumerate(LABELS.tolist()))


def make_request(
    protocol: str, folder: Path, *methods: str, dataset: str = "cub200", **more: Any
) -> ProtocolRequest:  # fmt: skip
    return ProtocolRequest(
        find_protocol(protocol), DATASETS[dataset], methods, folder, BACKBONES[more.pop("backbone", "resnet50")],
        overrides=more.pop("overrides", OVERRIDES), **more,
    )  # fmt: skip


def finish(
    run: ProtocolRun, map_at_r: float, *, dim: int = 4, names: Sequence[str] = NAMES,
    more: Mapping[str, float] = MappingProxyType({}), data: Mapping[str, Any] = MappingProxyType({"missing": {}}),
    history: Sequence[ValidationEntry] = (), **result: Any,
) -> None:  # fmt: skip
    """Write what a run with this MAP@R leaves; P@1 is twice that."""
    run_dir = run.planned.run_dir
    run_dir.create(run.planned.config)
    metrics = {"MAP@R": map_at_r, "P@1": 2 * map_at_r, "P@R": 1.5 * map_at_r, "R@1": 2 * map_at_r, **more}
    embeddings = torch.randn(len(names), 4, generator=torch.Generator().manual_seed(int(map_at_r * 1e6)))
    run_dir.write_embeddings(embeddings, LABELS[: len(names)], names)
    config = {"dim": dim, "normalise": "unit"}
    values = {"metrics": {"test": metrics, "val": metrics}, "best_step": 100, "data": dict(data), "config": config}
    if history:
        run_dir.write_history(history)
    run_dir.write_result(RunResult.from_dict({**values, **result}))
