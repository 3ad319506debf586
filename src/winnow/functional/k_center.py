"""Greedy k-center selection: a coreset of few points that covers many."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.functional.distances import check_tensor

PICKED, ABSENT = -1.0, -2.0  # below every squared distance, so picked points rank last, and absent points after them


def greedy_k_center(points: Tensor, k: int, centers: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    r"""Select $k$ points that cover all points.

    Repeatedly adds the point farthest from the selection.

    $$i_{t+1} = \arg\max_i \min_{c \in \text{centers} \cup \{i_1..i_t\}} \lVert x_i - x_c \rVert_2$$

    The covering radius is at most twice the optimum (Gonzalez, 1985). The function stores (..., n) distances, never all
    pairs, and does not synchronize with the device. Ties go to the lower index. Without `centers`, the first pick is
    the point farthest from the origin. Leading dimensions are independent sets.

    Args:
        points: (..., n, d) candidates.
        k: Number of points to select, at most n.
        centers: (..., c, d) points already selected. They repel the picks and are not returned.
        mask: (..., n) bool, false for padding. A set of fewer than k points repeats its first pick after
            all other picks. An empty set returns index 0.

    Returns:
        (..., k) int64 indices into `points`.

    Raises:
        TypeError: If `points` or `centers` is not a floating-point tensor.
        ValueError: If k is not in 1..n, or the shapes do not match.
    """
    _check_points(points, centers)
    if not 0 < k <= points.shape[-2]:
        raise ValueError(f"k: expected a number in 1..{points.shape[-2]}, the number of points, got {k}.")
    nearest = points.new_full(points.shape[:-1], torch.inf)
    for center in () if centers is None else centers.unbind(-2):
        nearest = torch.minimum(nearest, (points - center[..., None, :]).square().sum(dim=-1))
    if mask is not None:
        nearest = nearest.masked_fill(~mask, ABSENT)
    picks: list[Tensor] = []
    for _ in range(k):
        gaps = nearest
        if not picks and (centers is None or centers.shape[-2] == 0):
            # The origin decides the first pick only. As a lasting center, it would leave points near it uncovered.
            gaps = torch.minimum(nearest, points.square().sum(dim=-1))
        pick = gaps.argmax(dim=-1, keepdim=True)
        picks.append(pick)
        picked = points.take_along_dim(pick[..., None], dim=-2)
        nearest = torch.minimum(nearest, (points - picked).square().sum(dim=-1))
        # No point is picked twice, even if it has duplicates.
        nearest = nearest.scatter(-1, pick, nearest.take_along_dim(pick, -1).clamp(max=PICKED))
    return torch.cat(picks, dim=-1)


def covering_radius(points: Tensor, centers: Tensor, mask: Tensor | None = None, *, chunk: int = 4096) -> Tensor:
    r"""Compute the largest distance of a point to its nearest center.

    $$\max_i \min_c \lVert x_i - c \rVert_2$$

    Leading dimensions are independent sets. Distances are computed from differences, so small ones are accurate.

    Args:
        points: (..., n, d).
        centers: (..., c, d).
        mask: (..., n) bool, false for padding. A set without points has radius 0.
        chunk: Points of a set compared at a time.

    Returns:
        (...), a scalar for one set.

    Raises:
        TypeError: If `points` or `centers` is not a floating-point tensor.
        ValueError: If there are no points or no centers, or the shapes do not match.
    """
    _check_points(points, centers)
    for name, values in (("points", points), ("centers", centers)):
        if values.shape[-2] == 0:
            raise ValueError(f"{name}: expected at least one row, got {tuple(values.shape)}.")
    worst: list[Tensor] = []
    for start in range(0, points.shape[-2], chunk):
        part = points[..., start : start + chunk, :]
        nearest = torch.cdist(part, centers, compute_mode="donot_use_mm_for_euclid_dist").amin(dim=-1)
        if mask is not None:
            nearest = nearest.masked_fill(~mask[..., start : start + chunk], 0.0)
        worst.append(nearest.amax(dim=-1))
    return torch.stack(worst).amax(dim=0)


def _check_points(points: Tensor, centers: Tensor | None) -> None:
    check_tensor(points, "points")
    if points.dim() < 2:
        raise ValueError(f"points: expected shape (..., n, d), got {tuple(points.shape)}.")
    if centers is None:
        return
    check_tensor(centers, "centers")
    if centers.dim() < 2 or centers.shape[-1] != points.shape[-1]:
        wanted = f"(..., c, {points.shape[-1]}) to match points"
        raise ValueError(f"centers: expected shape {wanted}, got {tuple(centers.shape)}.")
