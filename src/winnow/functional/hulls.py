"""Convex hulls of points: their outline in the plane, membership in any dimension, and how classes' hulls overlap."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def convex_hull(points: Tensor) -> Tensor:
    """Return the indices of the corners of the convex hull of points in the plane, counter-clockwise.

    Andrew's monotone chain; points on an edge are no corners. Of points on one line the two ends are left.

    Args:
        points: (n, 2), n at least 1.
    """
    if points.dim() != 2 or points.shape[1] != 2 or len(points) == 0:
        raise ValueError(f"an outline needs points (n, 2) in the plane, got {tuple(points.shape)}")
    xy = points.tolist()
    order = sorted(range(len(xy)), key=lambda i: xy[i])

    def half(indices: Sequence[int]) -> list[int]:
        chain: list[int] = []
        for i in indices:
            while len(chain) > 1 and _turn(xy[chain[-2]], xy[chain[-1]], xy[i]) <= 0:
                chain.pop()
            chain.append(i)
        return chain[:-1]

    return torch.tensor(half(order) + half(order[::-1]) or order[:1])


def _turn(a: Sequence[float], b: Sequence[float], c: Sequence[float]) -> float:
    """Return twice the area of a triangle, above zero where its corners go counter-clockwise."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def in_hull(points: Tensor, vertices: Tensor, *, steps: int = 500) -> Tensor:
    r"""Tell which points lie in the convex hull of vertices, in any dimension.

    The nearest point of the hull, $\min_{w \ge 0,\, \sum w = 1} \lVert x - V^\top w \rVert_2$, is sought by accelerated
    projected gradients. With $r = x - V^\top w$ the plane across $r$ parts $x$ from the hull where
    $\min_i \langle r, x - v_i \rangle > 0$; a point for which such a plane was found is outside, and only such a point.
    What lies outside by less than about a thousandth of the hull's size may be taken for inside.

    Args:
        points: (p, d).
        vertices: (m, d).
        steps: Gradient steps.

    Returns:
        (p,) bool.
    """
    if vertices.dim() != 2 or points.dim() != 2 or points.shape[1] != vertices.shape[1] or len(vertices) == 0:
        raise ValueError(f"points {tuple(points.shape)} and vertices {tuple(vertices.shape)} must be (p, d) and (m, d)")
    centre = vertices.mean(dim=0)
    v, x = (vertices - centre).double(), (points - centre).double()
    rate = 1 / torch.linalg.matrix_norm(v, ord=2).square().clamp(min=1e-300)
    weights = x.new_full((len(x), len(v)), 1 / len(v))
    ahead, speed = weights, 1.0
    outside = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for step in range(steps):
        new = _onto_simplex(ahead - rate * ((ahead @ v - x) @ v.mT))
        faster = (1 + (1 + 4 * speed**2) ** 0.5) / 2
        ahead = new + (speed - 1) / faster * (new - weights)
        weights, speed = new, faster
        if step % 25 == 24 or step == steps - 1:
            r = x - weights @ v
            outside |= ((r * x).sum(dim=1) - (r @ v.mT).amax(dim=1)) > 0
    return ~outside


def _onto_simplex(rows: Tensor) -> Tensor:
    """Project rows (p, m) onto the simplex (Duchi et al., ICML 2008)."""
    ordered = rows.sort(dim=1, descending=True).values
    excess = (ordered.cumsum(dim=1) - 1) / torch.arange(1, rows.shape[1] + 1, device=rows.device)
    last = (ordered > excess).sum(dim=1, keepdim=True) - 1
    return (rows - excess.gather(1, last)).clamp(min=0)


def hull_overlap(points: Tensor, labels: Tensor, vertices: Sequence[Tensor]) -> Tensor:
    """Return which share of each class's points lies in the convex hull of another class.

    Args:
        points: (p, d).
        labels: (p,) from 0 to C - 1.
        vertices: For each of C classes (m, d): what its hull is of, such as its points or its active prototypes; of
            none there is no hull, and nothing lies in it.

    Returns:
        (C,): 0 where a class is apart from all others, or has no points; 1 where all its points lie in others' hulls.
    """
    nowhere = torch.zeros(len(points), dtype=torch.bool, device=points.device)
    inside = torch.stack([in_hull(points, each) if len(each) else nowhere for each in vertices], dim=1)
    own = torch.nn.functional.one_hot(labels.long(), len(vertices)).bool()
    foreign = (inside & ~own).any(dim=1).double()
    return (own.double().mT @ foreign) / own.sum(dim=0).clamp(min=1)
