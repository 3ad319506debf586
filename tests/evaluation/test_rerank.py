"""Re-ranking against slow code that follows the text of the papers."""

import math

import numpy as np
import pytest
import torch

from winnow.errors import ConfigError
from winnow.evaluation import KReciprocal, expand_queries, k_reciprocal_distances, reranked_metrics, retrieval_metrics


def clusters(count=6, each=5, dim=8, noise=0.6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(count, dim, generator=generator)
    points = centers.repeat_interleave(each, 0) + noise * torch.randn(count * each, dim, generator=generator)
    return torch.nn.functional.normalize(points, dim=1), torch.arange(count).repeat_interleave(each)


def slow_expansion(queries, references, num_neighbors, alpha, exclude_self):
    result = []
    for i, q in enumerate(queries.tolist()):
        similar = [(sum(a * b for a, b in zip(q, r, strict=True)), j) for j, r in enumerate(references.tolist())]
        similar = sorted((-s, j) for s, j in similar if not (exclude_self and i == j))[:num_neighbors]
        total = list(q)
        for negative, j in similar:
            weight = max(-negative, 0.0) ** alpha
            total = [t + weight * x for t, x in zip(total, references[j].tolist(), strict=True)]
        length = math.sqrt(sum(t * t for t in total))
        result.append([t / length for t in total])
    return torch.tensor(result, dtype=torch.float64)


@pytest.mark.parametrize("exclude_self", [False, True])
@pytest.mark.parametrize(("num_neighbors", "alpha"), [(1, 0.0), (3, 3.0), (100, 1.0)])
def test_expansion_is_the_weighted_sum(exclude_self, num_neighbors, alpha):
    points = clusters()[0].double()
    queries = points if exclude_self else points[::4] @ torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64))[0]
    mine = expand_queries(queries, points, num_neighbors=num_neighbors, alpha=alpha, exclude_self=exclude_self)
    assert torch.allclose(mine, slow_expansion(queries, points, num_neighbors, alpha, exclude_self), atol=1e-12)


def test_zero_neighbors_change_nothing():
    points, _ = clusters()
    assert torch.allclose(expand_queries(points[:3], points, num_neighbors=0), points[:3])
    with pytest.raises(ConfigError, match=r"^num_neighbors: "):
        expand_queries(points, points, num_neighbors=-1)


def slow_k_reciprocal(points, count, first, k1, k2, weight):
    """K-reciprocal distances by sets and dictionaries, item by item."""
    n = len(points)
    d = [[float(((a - b) ** 2).sum()) for b in points] for a in points]
    d = [[x / max(row) for x in row] for row in d]
    order = [sorted(range(n), key=lambda j, row=row: (row[j], j)) for row in d]

    def mutual(p, k):
        return {j for j in order[p][: k + 1] if p in order[j][: k + 1]}

    v = []
    for p in range(n):
        members = mutual(p, k1)
        expanded = set(members)
        for c in members:
            theirs = mutual(c, round(k1 / 2))
            if len(theirs & members) > 2 / 3 * len(theirs):
                expanded |= theirs
        total = sum(math.exp(-d[p][j]) for j in expanded)
        v.append({j: math.exp(-d[p][j]) / total for j in expanded})
    if k2 > 1:
        v = [
            {j: sum(v[o].get(j, 0.0) for o in order[p][:k2]) / k2 for j in set().union(*(v[o] for o in order[p][:k2]))}
            for p in range(n)
        ]
    result = np.empty((count, n - first))
    for p in range(count):
        for g in range(first, n):
            keys = set(v[p]) | set(v[g])
            low = sum(min(v[p].get(j, 0.0), v[g].get(j, 0.0)) for j in keys)
            high = sum(max(v[p].get(j, 0.0), v[g].get(j, 0.0)) for j in keys)
            result[p, g - first] = (1 - weight) * (1 - low / high) + weight * d[p][g]
    return result


@pytest.mark.parametrize(("k1", "k2", "weight"), [(6, 3, 0.3), (5, 1, 0.0), (20, 6, 0.3), (1, 2, 1.0)])
def test_k_reciprocal_follows_the_paper(k1, k2, weight):
    points, _ = clusters(noise=0.8)
    settings = KReciprocal(k1, k2, weight)
    slow = slow_k_reciprocal(points.double().numpy(), 7, 7, k1, k2, weight)
    mine = k_reciprocal_distances(points[:7], points[7:], settings)
    assert np.allclose(mine.numpy(), slow, atol=2e-6)
    whole = slow_k_reciprocal(points.double().numpy(), len(points), 0, k1, k2, weight)
    assert np.allclose(k_reciprocal_distances(points, settings=settings).numpy(), whole, atol=2e-6)


def test_few_and_equal_points():
    same = torch.ones(3, 4) / 2
    found = k_reciprocal_distances(same[:1], same[1:])
    assert torch.isfinite(found).all()
    assert torch.allclose(found, torch.zeros(1, 2), atol=1e-6)
    one = k_reciprocal_distances(same[:1], -same[:1])
    assert one.shape == (1, 1)


def test_expansion_improves_noisy_clusters():
    points, labels = clusters(count=10, each=12, noise=1.1)
    plain = retrieval_metrics(points, labels)["MAP@R"]
    expanded = expand_queries(points, points, num_neighbors=4, exclude_self=True)
    assert retrieval_metrics(expanded, labels)["MAP@R"] > plain


def test_reranked_metrics():
    points, labels = clusters(count=5, each=6, noise=0.9)
    found = reranked_metrics(points, labels, "reciprocal")
    slow = slow_k_reciprocal(points.double().numpy(), len(points), 0, 20, 6, 0.3)
    np.fill_diagonal(slow, np.inf)
    hits = [(labels[np.argsort(row)] == labels[p])[:5].tolist() for p, row in enumerate(slow)]
    expected = [sum(sum(h[: i + 1]) / (i + 1) for i in range(5) if h[i]) / 5 for h in hits]
    assert found["MAP@R"] == pytest.approx(np.mean(expected))
    assert found["P@1"] == pytest.approx(np.mean([h[0] for h in hits]))
    expanded = expand_queries(points, points, num_neighbors=3, exclude_self=True)
    assert reranked_metrics(points, labels, "aqe", num_neighbors=3) == retrieval_metrics(expanded, labels)
    with pytest.raises(ConfigError, match=r"^rerank: .*reciprocal"):
        reranked_metrics(points, labels, "reciprocl")
