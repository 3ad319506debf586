"""Retrieval evaluation: from embeddings and labels to metrics or a full result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from winnow.evaluation.inputs import Array, as_count, as_embeddings, as_labels, as_pair, check_gallery
from winnow.evaluation.metrics import count_relevant, metric_names, query_metrics
from winnow.evaluation.results import RetrievalResult
from winnow.evaluation.search import CHUNK_BYTES, ExactSearch

_SHALLOW = 32


def retrieval_metrics(
    embeddings: Array,
    labels: Array,
    *,
    gallery: Array | None = None,
    gallery_labels: Array | None = None,
    ks: Sequence[int] = (1, 2, 4, 8),
) -> dict[str, float]:
    r"""Compute P@1, R@k, P@R, and MAP@R exactly, as fractions in [0, 1].

    Without a gallery, each embedding queries all other embeddings. Neighbors are ranked by Euclidean distance without
    normalization. For L2-normalized embeddings $\lVert q - r \rVert_2^2 = 2 - 2\, q^\top r$, so the order equals that
    of the cosine similarity. [`query_metrics`][winnow.evaluation.query_metrics] defines the metrics. Averages exclude
    queries without a relevant reference.

    Reference: Musgrave, Belongie, Lim, "A Metric Learning Reality Check", ECCV 2020.

    Args:
        embeddings: Queries, shape (Q, D), any float type, torch or numpy.
        labels: Class of each query, shape (Q,), integers.
        gallery: References, shape (N, D). Default: the queries, each without itself.
        gallery_labels: Class of each reference, shape (N,), integers.
        ks: Ranks of R@k. A k above the number of references means all of them.

    Returns:
        `P@1`, `R@k` for every k of `ks`, `P@R`, and `MAP@R`.

    Raises:
        DataError: If the arrays are unusable, or no query has a relevant reference.
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
    """Compute the metrics and the nearest neighbors of every query.

    [`retrieval_metrics`][winnow.evaluation.retrieval_metrics] describes the arrays and the ranking. Each query is
    searched only as deep as its metrics require. Memory grows with Q + N, not with Q times N.

    Args:
        embeddings: Queries, shape (Q, D).
        labels: Class of each query, shape (Q,).
        gallery: References, shape (N, D). Default: the queries, each without itself.
        gallery_labels: Class of each reference, shape (N,).
        ks: Ranks of R@k.
        keep: Number of neighbors to keep per query, at most the number of references.
        chunk_bytes: Size limit of one block of distances. The result does not depend on it.

    Returns:
        The result, on the CPU.

    Raises:
        DataError: If the arrays are unusable, or no query has a relevant reference.
    """
    check_gallery(gallery, gallery_labels)
    exclude_self = gallery is None
    if gallery is None or gallery_labels is None:
        queries = references = as_embeddings(embeddings)
        query_labels = reference_labels = as_labels(labels, len(queries), queries.device)
    else:
        queries, references = as_pair(embeddings, gallery)
        query_labels = as_labels(labels, len(queries), queries.device)
        reference_labels = as_labels(gallery_labels, len(references), queries.device, "gallery_labels")
    keep = min(as_count(keep, "keep", 0), len(references) - exclude_self)
    scores = score_queries(
        queries,
        query_labels,
        references,
        reference_labels,
        self_index=torch.arange(len(queries), device=queries.device) if exclude_self else None,
        ks=ks,
        keep=keep,
        chunk_bytes=chunk_bytes,
    )
    return scores.to_result(query_labels, reference_labels)


