"""Searching an index with a second look at what was found."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from winnow.evaluation.rerank import KReciprocal, check_reranking, k_reciprocal_distances, towards
from winnow.index.index import Hits, Index

_FIRST = 100


def search_again(
    index: Index, vectors: NDArray[np.float32], k: int, rerank: str, *,
    neighbours: int = 5, alpha: float = 3.0, settings: KReciprocal = KReciprocal(),  # noqa: B008
) -> Hits:  # fmt: skip
    """Search, and order by a second look.

    Args:
        index: Where to search.
        vectors: (Q, dim) queries.
        k: How many hits.
        rerank: "aqe" searches again with queries expanded by their first hits; "reciprocal" orders the first hits (100,
            or k if that is more) by k-reciprocal distances among them.
        neighbours: By how many hits queries are expanded.
        alpha: How much less the farther of these count.
        settings: Of k-reciprocal distances.

    Returns:
        The hits, nearest first by the new distances, which are comparable only among themselves.
    """
    check_reranking(rerank)
    if len(index) == 0 or len(vectors) == 0:
        return index.search(vectors, k)
    if rerank == "aqe":
        first = index.search(vectors, neighbours)
        ids = np.where(first.ids < 0, first.ids[:, :1], first.ids)  # where fewer were found, the first counts again
        near = torch.from_numpy(index.vectors(ids))
        return index.search(towards(torch.from_numpy(vectors), near, alpha).numpy(), k)
    first = index.search(vectors, max(k, _FIRST))
    ids, distances = first.ids[:, :k].copy(), first.distances[:, :k].copy()
    for row, query in enumerate(vectors):
        found = first.ids[row][first.ids[row] >= 0]
        again = k_reciprocal_distances(query[None], index.vectors(found), settings)[0].numpy()
        order = np.argsort(again, kind="stable")[:k]
        ids[row, : len(order)], distances[row, : len(order)] = found[order], again[order]
    return Hits(ids, distances)
