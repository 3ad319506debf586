"""Time and memory of evaluation: winnow, pytorch-metric-learning, and torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.record import Benchmark, Measurement
from winnow.errors import WinnowError
from winnow.evaluation import retrieval_metrics
from winnow.profiling import measure_all, peak_memory, pick_device

PML = "pytorch-metric-learning"
METRICS = ("P@1", "P@R", "MAP@R")
_LATENT_DIM = 48
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Case:
    """Sizes of one task."""

    queries: int
    dim: int
    per_class: int  # mean number of embeddings per class
    gallery: int = 0  # number of references; 0: the queries themselves

    def __str__(self) -> str:
        among = f" in {self.gallery:,}" if self.gallery else ""
        return f"{self.queries:,}{among} x {self.dim}, classes of {self.per_class:,}"


@dataclass(frozen=True)
class Task:
    """Embeddings to evaluate.

    Without a gallery, each query is searched among all other queries.
    """

    queries: Tensor
    query_labels: Tensor
    gallery: Tensor | None = None
    gallery_labels: Tensor | None = None


Method = Callable[[Task], dict[str, float]]
"""Returns the metrics of a task."""


def run_evaluate(
    *,
    device: str = "auto",
    count: int = 60502,
    dims: Sequence[int] = (128, 512),
    gallery: int = 0,
    deep: int = 20000,
    repeats: int = 3,
    note: Callable[[str], None] = lambda text: None,
) -> Benchmark:
    """Time the evaluation of synthetic embeddings.

    Every method first runs once, for its memory and its metrics, which must agree; then all are timed round-robin.

    Args:
        device: `auto`, `cpu`, or `cuda`.
        count: Number of embeddings, in classes of 5; the default equals Stanford Online Products.
        dims: Dimensions of an embedding, one case each.
        gallery: If not 0, adds a case of `count` queries in a gallery of this size, at the first dimension.
        deep: If not 0, adds a case of this many embeddings in 20 classes, at the first dimension.
        repeats: Runs of every method.
        note: Called with progress messages.

    Raises:
        ConfigError: if the device does not exist.
        WinnowError: if the metrics of two methods differ.
    """
    place = pick_device(device)
    methods, notes = find_methods(place)
    cases = [Case(count, dim, per_class=5) for dim in dims]
    if deep:
        cases.append(Case(deep, dims[0], per_class=max(2, deep // 20)))
    if gallery:
        cases.append(Case(count, dims[0], per_class=5, gallery=gallery))
    rows: list[Measurement] = []
    for case in cases:
        note(f"{case}: {', '.join(methods)}")
        rows += _measure_case(case, methods, place, repeats)
    return Benchmark(
        name=f"evaluate-{place.type}",
        title=f"Exact retrieval evaluation ({place.type})",
        reference=PML if PML in methods else "torch",
        settings={
            "device": place.type,
            "count": count,
            "widths": list(dims),
            "gallery": gallery,
            "deep": deep,
            "repeats": repeats,
        },
        rows=rows,
        notes=notes,
    )


def make_task(case: Case, device: torch.device, seed: int = 0) -> Task:
    """Return unit embeddings about as hard to search as trained ones.

    The members of a class lie around a center in a low-dimensional space, at different distances, and are projected
    into the space of the embeddings, with noise.
    """
    generator = torch.Generator().manual_seed(seed)
    total = case.gallery or case.queries
    classes = max(1, total // case.per_class)
    centers = torch.randn(classes, _LATENT_DIM, generator=generator)
    projection = torch.randn(_LATENT_DIM, case.dim, generator=generator) / _LATENT_DIM**0.5

    def members(number: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(classes, (number,), generator=generator)
        spread = 0.4 + 0.8 * torch.rand(number, 1, generator=generator)
        latent = centers[labels] + spread * torch.randn(number, _LATENT_DIM, generator=generator)
        noise = torch.randn(number, case.dim, generator=generator)
        return normalize((latent @ projection).add_(noise, alpha=0.2), dim=1).to(device), labels.to(device)

    references = members(total)
    return Task(*members(case.queries), *references) if case.gallery else Task(*references)


def find_methods(device: torch.device) -> tuple[dict[str, Method], list[str]]:
    """Return the methods that run on a device, and a note on each that does not."""
    methods: dict[str, Method] = {"winnow": evaluate_with_winnow}
    notes: list[str] = []
    if find_spec("pytorch_metric_learning") is None or find_spec("faiss") is None:
        notes.append("pytorch-metric-learning or faiss is not installed: skipped. Run pip install '.[test]'.")
    elif device.type == "cuda" and not _has_faiss_gpu():
        notes.append("faiss has no GPU support: pytorch-metric-learning is skipped on the GPU.")
    else:
        methods[PML] = evaluate_with_pml
    methods["torch"] = evaluate_with_torch
    return methods, notes


def evaluate_with_winnow(task: Task) -> dict[str, float]:
    """Evaluate exactly, with all metrics of winnow."""
    found = retrieval_metrics(task.queries, task.query_labels, gallery=task.gallery, gallery_labels=task.gallery_labels)
    return {name: found[name] for name in METRICS}


def evaluate_with_pml(task: Task) -> dict[str, float]:
    """Evaluate with `AccuracyCalculator` of pytorch-metric-learning and faiss."""
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator  # type: ignore[import-untyped]

    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    calculator: Any = AccuracyCalculator(include=names, k="max_bin_count", device=task.queries.device)
    found = calculator.get_accuracy(task.queries, task.query_labels, task.gallery, task.gallery_labels)
    return {ours: float(found[theirs]) for ours, theirs in zip(METRICS, names, strict=True)}


def evaluate_with_torch(task: Task) -> dict[str, float]:
    """Evaluate by matrix product and top-k in blocks of queries.

    Every block is as deep as its deepest query requires.

    Unlike the other methods it does not handle ties, and its memory grows with references times rows of a block.
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
        hits = (reference_labels[at] == labels[rows, None]) & (ranks <= relevant[rows, None])
        total = relevant[rows].clamp(min=1)
        precision = hits.cumsum(dim=1) / ranks
        values = (hits[:, 0], hits.sum(dim=1) / total, (precision * hits).sum(dim=1) / total)
        sums += torch.stack([value.double().sum() for value in values])
    count = int((relevant > 0).sum())
    return {name: float(value) / count for name, value in zip(METRICS, sums.tolist(), strict=True)}


