"""The ways to evaluate a retrieval that are compared: winnow, pytorch-metric-learning with faiss, plain torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from winnow.evaluation import retrieval_metrics

AGAINST = "pytorch-metric-learning"
METRICS = ("P@1", "P@R", "MAP@R")


@dataclass(frozen=True)
class Task:
    """What is to be judged; a task without a gallery is a search of each query among all the others."""

    queries: Tensor
    query_labels: Tensor
    gallery: Tensor | None = None
    gallery_labels: Tensor | None = None


Rival = Callable[[Task], dict[str, float]]
"""Returns the metrics of a task."""


def rivals(device: torch.device) -> tuple[dict[str, Rival], list[str]]:
    """Return the rivals that can work on a device, and a note on each that cannot."""
    found: dict[str, Rival] = {"winnow": winnow}
    notes: list[str] = []
    if find_spec("pytorch_metric_learning") is None or find_spec("faiss") is None:
        notes.append("pytorch-metric-learning or faiss is not installed: left out (pip install winnow-dml[test])")
    elif device.type == "cuda" and not _faiss_on_gpu():
        notes.append("faiss is built without GPU support: pytorch-metric-learning is left out on the GPU")
    else:
        found[AGAINST] = pytorch_metric_learning
    found["torch"] = plain_torch
    return found, notes


def winnow(task: Task) -> dict[str, float]:
    """Exact evaluation by winnow, of all its metrics."""
    found = retrieval_metrics(task.queries, task.query_labels, gallery=task.gallery, gallery_labels=task.gallery_labels)
    return {name: found[name] for name in METRICS}


def pytorch_metric_learning(task: Task) -> dict[str, float]:
    """The `AccuracyCalculator` of pytorch-metric-learning with its default search, a flat index of faiss."""
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator  # type: ignore[import-untyped]

    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    judge: Any = AccuracyCalculator(include=names, k="max_bin_count", device=task.queries.device)
    found = judge.get_accuracy(task.queries, task.query_labels, task.gallery, task.gallery_labels)
    return {ours: float(found[theirs]) for ours, theirs in zip(METRICS, names, strict=True)}


def plain_torch(task: Task) -> dict[str, float]:
    """What one writes by hand: a matrix product and a top-k of some queries after the other, as deep as any needs.

    Unlike the others it has no answer for ties, and memory that grows with the references times the rows at once.
    """
    queries, labels = task.queries, task.query_labels
    own = task.gallery is None or task.gallery_labels is None
    references = queries if task.gallery is None else task.gallery
    reference_labels = labels if task.gallery_labels is None else task.gallery_labels
    relevant = (torch.bincount(reference_labels, minlength=int(labels.max()) + 1))[labels] - int(own)
    depth = int(relevant.max())
    norms = references.square().sum(dim=1)
    ranks = torch.arange(1, depth + 1, device=queries.device)
    sums = torch.zeros(3, dtype=torch.float64, device=queries.device)
    size = 4096 if queries.is_cuda else 512
    for start in range(0, len(queries), size):
        rows = slice(start, start + size)
        squares = torch.addmm(norms, queries[rows], references.T, alpha=-2)
        if own:
            squares.diagonal(start).fill_(torch.inf)
        at = squares.topk(depth, dim=1, largest=False).indices
        counted = (reference_labels[at] == labels[rows, None]) & (ranks <= relevant[rows, None])
        total = relevant[rows].clamp(min=1)
        precision = counted.cumsum(dim=1) / ranks
        values = (counted[:, 0], counted.sum(dim=1) / total, (precision * counted).sum(dim=1) / total)
        sums += torch.stack([value.double().sum() for value in values])
    count = int((relevant > 0).sum())
    return {name: float(value) / count for name, value in zip(METRICS, sums.tolist(), strict=True)}


def _faiss_on_gpu() -> bool:
    import faiss

    return hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0
