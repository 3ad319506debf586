"""Re-ranking of search results: query expansion and k-reciprocal distances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.errors import ConfigError, did_you_mean
from winnow.evaluation.inputs import Array, as_count, as_embeddings, as_labels, as_pair
from winnow.evaluation.metrics import count_relevant, query_metrics
from winnow.evaluation.retrieval import retrieval_metrics
from winnow.evaluation.search import nearest_neighbors

RERANKINGS = ("aqe", "reciprocal")
_CHUNK = 512


def check_reranking(rerank: str) -> None:
    """Raise `ConfigError` if a re-ranking is unknown."""
    if rerank not in RERANKINGS:
        raise ConfigError(
            f"rerank: unknown name {rerank!r}{did_you_mean(rerank, RERANKINGS)} Available: {', '.join(RERANKINGS)}."
        )


class KReciprocal(NamedTuple):
    """Settings of k-reciprocal re-ranking, with the authors' defaults."""

    k1: int = 20  # size of the neighborhoods that must be mutual
    k2: int = 6  # number of nearest neighbors with averaged neighborhoods
    distance_weight: float = 0.3  # weight of the plain distance in the result, lambda


def expand_queries(
    queries: Array, references: Array, *, num_neighbors: int = 5, alpha: float = 3.0, exclude_self: bool = False
) -> Tensor:
    r"""Move each query toward its nearest references: alpha query expansion.

    $$q' = \frac{u}{\lVert u \rVert}, \qquad u = q + \sum_{i=1}^{n} \max(q^\top r_i, 0)^\alpha\, r_i$$

    $r_1, \dots, r_n$ are the nearest references of q, all L2-normalized. Search the references with the result. For a
    set searched in itself, the result replaces queries and references.

    Reference: Radenović, Tolias, Chum, "Fine-tuning CNN image retrieval with no human annotation", TPAMI 2019.

    Args:
        queries: Shape (Q, D), L2-normalized.
        references: Shape (N, D), L2-normalized.
        num_neighbors: n, at least 0; 0 changes nothing.
        alpha: Decay of the weight with the distance; 0 is the plain average.
        exclude_self: Query i is reference i and not its own neighbor.

    Returns:
        Shape (Q, D), L2-normalized.
    """
    q, r = as_pair(queries, references)
    if as_count(num_neighbors, "num_neighbors", 0) == 0:
        return torch.nn.functional.normalize(q, dim=1)
    _, found = nearest_neighbors(q, r, num_neighbors, exclude_self=exclude_self)
    starts = range(0, len(q), _CHUNK)
    return torch.cat([expand_query(q[s : s + _CHUNK], r[found[s : s + _CHUNK]], alpha) for s in starts])


def expand_query(queries: Tensor, neighbors: Tensor, alpha: float) -> Tensor:
    """Return the expanded queries (Q, D) from their neighbors (Q, n, D)."""
    weights = (neighbors @ queries[..., None]).clamp(min=0).pow(alpha)
    return torch.nn.functional.normalize(queries + (weights * neighbors).sum(dim=1), dim=1)


