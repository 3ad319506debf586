"""Evaluation of a split: embed its images and compute retrieval metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from winnow.data.store import Progress
from winnow.evaluation import RetrievalResult, evaluate_retrieval, evaluate_sharded
from winnow.functional import Normalizer, l2_normalize
from winnow.training.engine.distributed import SINGLE_PROCESS, Processes
from winnow.training.engine.stream import Steps, run_to_end
from winnow.training.inputs import Inputs, QueryGallery

KS: tuple[int, ...] = (1, 2, 4, 8)
"""Default ranks k of R@k. Benchmark datasets have their own."""

Autocast = Callable[[], AbstractContextManager[None]]


def evaluate(
    model: nn.Module,
    inputs: Inputs,
    *,
    batch: int = 128,
    keep: int = 0,
    ks: Sequence[int] = KS,
    processes: Processes = SINGLE_PROCESS,
) -> RetrievalResult:
    """Embed inputs, L2-normalize, and retrieve.

    Each input queries all others, or queries search their gallery.
    """
    return run_to_end(iter_evaluate(model, inputs, batch=batch, keep=keep, ks=ks, processes=processes))


def iter_evaluate(
    model: nn.Module,
    inputs: Inputs,
    *,
    batch: int = 128,
    keep: int = 0,
    ks: Sequence[int] = KS,
    normalize: Normalizer = l2_normalize,
    autocast: Autocast = nullcontext,
    progress: Progress | None = None,
    processes: Processes = SINGLE_PROCESS,
    on_embeddings: Callable[[Tensor], None] = lambda embeddings: None,
) -> Steps[RetrievalResult]:
    """Evaluate a model as a generator, one batch at a time.

    Args:
        model: Returns embeddings (B, dim) of a batch.
        inputs: Images and labels.
        batch: Images embedded at a time.
        keep: Nearest neighbors to keep for each query.
        ks: Ranks k of R@k.
        normalize: Normalizes embeddings before they are compared.
        autocast: Precision context of the model.
        progress: Called with (done, total).
        processes: Processes that share the work.
        on_embeddings: Called with the embeddings (N, dim) as they are compared.
    """
    embedded = yield from iter_embed(
        model, inputs, batch=batch, autocast=autocast, progress=progress, processes=processes
    )
    embeddings = normalize(embedded)
    on_embeddings(embeddings)
    return evaluate_embeddings(embeddings, inputs, keep=keep, ks=ks, processes=processes)


def embed(
    model: nn.Module,
    inputs: Inputs,
    rows: NDArray[np.int64] | None = None,
    *,
    batch: int = 128,
    processes: Processes = SINGLE_PROCESS,
) -> Tensor:
    """Return embeddings (N, dim) of all inputs or selected rows."""
    return run_to_end(iter_embed(model, inputs, rows, batch=batch, processes=processes))


def iter_embed(
    model: nn.Module,
    inputs: Inputs,
    rows: NDArray[np.int64] | None = None,
    *,
    batch: int = 128,
    autocast: Autocast = nullcontext,
    progress: Progress | None = None,
    processes: Processes = SINGLE_PROCESS,
) -> Steps[Tensor]:
    """Embed inputs as a generator, one batch at a time; processes share the work."""
    mode = model.training
    model.eval()
    rows = np.arange(len(inputs.labels)) if rows is None else rows
    count = len(rows)
    own = processes.own_slice(count)
    first, end = own.start, max(own.stop, own.start + 1)  # an empty slice embeds one row to know its size
    parts = []
    for start in range(first, end, batch):
        stop = min(start + batch, end)
        with torch.inference_mode(), autocast():
            parts.append(model(inputs.test(rows[start:stop])).float())
        if progress is not None:
            progress(stop - first, end - first)
        yield
    model.train(mode)
    return processes.gather(torch.cat(parts)[: own.stop - first], count)


def evaluate_embeddings(
    embeddings: Tensor,
    inputs: Inputs,
    *,
    keep: int = 0,
    ks: Sequence[int] = KS,
    processes: Processes = SINGLE_PROCESS,
) -> RetrievalResult:
    """Retrieve with embeddings (N, dim) of inputs.

    Each input queries all others, or queries search their gallery.
    """
    labels = torch.from_numpy(inputs.labels).to(embeddings.device)
    retrieve = evaluate_retrieval if processes.count == 1 else evaluate_sharded
    if isinstance(inputs, QueryGallery):
        queries, gallery = embeddings[: inputs.count], embeddings[inputs.count :]
        query_labels, gallery_labels = labels[: inputs.count], labels[inputs.count :]
        q, g = processes.own_slice(len(queries)), processes.own_slice(len(gallery))
        return retrieve(
            queries[q], query_labels[q], gallery=gallery[g], gallery_labels=gallery_labels[g], ks=ks, keep=keep
        )
    own = processes.own_slice(len(embeddings))
    return retrieve(embeddings[own], labels[own], ks=ks, keep=keep)
