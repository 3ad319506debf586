"""Convex hulls: corners in the plane, membership, and overlap of classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from winnow.functional.distances import check_tensor


def convex_hull(points: Tensor) -> Tensor:
    """Return the indices of the corners of the convex hull of points in the plane.

    The order is counterclockwise from the corner with the smallest x, then y. Points on an edge are not corners.
    Points on a line have two corners, the ends of the line; equal points have one.

    Args:
        points: (n, 2), n at least 1.

    Raises:
        TypeError: If `points` is not a floating-point tensor.
        ValueError: If its shape is not (n, 2), or it holds NaN.
    """
    import numpy as np
    from scipy.spatial import ConvexHull, QhullError

    check_tensor(points, "points", "(n, 2)", 2)
    if points.shape[1] != 2 or len(points) == 0:
        raise ValueError(f"points: expected shape (n, 2) with n at least 1, got {tuple(points.shape)}.")
    xy = points.detach().double().cpu().numpy()
    order = np.lexsort((xy[:, 1], xy[:, 0]))
    try:
        corners = ConvexHull(xy).vertices
    except QhullError:  # fewer than three points, or all on a line
        ends = [order[0], order[-1]]
        corners = np.array(ends if (xy[ends[0]] != xy[ends[1]]).any() else ends[:1])
    first = np.lexsort((xy[corners, 1], xy[corners, 0]))[0]
    return torch.from_numpy(np.roll(corners, -first).astype(np.int64))


def in_hull(points: Tensor, vertices: Tensor, *, steps: int = 500) -> Tensor:
    r"""Test which points lie in the convex hull of vertices, in any dimension.

    Accelerated projected gradients minimize the distance to the hull,
    $\min_{w \ge 0,\, \sum w = 1} \lVert x - V^\top w \rVert_2$. With $r = x - V^\top w$, a plane orthogonal to $r$
    separates $x$ from the hull if $\min_i \langle r, x - v_i \rangle > 0$. A point counts as outside if and only if
    such a plane is found. Points outside by less than about a thousandth of the size of the hull may count as inside.

    Args:
        points: (p, d).
        vertices: (m, d), m at least 1.
        steps: Number of gradient steps.

    Returns:
        (p,) bool.

    Raises:
        TypeError: If an argument is not a floating-point tensor.
        ValueError: If the shapes do not match.
    """
    check_tensor(points, "points", "(p, d)", 2)
    check_tensor(vertices, "vertices", "(m, d)", 2)
    if points.shape[1] != vertices.shape[1] or len(vertices) == 0:
        wanted = f"(m, {points.shape[1]}) with m at least 1, to match points"
        raise ValueError(f"vertices: expected shape {wanted}, got {tuple(vertices.shape)}.")
    center = vertices.mean(dim=0)
    v, x = (vertices - center).double(), (points - center).double()
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
    """Compute the fraction of points per class in the convex hull of another class.

    Args:
        points: (p, d).
        labels: (p,) class labels in 0..C-1.
        vertices: For each of C classes (m, d), the points that span its hull: its points or its active prototypes. A
            class without vertices has no hull.

    Returns:
        (C,) fractions: 0 for a class that overlaps with no other or has no points, 1 if all its points lie in hulls of
        other classes.
    """
    none = torch.zeros(len(points), dtype=torch.bool, device=points.device)
    inside = torch.stack([in_hull(points, each) if len(each) else none for each in vertices], dim=1)
    own = torch.nn.functional.one_hot(labels.long(), len(vertices)).bool()
    foreign = (inside & ~own).any(dim=1).double()
    return (own.double().mT @ foreign) / own.sum(dim=0).clamp(min=1)
