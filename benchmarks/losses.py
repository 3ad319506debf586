"""Time and memory of losses and center regularizers with very many classes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.record import Benchmark, Measurement
from winnow.losses import LOSSES
from winnow.profiling import Work, capture_graph, measure_all, peak_memory, pick_device
from winnow.regularizers import REGULARIZERS

PML = "pytorch-metric-learning"
REFERENCES_PER_CLASS = {"soft_triple": 2}
"""Losses with several references per class: as many as the paper has for its largest dataset."""

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Returns the loss of queries (Q, d) of labels (Q,) against references (R, d) of labels (R,)."""

_PAIR_LOSSES = {
    "c1": "ContrastiveLoss",
    "c2": "ContrastiveLoss",
    "triplet": "TripletMarginLoss",
    "ms": "MultiSimilarityLoss",
    "margin": "MarginLoss",
    "npair": "NTXentLoss",  # its NPairsLoss takes one pair per class; this is the same softmax over all pairs
    "lifted": "GeneralizedLiftedStructureLoss",
}
_PROXY_LOSSES = {"proxy_anchor": "ProxyAnchorLoss", "proxy_nca": "ProxyNCALoss", "soft_triple": "SoftTripleLoss"}


def run_losses(
    *,
    device: str = "auto",
    classes: int = 11318,
    dim: int = 128,
    batch: int = 128,
    repeats: int = 10,
    note: Callable[[str], None] = lambda text: None,
) -> Benchmark:
    """Time every loss against proxies of all classes, and every regularizer.

    On a GPU each is also replayed from a CUDA graph, as in training.

    Args:
        device: `auto`, `cpu`, or `cuda`.
        classes: Number of classes; the default equals Stanford Online Products.
        dim: Dimension of the embeddings.
        batch: Number of queries, each of another class.
        repeats: Runs of every method.
        note: Called with progress messages.

    Raises:
        ConfigError: if the device does not exist.
    """
    place = pick_device(device)
    rows: list[Measurement] = []
    for name in LOSSES:
        note(name)
        rows += _measure_case(name, _loss_works(name, place, classes, dim, batch), place, repeats)
    for name in REGULARIZERS:
        if name != "none":
            note(name)
            rows += _measure_case(f"{name}, regularizer", _regularizer_works(name, place, classes, dim), place, repeats)
    return Benchmark(
        name=f"losses-{place.type}",
        title=f"Losses of {batch} queries against {classes:,} classes x {dim}, forward and backward ({place.type})",
        reference=PML if any(row.method == PML for row in rows) else "winnow",
        settings={"device": place.type, "classes": classes, "width": dim, "batch": batch, "repeats": repeats},
        rows=rows,
        notes=["Losses of pytorch-metric-learning use default parameters; some select pairs where winnow weights all."],
    )


def pml_loss(name: str, references: Tensor, num_classes: int, per_class: int) -> Loss | None:
    """Return the loss of pytorch-metric-learning with default parameters, or None.

    Args:
        name: Name of the loss in winnow.
        references: Trainable references (R, d), which replace those that the loss owns.
        num_classes: Number of classes of the references.
        per_class: References per class.
    """
    if find_spec("pytorch_metric_learning") is None:
        return None
    from pytorch_metric_learning import losses  # type: ignore[import-untyped]

    if name in _PAIR_LOSSES:
        pair: Any = getattr(losses, _PAIR_LOSSES[name])()
        return lambda queries, labels, others, other_labels: pair(queries, labels, None, others, other_labels)
    if name not in _PROXY_LOSSES:
        return None
    more = {"centers_per_class": per_class} if name == "soft_triple" else {}
    proxy: Any = getattr(losses, _PROXY_LOSSES[name])(
        num_classes=num_classes, embedding_size=references.shape[1], **more
    )
    owned = "fc" if name == "soft_triple" else "proxies"
    # Its matrix is (R, d), or (d, R) for SoftTriple: a view of ours, so both have the same gradients to compute.
    setattr(proxy, owned, nn.Parameter(references.detach().mT if name == "soft_triple" else references.detach()))
    return lambda queries, labels, others, other_labels: proxy(queries, labels)


def _loss_works(name: str, device: torch.device, classes: int, dim: int, batch: int) -> dict[str, Work]:
    """Return callables that compute a loss and its gradients, by method."""
    generator = torch.Generator().manual_seed(0)
    per_class = REFERENCES_PER_CLASS.get(name, 1)
    queries = torch.randn(batch, dim, generator=generator).to(device).requires_grad_()
    labels = torch.randperm(classes, generator=generator)[:batch].to(device)
    references = torch.randn(classes * per_class, dim, generator=generator).to(device).requires_grad_()
    reference_labels = torch.arange(classes, device=device).repeat_interleave(per_class)
    loss = LOSSES.build({"name": name}, num_classes=classes, width=dim, batch=batch).to(device)
    works: dict[str, Work] = {
        "winnow": partial(_backward, lambda: loss(queries, labels, ref_emb=references, ref_labels=reference_labels))
    }
    baseline = pml_loss(name, references, classes, per_class)
    if baseline is not None:
        works[PML] = partial(_backward, lambda: baseline(queries, labels, references, reference_labels))
    return works


def _regularizer_works(name: str, device: torch.device, classes: int, dim: int) -> dict[str, Work]:
    """Return a callable that computes a regularizer of proxies and its gradient."""
    proxies = torch.randn(classes, dim, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
    regularizer = REGULARIZERS.build({"name": name}).to(device)
    return {"winnow": partial(_backward, lambda: regularizer(proxies))}


def _backward(loss: Callable[[], Tensor]) -> None:
    """Compute a loss and its gradients.

    Gradients accumulate, at the same cost for all methods.
    """
    loss().backward()  # type: ignore[no-untyped-call]


def _measure_case(case: str, works: dict[str, Work], device: torch.device, repeats: int) -> list[Measurement]:
    peaks = {}
    for name, work in works.items():
        work()  # the first call allocates the gradients
        peaks[name] = peak_memory(work, device)
    if device.type == "cuda":
        works = {"winnow": works["winnow"], "winnow, replayed": capture_graph(works["winnow"]), **works}
    timings = measure_all(works, device=device, repeats=repeats, warmup=1)
    return [Measurement(case, name, timings[name], peaks.get(name)) for name in works]
