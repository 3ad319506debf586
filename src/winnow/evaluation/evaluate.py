"""From embeddings and labels to a [`RetrievalResult`][winnow.evaluation.RetrievalResult]."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from winnow.evaluation.blocks import CHUNK_BYTES
from winnow.evaluation.inputs import Array, as_count, as_embeddings, as_labels, as_pair, check_together
from winnow.evaluation.judge import judge
from winnow.evaluation.result import RetrievalResult


def retrieval_metrics(
    embeddings: Array,
    labels: Array,
    *,
    gallery: Array | None = None,
    gallery_labels: Array | None = None,
    ks: Sequence[int] = (1, 2, 4, 8),
) -> dict[str, float]:
    r"""P@1, R@k, P@R and MAP@R of a retrieval, exactly, as fractions in [0, 1].

    Without a gallery every embedding is a query among all the others. Neighbours are ranked by Euclidean distance and
    nothing is normalised; for l2-normalised embeddings $\lVert q - r \rVert_2^2 = 2 - 2\, q^\top r$, so that the order
    is that of the cosine. The metrics are defined at [`query_metrics`][winnow.evaluation.query_metrics]; queries
    without any relevant reference are left out of the averages.

    Args:
        embeddings: The queries, shape (Q, D), any float type, torch or numpy.
        labels: Their classes, shape (Q,), integers.
        gallery: The references, shape (N, D); none: the queries themselves, each without itself.
        gallery_labels: Their classes, shape (N,), integers.
        ks: The ranks of R@k; a k beyond the number of references means all of them.

    Returns:
        `P@1`, `R@k` for every k of `ks`, `P@R` and `MAP@R`.

    Raises:
        DataError: if the arrays cannot be used, or no query has a relevant reference.

    References:
        Musgrave, Belongie and Lim, "A Metric Learning Reality Check", ECCV 2020.
    """
    return evaluate_retrieval(
        embeddings, labels, gallery=gallery, gallery_labels=gallery_labels, ks=ks, keep=0
    ).metrics()


def evaluate_retrieval(
    embeddings: Array,
    labels: Array,
    *,
    gallery: Array | None = None,
    gallery_labels: Array | None = None,
    ks: Sequence[int] = (1, 2, 4, 8),
    keep: int = 10,
    chunk_bytes: int = CHUNK_BYTES,
) -> RetrievalResult:
    """Search, judge every query, and keep its first neighbours.

    See [`retrieval_metrics`][winnow.evaluation.retrieval_metrics] for the arrays and the ranking. Every query is
    searched only as deep as its own metrics need, and judged in chunks: memory grows with Q + N, not with Q times N.

    Args:
        embeddings: The queries, shape (Q, D).
        labels: Their classes, shape (Q,).
        gallery: The references, shape (N, D); none: the queries themselves, each without itself.
        gallery_labels: Their classes, shape (N,).
        ks: The ranks of R@k.
        keep: Number of neighbours to keep of every query, cut to the number there are.
        chunk_bytes: The most that one block of distances may take; the result does not depend on it.

    Returns:
        The result, on the CPU.

    Raises:
        DataError: if the arrays cannot be used, or no query has a relevant reference.
    """
    check_together(gallery, gallery_labels)
    exclude_self = gallery is None
    if gallery is None or gallery_labels is None:
        queries = references = as_embeddings(embeddings)
        query_labels = reference_labels = as_labels(labels, len(queries), queries.device)
    else:
        queries, references = as_pair(embeddings, gallery)
        query_labels = as_labels(labels, len(queries), queries.device)
        reference_labels = as_labels(gallery_labels, len(references), queries.device, "gallery_labels")
    keep = min(as_count(keep, "keep", 0), len(references) - exclude_self)
    judged = judge(
        queries,
        query_labels,
        references,
        reference_labels,
        own=torch.arange(len(queries), device=queries.device) if exclude_self else None,
        ks=ks,
        keep=keep,
        chunk_bytes=chunk_bytes,
    )
    return judged.result(query_labels, reference_labels)
