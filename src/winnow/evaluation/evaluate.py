"""From embeddings and labels to a [`RetrievalResult`][winnow.evaluation.RetrievalResult]."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from winnow.errors import DataError
from winnow.evaluation.blocks import CHUNK_BYTES, ExactSearch
from winnow.evaluation.inputs import Array, as_count, as_embeddings, as_labels, as_pair
from winnow.evaluation.metrics import count_relevant, metric_names, query_metrics
from winnow.evaluation.result import RetrievalResult

_SHALLOW = 32


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
        chunk_bytes: Size of one block of distances; the result does not depend on it.

    Returns:
        The result, on the CPU.

    Raises:
        DataError: if the arrays cannot be used, or no query has a relevant reference.
    """
    if (gallery is None) != (gallery_labels is None):
        raise DataError("gallery and gallery_labels belong together; give both or neither")
    exclude_self = gallery is None
    if gallery is None or gallery_labels is None:
        queries = references = as_embeddings(embeddings)
        query_labels = reference_labels = as_labels(labels, len(queries), queries.device)
    else:
        queries, references = as_pair(embeddings, gallery)
        query_labels = as_labels(labels, len(queries), queries.device)
        reference_labels = as_labels(gallery_labels, len(references), queries.device, "gallery_labels")
    names = metric_names(ks)
    available = len(references) - int(exclude_self)
    keep = min(as_count(keep, "keep", 0), available)

    relevant = count_relevant(query_labels, reference_labels, exclude_self=exclude_self)
    per_query = {name: torch.full((len(queries),), torch.nan, dtype=torch.float64) for name in names}
    neighbours = torch.zeros(len(queries), keep, dtype=torch.int64)
    distances = torch.zeros(len(queries), keep, dtype=queries.dtype)
    levels = _levels(ks, keep, available)

    if bool((relevant > 0).any()):
        depth = min(max(levels[-1], int(relevant.max())), available)
        finder = ExactSearch(queries, references, depth=depth, exclude_self=exclude_self, chunk_bytes=chunk_bytes)
        unmet = torch.ones_like(relevant, dtype=torch.bool)
        reached = torch.zeros_like(relevant)
        for level in levels:
            waiting = (unmet & (reached < level)).nonzero().flatten()
            needs = relevant[waiting].clamp(min=level)
            needs, order = needs.sort(descending=True, stable=True)  # deep queries together: few pay for depth
            waiting = waiting[order]
            while len(waiting):
                depth = int(needs[0])
                size = finder.rows_at_once(depth)
                rows, waiting, needs = waiting[:size], waiting[size:], needs[size:]
                found, indices = finder.nearest(rows, depth, measured=keep)
                hits = reference_labels[indices] == query_labels[rows, None]
                unmet[rows] = ~hits.any(dim=1) & (relevant[rows] > 0)
                reached[rows] = depth
                at = rows.cpu()
                neighbours[at], distances[at] = indices[:, :keep].cpu(), found[:, :keep].cpu()
                for name, values in query_metrics(hits, relevant[rows], ks).items():
                    per_query[name][at] = values.cpu()

    return RetrievalResult(
        neighbours=neighbours,
        distances=distances,
        query_labels=query_labels.cpu(),
        reference_labels=reference_labels.cpu(),
        relevant=relevant.cpu(),
        per_query=per_query,
    )


def _levels(ks: Sequence[int], keep: int, available: int) -> list[int]:
    """Depths of search, ascending: a query that has met its first hit at one of them needs no deeper one for R@k.

    All that is shallow is done at once, because a second search costs more than some more depth.
    """
    shallow = max([1, keep, *(k for k in ks if k <= _SHALLOW)])
    deeper = sorted(k for k in set(ks) if k > shallow)
    return list(dict.fromkeys(min(level, available) for level in [shallow, *deeper]))
