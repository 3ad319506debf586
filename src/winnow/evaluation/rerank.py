"""A second look at what a search found: queries made richer by their neighbours, neighbours that have to be mutual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.errors import ConfigError, nearest
from winnow.evaluation.evaluate import retrieval_metrics
from winnow.evaluation.inputs import Array, as_count, as_embeddings, as_labels, as_pair
from winnow.evaluation.metrics import count_relevant, query_metrics
from winnow.evaluation.nearest import search

RERANKINGS = ("aqe", "reciprocal")
_CHUNK = 512


def check_reranking(rerank: str) -> None:
    """Refuse a second look of an unknown name."""
    if rerank not in RERANKINGS:
        raise ConfigError(f"rerank={rerank}: must be one of {', '.join(RERANKINGS)}{nearest(rerank, RERANKINGS)}")


class KReciprocal(NamedTuple):
    """Settings of k-reciprocal re-ranking; the defaults are the authors'.

    Attributes:
        k1: Size of the neighbourhoods that have to be mutual.
        k2: How many nearest neighbours' neighbourhoods are averaged.
        share: Of the plain distance in the result.
    """

    k1: int = 20
    k2: int = 6
    share: float = 0.3


def expand_queries(queries: Array, references: Array, *, neighbours: int = 5, alpha: float = 3.0,
                   exclude_self: bool = False) -> Tensor:  # fmt: skip
    r"""Move each query towards its nearest references, the nearer the more: alpha query expansion.

    $$q' = \frac{u}{\lVert u \rVert}, \qquad u = q + \sum_{i=1}^{n} \max(q^\top r_i, 0)^\alpha\, r_i$$

    where $r_1, \dots, r_n$ are the nearest references of q, all of unit length. Search again with what comes out; for
    a set that is searched in itself, in the set expanded likewise.

    Args:
        queries: (Q, D), of unit length.
        references: (N, D), of unit length.
        neighbours: n; 0 changes nothing.
        alpha: How much less the farther ones count; 0 is the plain average.
        exclude_self: Query i is reference i, and not its own neighbour.

    Returns:
        (Q, D), of unit length.

    References:
        Radenović, Tolias and Chum, "Fine-tuning CNN image retrieval with no human annotation", TPAMI 2019.
    """
    q, r = as_pair(queries, references)
    if as_count(neighbours, "neighbours", 0) == 0:
        return torch.nn.functional.normalize(q, dim=1)
    _, found = search(q, r, neighbours, exclude_self=exclude_self)
    return torch.cat([towards(q[s : s + _CHUNK], r[found[s : s + _CHUNK]], alpha) for s in range(0, len(q), _CHUNK)])


def towards(queries: Tensor, near: Tensor, alpha: float) -> Tensor:
    """Return the expanded queries (Q, D), given their neighbours (Q, n, D)."""
    weights = (near @ queries[..., None]).clamp(min=0).pow(alpha)
    return torch.nn.functional.normalize(queries + (weights * near).sum(dim=1), dim=1)


def k_reciprocal_distances(
    queries: Array, references: Array | None = None, settings: KReciprocal = KReciprocal()  # noqa: B008
) -> Tensor:  # fmt: skip
    r"""Distances in which mutual neighbours are near: k-reciprocal re-ranking.

    Over queries and references together, let $R(p, k)$ be the items among the k nearest of p (p itself included) that
    have p among their own. The neighbourhood $R^*(p)$ is $R(p, k_1)$ and every $R(c, k_1 / 2)$ of a member c of which
    more than two thirds are in it. With $d$ the squared Euclidean distance divided by the largest of its row,

    $$V_{pj} \propto e^{-d(p, j)} \text{ for } j \in R^*(p), \quad \sum_j V_{pj} = 1, \qquad
      \bar V_p = \frac{1}{k_2} \sum_{j \in N(p, k_2)} V_j,$$

    $$d_J(p, g) = 1 - \frac{\sum_j \min(\bar V_{pj}, \bar V_{gj})}{\sum_j \max(\bar V_{pj}, \bar V_{gj})}, \qquad
      d^*(p, g) = (1 - \lambda)\, d_J(p, g) + \lambda\, d(p, g).$$

    It keeps some matrices of $(Q + N)^2$ numbers: for thousands of images, or for the first hits of a search.

    Args:
        queries: (Q, D).
        references: (N, D); None: the queries themselves.
        settings: $k_1$, $k_2$ and $\lambda$.

    Returns:
        (Q, N) float32.

    References:
        Zhong, Zheng, Cao and Li, "Re-ranking Person Re-identification with k-reciprocal Encoding", CVPR 2017.
    """
    if references is None:
        points = as_embeddings(queries)
        asked, first = len(points), 0
    else:
        q, r = as_pair(queries, references)
        points, asked, first = torch.cat([q, r]), len(q), len(q)
    points = points.float()
    k1, k2 = as_count(settings.k1, "k1", 1), as_count(settings.k2, "k2", 1)
    squares = torch.cdist(points, points).square_()
    d = squares / squares.amax(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    ranks = d.argsort(dim=1, stable=True)[:, : max(k1 + 1, k2)]
    v = torch.where(_neighbourhoods(ranks, k1), torch.exp(-d), 0.0)
    v /= v.sum(dim=1, keepdim=True)
    if k2 > 1:
        v = torch.stack([v[row].mean(dim=0) for row in ranks[:, :k2]])
    shared = _shared(v[:asked], v[first:])
    jaccard = 1 - shared / (2 - shared)  # because min + max is the sum of both rows, which is 2
    return (1 - settings.share) * jaccard + settings.share * d[:asked, first:]


def _neighbourhoods(ranks: Tensor, k1: int) -> Tensor:
    """Return (M, M) bool: which items belong to the expanded neighbourhood of each."""
    own, half = _mutual(ranks, k1), _mutual(ranks, round(k1 / 2))
    sizes = half.sum(dim=1)
    result = own.clone()
    for item, members in enumerate(own):
        candidates = members.nonzero().flatten()
        theirs = half[candidates]
        inside = (theirs & members).sum(dim=1)
        result[item] |= theirs[3 * inside > 2 * sizes[candidates]].any(dim=0)
    return result


def _mutual(ranks: Tensor, k: int) -> Tensor:
    """Return (M, M) bool: which items are among the k nearest of each other, themselves aside."""
    among = torch.zeros(len(ranks), len(ranks), dtype=torch.bool, device=ranks.device)
    among.scatter_(1, ranks[:, : k + 1], True)
    return among & among.mT


def _shared(left: Tensor, right: Tensor) -> Tensor:
    """Return (Q, N): the sum over columns of the smaller of both rows' numbers; rows are mostly zero."""
    result = torch.empty(len(left), len(right), dtype=left.dtype, device=left.device)
    columns = right.mT.contiguous()
    for row, values in enumerate(left):
        some = values.nonzero().flatten()
        result[row] = torch.minimum(columns[some], values[some, None]).sum(dim=0)
    return result