def _measure_case(case: Case, methods: Mapping[str, Method], device: torch.device, repeats: int) -> list[Measurement]:
    task = make_task(case, device)
    found: dict[str, dict[str, float]] = {}
    peaks: dict[str, int | None] = {}
    for name, method in methods.items():
        peaks[name] = peak_memory(lambda name=name, method=method: found.update({name: method(task)}), device)  # type: ignore[misc]
    _check_agreement(case, found)
    works = {name: partial(method, task) for name, method in methods.items()}
    timings = measure_all(works, device=device, repeats=repeats, warmup=0)
    facts = {name: {"MAP@R": metrics["MAP@R"]} for name, metrics in found.items()}
    return [Measurement(str(case), name, timings[name], peaks[name], facts[name]) for name in methods]


def _check_agreement(case: Case, found: Mapping[str, Mapping[str, float]]) -> None:
    """Raise if two methods compute different metrics.

    Their times would not be comparable.
    """
    for metric in METRICS:
        values = {name: metrics[metric] for name, metrics in found.items()}
        if not max(values.values()) - min(values.values()) <= _TOLERANCE:
            listed = ", ".join(f"{name} {value:.5f}" for name, value in values.items())
            raise WinnowError(f"{case}: methods disagree on {metric} ({listed}), so their times are not comparable.")


def _has_faiss_gpu() -> bool:
    import faiss

    return hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0
