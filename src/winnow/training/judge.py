"""Judging a model: embed a split and search it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from winnow.data.store import Progress
from winnow.evaluation import RetrievalResult, evaluate_retrieval, evaluate_sharded
from winnow.functional import Normalise, unit_norm
from winnow.training.distributed import ALONE, Processes
from winnow.training.inputs import Inputs, QueryGallery
from winnow.training.lane import Work, finish

MIN_DELTA = 1e-5  # a validation must be better by this much, as in the documents' runs

KS: tuple[int, ...] = (1, 2, 4, 8)
"""Ranks of R@k where a set has none of its own."""

Autocast = Callable[[], AbstractContextManager[None]]


def collect(
    model: nn.Module,
    inputs: Inputs,
    rows: NDArray[np.int64] | None = None,
    *,
    batch: int = 128,
    processes: Processes = ALONE,
) -> Tensor:
    """Return what a model makes of all inputs (N, dim), or of some, in inference mode; processes share the work."""
    return finish(collecting(model, inputs, rows, batch=batch, processes=processes))


def collecting(
    model: nn.Module,
    inputs: Inputs,
    rows: NDArray[np.int64] | None = None,
    *,
    batch: int = 128,
    autocast: Autocast = nullcontext,
    progress: Progress | None = None,
    processes: Processes = ALONE,
) -> Work[Tensor]:
    """Do what `collect` does in pieces, a batch each, with what a run has to say on how."""
    mode = model.training
    model.eval()
    rows = np.arange(len(inputs.labels)) if rows is None else rows
    count = len(rows)
    share = processes.share(count)
    first, end = share.start, max(share.stop, share.start + 1)  # without a share of its own, to know the size of a row
    parts = []
    for start in range(first, end, batch):
        stop = min(start + batch, end)
        with torch.inference_mode(), autocast():
            parts.append(model(inputs.test(rows[start:stop])).float())
        if progress is not None:
            progress(stop - first, end - first)
        yield
    model.train(mode)
    return processes.gather(torch.cat(parts)[: share.stop - first], count)


def judge(
    model: nn.Module,
    inputs: Inputs,
    *,
    batch: int = 128,
    keep: int = 0,
    ks: Sequence[int] = KS,
    processes: Processes = ALONE,
) -> RetrievalResult:
    """Embed inputs, scale them to unit length, and retrieve each among the others, or queries in their gallery."""
    return finish(judging(model, inputs, batch=batch, keep=keep, ks=ks, processes=processes))


def judging(
    model: nn.Module,
    inputs: Inputs,
    *,
    batch: int = 128,
    keep: int = 0,
    ks: Sequence[int] = KS,
    normalise: Normalise = unit_norm,
    autocast: Autocast = nullcontext,
    progress: Progress | None = None,
    processes: Processes = ALONE,
    seen: Callable[[Tensor], None] = lambda embeddings: None,
) -> Work[RetrievalResult]:
    """Do what `judge` does in pieces, a batch each, with what a run has to say on how.

    `seen` is given the embeddings (N, dim) as they are compared.
    """
    embedded = yield from collecting(
        model, inputs, batch=batch, autocast=autocast, progress=progress, processes=processes
    )
    embeddings = normalise(embedded)
    seen(embeddings)
    return compare(embeddings, inputs, keep=keep, ks=ks, processes=processes)


def compare(
    embeddings: Tensor, inputs: Inputs, *, keep: int = 0, ks: Sequence[int] = KS, processes: Processes = ALONE
) -> RetrievalResult:
    """Retrieve each of the embeddings (N, dim) of inputs among the others, or queries in their gallery."""
    labels = torch.from_numpy(inputs.labels).to(embeddings.device)
    evaluate = evaluate_retrieval if processes.count == 1 else evaluate_sharded
    if isinstance(inputs, QueryGallery):
        queries, gallery = embeddings[: inputs.count], embeddings[inputs.count :]
        asked, kept = labels[: inputs.count], labels[inputs.count :]
        q, g = processes.share(len(queries)), processes.share(len(gallery))
        return evaluate(queries[q], asked[q], gallery=gallery[g], gallery_labels=kept[g], ks=ks, keep=keep)
    own = processes.share(len(embeddings))
    return evaluate(embeddings[own], labels[own], ks=ks, keep=keep)