def reranked_metrics(
    embeddings: Array, labels: Array, rerank: str, *,
    neighbours: int = 5, alpha: float = 3.0, settings: KReciprocal = KReciprocal(),  # noqa: B008
    ks: Sequence[int] = (1, 2, 4, 8),
) -> dict[str, float]:  # fmt: skip
    """P@1, R@k, P@R and MAP@R of a set that is searched in itself, with a second look.

    Args:
        embeddings: (N, D), of unit length.
        labels: (N,), integers.
        rerank: "aqe" expands all embeddings by their neighbours, which are queries and references at once; "reciprocal"
            ranks by k-reciprocal distances.
        neighbours: By how many neighbours queries are expanded.
        alpha: How much less the farther of these count.
        settings: Of k-reciprocal distances.
        ks: The ranks of R@k.

    Raises:
        ConfigError: for another re-ranking.
    """
    check_reranking(rerank)
    points = as_embeddings(embeddings)
    if rerank == "aqe":
        expanded = expand_queries(points, points, neighbours=neighbours, alpha=alpha, exclude_self=True)
        return retrieval_metrics(expanded, labels, ks=ks)
    classes = as_labels(labels, len(points), points.device)
    distances = k_reciprocal_distances(points, settings=settings).fill_diagonal_(torch.inf)
    order = distances.argsort(dim=1, stable=True)[:, :-1]
    relevant = count_relevant(classes, classes, exclude_self=True)
    per_query = query_metrics(classes[order] == classes[:, None], relevant, ks)
    return {name: float(values[relevant > 0].mean()) for name, values in per_query.items()}