def k_reciprocal_distances(
    queries: Array, references: Array | None = None, settings: KReciprocal = KReciprocal()  # noqa: B008
) -> Tensor:  # fmt: skip
    r"""Compute distances in which mutual neighbors are near: k-reciprocal re-ranking.

    Over queries and references together, $R(p, k)$ are the items among the k nearest of p (p included) that have p
    among their own k nearest. The neighborhood $R^*(p)$ is $R(p, k_1)$ and every $R(c, k_1 / 2)$ of a member c with
    more than two thirds of its items in $R(p, k_1)$. $d$ is the squared Euclidean distance divided by the largest one
    of its row.

    $$V_{pj} \propto e^{-d(p, j)} \text{ for } j \in R^*(p), \quad \sum_j V_{pj} = 1, \qquad
      \bar V_p = \frac{1}{k_2} \sum_{j \in N(p, k_2)} V_j,$$

    $$d_J(p, g) = 1 - \frac{\sum_j \min(\bar V_{pj}, \bar V_{gj})}{\sum_j \max(\bar V_{pj}, \bar V_{gj})}, \qquad
      d^*(p, g) = (1 - \lambda)\, d_J(p, g) + \lambda\, d(p, g).$$

    Memory is a few matrices of $(Q + N)^2$ numbers: use it for thousands of images or for the first hits of a search.

    Reference: Zhong, Zheng, Cao, Li, "Re-ranking Person Re-identification with k-reciprocal Encoding", CVPR 2017.

    Args:
        queries: Shape (Q, D).
        references: Shape (N, D). None: the queries.
        settings: $k_1$, $k_2$, and $\lambda$.

    Returns:
        Shape (Q, N), float32.
    """
    if references is None:
        points = as_embeddings(queries)
        count, first = len(points), 0
    else:
        q, r = as_pair(queries, references)
        points, count, first = torch.cat([q, r]), len(q), len(q)
    points = points.float()
    k1, k2 = as_count(settings.k1, "k1", 1), as_count(settings.k2, "k2", 1)
    squares = torch.cdist(points, points).square_()
    d = squares / squares.amax(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    ranks = d.argsort(dim=1, stable=True)[:, : max(k1 + 1, k2)]
    v = torch.where(_neighborhoods(ranks, k1), torch.exp(-d), 0.0)
    v /= v.sum(dim=1, keepdim=True)
    if k2 > 1:
        v = torch.stack([v[row].mean(dim=0) for row in ranks[:, :k2]])
    overlap = _overlap(v[:count], v[first:])
    jaccard = 1 - overlap / (2 - overlap)  # because min + max is the sum of both rows, which is 2
    return (1 - settings.distance_weight) * jaccard + settings.distance_weight * d[:count, first:]


def _neighborhoods(ranks: Tensor, k1: int) -> Tensor:
    """Return (M, M) bool: the items in the expanded neighborhood of each item."""
    full, half = _mutual(ranks, k1), _mutual(ranks, round(k1 / 2))
    sizes = half.sum(dim=1)
    result = full.clone()
    for item, members in enumerate(full):
        candidates = members.nonzero().flatten()
        theirs = half[candidates]
        inside = (theirs & members).sum(dim=1)
        result[item] |= theirs[3 * inside > 2 * sizes[candidates]].any(dim=0)
    return result


def _mutual(ranks: Tensor, k: int) -> Tensor:
    """Return (M, M) bool: items among the k nearest of each other, without selves."""
    among = torch.zeros(len(ranks), len(ranks), dtype=torch.bool, device=ranks.device)
    among.scatter_(1, ranks[:, : k + 1], True)
    return among & among.mT


def _overlap(left: Tensor, right: Tensor) -> Tensor:
    """Return (Q, N): the sum over columns of the smaller value of both rows.

    Rows contain mostly zeros.
    """
    result = torch.empty(len(left), len(right), dtype=left.dtype, device=left.device)
    columns = right.mT.contiguous()
    for row, values in enumerate(left):
        nonzero = values.nonzero().flatten()
        result[row] = torch.minimum(columns[nonzero], values[nonzero, None]).sum(dim=0)
    return result


def reranked_metrics(
    embeddings: Array, labels: Array, rerank: str, *,
    num_neighbors: int = 5, alpha: float = 3.0, settings: KReciprocal = KReciprocal(),  # noqa: B008
    ks: Sequence[int] = (1, 2, 4, 8),
) -> dict[str, float]:  # fmt: skip
    """Compute P@1, R@k, P@R, and MAP@R of a set searched in itself, with re-ranking.

    Args:
        embeddings: Shape (N, D), L2-normalized.
        labels: Shape (N,), integers.
        rerank: "aqe" expands all embeddings, which are queries and references, by their neighbors; "reciprocal" ranks
            by k-reciprocal distances.
        num_neighbors: Number of neighbors in query expansion.
        alpha: Decay of their weight with the distance.
        settings: Settings of k-reciprocal distances.
        ks: Ranks of R@k.

    Raises:
        ConfigError: If `rerank` is unknown.
    """
    check_reranking(rerank)
    points = as_embeddings(embeddings)
    if rerank == "aqe":
        expanded = expand_queries(points, points, num_neighbors=num_neighbors, alpha=alpha, exclude_self=True)
        return retrieval_metrics(expanded, labels, ks=ks)
    classes = as_labels(labels, len(points), points.device)
    distances = k_reciprocal_distances(points, settings=settings).fill_diagonal_(torch.inf)
    order = distances.argsort(dim=1, stable=True)[:, :-1]
    relevant = count_relevant(classes, classes, exclude_self=True)
    per_query = query_metrics(classes[order] == classes[:, None], relevant, ks)
    return {name: float(values[relevant > 0].mean()) for name, values in per_query.items()}