@dataclass(frozen=True)
class QueryScores:
    """Neighbors and metrics of Q queries, on the device of the queries."""

    neighbors: Tensor  # (Q, keep) int64: nearest references, nearest first
    distances: Tensor  # (Q, keep)
    relevant: Tensor  # (Q,) int64: number of relevant references
    per_query: dict[str, Tensor]  # metric name to (Q,) float64; NaN where no reference is relevant

    def to_result(
        self, query_labels: Tensor, reference_labels: Tensor, gather: Callable[[Tensor], Tensor] = lambda rows: rows
    ) -> RetrievalResult:
        """Return the scores with their labels, on the CPU.

        Args:
            query_labels: Shape (Q,), int64.
            reference_labels: Shape (N,), int64.
            gather: Maps the rows of these queries to the rows of all queries.
        """
        return RetrievalResult(
            neighbors=gather(self.neighbors).cpu(),
            distances=gather(self.distances).cpu(),
            query_labels=gather(query_labels).cpu(),
            reference_labels=reference_labels.cpu(),
            relevant=gather(self.relevant).cpu(),
            per_query={name: gather(values).cpu() for name, values in self.per_query.items()},
        )


def score_queries(
    queries: Tensor,
    query_labels: Tensor,
    references: Tensor,
    reference_labels: Tensor,
    *,
    self_index: Tensor | None,
    ks: Sequence[int],
    keep: int,
    chunk_bytes: int,
) -> QueryScores:
    """Find the neighbors of every query and compute its metrics.

    Each query is searched only as deep as its metrics require, in chunks. Memory grows with Q + N, not with Q times N.
    The scores of a query do not depend on the other queries.

    Args:
        queries: Shape (Q, D), checked; Q may be 0.
        query_labels: Shape (Q,), int64.
        references: Shape (N, D), checked, same type and device.
        reference_labels: Shape (N,), int64.
        self_index: Reference that each query is itself, shape (Q,), int64. None: queries are not references.
        ks: Ranks of R@k.
        keep: Number of neighbors to keep per query, at most the number of references.
        chunk_bytes: Size limit of one block of distances.
    """
    available = len(references) - (self_index is not None)
    relevant = count_relevant(query_labels, reference_labels, exclude_self=self_index is not None)
    scores = QueryScores(
        neighbors=torch.zeros(len(queries), keep, dtype=torch.int64, device=queries.device),
        distances=torch.zeros(len(queries), keep, dtype=queries.dtype, device=queries.device),
        relevant=relevant,
        per_query={name: torch.full_like(relevant, torch.nan, dtype=torch.float64) for name in metric_names(ks)},
    )
    most = int(relevant.max()) if len(relevant) else 0
    if len(queries) == 0 or (most == 0 and keep == 0):  # requested neighbors are found even if none is relevant
        return scores
    levels = _levels(ks, keep, available)
    depth = min(max(levels[-1], most), available)
    finder = ExactSearch(queries, references, depth=depth, self_index=self_index, chunk_bytes=chunk_bytes)
    unmet = torch.ones_like(relevant, dtype=torch.bool)
    reached = torch.zeros_like(relevant)
    for level in levels:
        waiting = (unmet & (reached < level)).nonzero().flatten()
        needs, order = relevant[waiting].clamp(min=level).sort(descending=True, stable=True)
        waiting, depths = waiting[order], needs.tolist()  # deep queries share chunks, so few queries pay for depth
        finder.precompute_candidates(depths)
        start = 0
        while start < len(depths):
            depth = depths[start]
            rows = waiting[start : start + finder.rows_at_once(depth)]
            start += len(rows)
            found, indices = finder.nearest(rows, depth, num_exact=keep)
            hits = reference_labels[indices] == query_labels[rows, None]
            unmet[rows] = ~hits.any(dim=1) & (relevant[rows] > 0)
            reached[rows] = depth
            scores.neighbors[rows], scores.distances[rows] = indices[:, :keep], found[:, :keep]
            for name, values in query_metrics(hits, relevant[rows], ks).items():
                scores.per_query[name][rows] = values
    return scores


def _levels(ks: Sequence[int], keep: int, available: int) -> list[int]:
    """Return ascending search depths.

    A query stops at the first depth that contains a hit.

    All ranks up to a small depth form one level, because a second search costs more than additional depth.
    """
    shallow = max([1, keep, *(k for k in ks if k <= _SHALLOW)])
    deeper = sorted(k for k in set(ks) if k > shallow)
    return list(dict.fromkeys(min(level, available) for level in [shallow, *deeper]))
