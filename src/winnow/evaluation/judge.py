"""Judging queries: search each one as deep as its metrics need, and work them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from winnow.evaluation.blocks import ExactSearch
from winnow.evaluation.metrics import count_relevant, metric_names, query_metrics
from winnow.evaluation.result import RetrievalResult

_SHALLOW = 32


@dataclass(frozen=True)
class Judged:
    """What is known of some queries; tensors on the device of the queries.

    Attributes:
        neighbours: Their nearest references, nearest first, shape (Q, keep), int64.
        distances: Shape (Q, keep).
        relevant: Number of relevant references, shape (Q,), int64.
        per_query: Metric name to values, each of shape (Q,), float64; NaN where nothing is relevant.
    """

    neighbours: Tensor
    distances: Tensor
    relevant: Tensor
    per_query: dict[str, Tensor]

    def result(
        self, query_labels: Tensor, reference_labels: Tensor, whole: Callable[[Tensor], Tensor] = lambda rows: rows
    ) -> RetrievalResult:
        """Return it with the labels, on the CPU; `whole` makes the rows of all queries out of those judged here."""
        return RetrievalResult(
            neighbours=whole(self.neighbours).cpu(),
            distances=whole(self.distances).cpu(),
            query_labels=whole(query_labels).cpu(),
            reference_labels=reference_labels.cpu(),
            relevant=whole(self.relevant).cpu(),
            per_query={name: whole(values).cpu() for name, values in self.per_query.items()},
        )


def judge(
    queries: Tensor,
    query_labels: Tensor,
    references: Tensor,
    reference_labels: Tensor,
    *,
    own: Tensor | None,
    ks: Sequence[int],
    keep: int,
    chunk_bytes: int,
) -> Judged:
    """Find the neighbours of every query and what they are worth.

    Every query is searched only as deep as its own metrics need, and in chunks: memory grows with Q + N, not with Q
    times N. Nothing about a query depends on which others are judged with it.

    Args:
        queries: Shape (Q, D), checked; Q may be 0.
        query_labels: Shape (Q,), int64.
        references: Shape (N, D), checked, of the same type and device.
        reference_labels: Shape (N,), int64.
        own: The reference that each query is itself, shape (Q,), int64; None: queries are not among the references.
        ks: The ranks of R@k.
        keep: Number of neighbours to keep of every query, at most the number there are.
        chunk_bytes: The most that one block of distances may take.
    """
    available = len(references) - (own is not None)
    relevant = count_relevant(query_labels, reference_labels, exclude_self=own is not None)
    judged = Judged(
        neighbours=torch.zeros(len(queries), keep, dtype=torch.int64, device=queries.device),
        distances=torch.zeros(len(queries), keep, dtype=queries.dtype, device=queries.device),
        relevant=relevant,
        per_query={name: torch.full_like(relevant, torch.nan, dtype=torch.float64) for name in metric_names(ks)},
    )
    most = int(relevant.max()) if len(relevant) else 0
    if len(queries) == 0 or (most == 0 and keep == 0):  # neighbours are wanted even where none is relevant
        return judged
    levels = _levels(ks, keep, available)
    depth = min(max(levels[-1], most), available)
    finder = ExactSearch(queries, references, depth=depth, own=own, chunk_bytes=chunk_bytes)
    unmet = torch.ones_like(relevant, dtype=torch.bool)
    reached = torch.zeros_like(relevant)
    for level in levels:
        waiting = (unmet & (reached < level)).nonzero().flatten()
        needs, order = relevant[waiting].clamp(min=level).sort(descending=True, stable=True)
        waiting, depths = waiting[order], needs.tolist()  # deep queries together: few pay for depth
        finder.foresee(depths)
        start = 0
        while start < len(depths):
            depth = depths[start]
            rows = waiting[start : start + finder.rows_at_once(depth)]
            start += len(rows)
            found, indices = finder.nearest(rows, depth, measured=keep)
            hits = reference_labels[indices] == query_labels[rows, None]
            unmet[rows] = ~hits.any(dim=1) & (relevant[rows] > 0)
            reached[rows] = depth
            judged.neighbours[rows], judged.distances[rows] = indices[:, :keep], found[:, :keep]
            for name, values in query_metrics(hits, relevant[rows], ks).items():
                judged.per_query[name][rows] = values
    return judged


def _levels(ks: Sequence[int], keep: int, available: int) -> list[int]:
    """Depths of search, ascending: a query that has met its first hit at one of them needs no deeper one for R@k.

    All that is shallow is done at once, because a second search costs more than some more depth.
    """
    shallow = max([1, keep, *(k for k in ks if k <= _SHALLOW)])
    deeper = sorted(k for k in set(ks) if k > shallow)
    return list(dict.fromkeys(min(level, available) for level in [shallow, *deeper]))
