"""How fast losses and centre regularisers are where there are very many classes, and in how much memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from winnow.bench.losses_rivals import AGAINST, rival
from winnow.bench.memory import peak_memory
from winnow.bench.record import Bench, Row
from winnow.bench.timing import Work, captured, measure_all, pick_device
from winnow.losses import LOSSES
from winnow.regularizers import REGULARIZERS

SEVERAL = {"soft_triple": 2}
"""Losses that want several references of a class: as many as its paper has for the largest set."""


def run_losses(
    *,
    device: str = "auto",
    classes: int = 11318,
    width: int = 128,
    batch: int = 128,
    repeats: int = 10,
    note: Callable[[str], None] = lambda text: None,
) -> Bench:
    """Time every loss forward and backward against proxies of all classes, and every regulariser of these proxies.

    On a GPU each is also replayed from a CUDA graph, which is how training takes its steps.

    Args:
        device: `auto`, `cpu` or `cuda`.
        classes: Their number; the default is that of Stanford Online Products.
        width: Of the embeddings.
        batch: Queries, each of a class of its own.
        repeats: Runs of every rival.
        note: Is told what is being done.

    Raises:
        ConfigError: if there is no such device.
    """
    where = pick_device(device)
    rows: list[Row] = []
    for name in LOSSES:
        note(name)
        rows += _compare(name, _loss_work(name, where, classes, width, batch), where, repeats)
    for name in REGULARIZERS:
        if name != "none":
            note(name)
            rows += _compare(f"{name}, a regulariser", _centre_work(name, where, classes, width), where, repeats)
    return Bench(
        name=f"losses-{where.type}",
        title=f"Losses of {batch} queries against {classes:,} classes x {width}, forward and backward ({where.type})",
        against=AGAINST if any(row.rival == AGAINST for row in rows) else "winnow",
        settings={"device": where.type, "classes": classes, "width": width, "batch": batch, "repeats": repeats},
        rows=rows,
        notes=["the other library's losses have its own default parameters, and select pairs where winnow weighs all"],
    )


def _loss_work(name: str, device: torch.device, classes: int, width: int, batch: int) -> dict[str, Work]:
    """Return what computes a loss and its gradients, by rival."""
    generator = torch.Generator().manual_seed(0)
    per_class = SEVERAL.get(name, 1)
    queries = torch.randn(batch, width, generator=generator).to(device).requires_grad_()
    labels = torch.randperm(classes, generator=generator)[:batch].to(device)
    references = torch.randn(classes * per_class, width, generator=generator).to(device).requires_grad_()
    of = torch.arange(classes, device=device).repeat_interleave(per_class)
    loss = LOSSES.build({"name": name}, num_classes=classes, width=width, batch=batch).to(device)
    found: dict[str, Work] = {
        "winnow": partial(_both_ways, lambda: loss(queries, labels, ref_emb=references, ref_labels=of))
    }
    other = rival(name, references, classes, per_class)
    if other is not None:
        found[AGAINST] = partial(_both_ways, lambda: other(queries, labels, references, of))
    return found


def _centre_work(name: str, device: torch.device, classes: int, width: int) -> dict[str, Work]:
    """Return what computes a regulariser of proxies and its gradient."""
    proxies = torch.randn(classes, width, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
    regulariser = REGULARIZERS.build({"name": name}).to(device)
    return {"winnow": partial(_both_ways, lambda: regulariser(proxies))}


def _both_ways(loss: Callable[[], Tensor]) -> None:
    """Compute a loss and all its gradients; they add up, which costs the same for all."""
    loss().backward()  # type: ignore[no-untyped-call]


def _compare(case: str, works: dict[str, Work], device: torch.device, repeats: int) -> list[Row]:
    peaks = {}
    for name, work in works.items():
        work()  # gradients are allocated once, by the first call
        peaks[name] = peak_memory(work, device)
    if device.type == "cuda":
        works = {"winnow": works["winnow"], "winnow, replayed": captured(works["winnow"]), **works}
    timings = measure_all(works, device=device, repeats=repeats, warmup=1)
    return [Row(case, name, timings[name], peaks.get(name)) for name in works]
