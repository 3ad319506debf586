"""Greedy k-centre: a few points that cover many."""

from __future__ import annotations

import torch
from torch import Tensor

PICKED, ABSENT = -1.0, -2.0  # below every squared distance, so that such points come last, the absent ones last of all


def greedy_k_centre(points: Tensor, k: int, centres: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    r"""Pick $k$ points so that every point is near a picked one: always the farthest from those picked so far.

    $$i_{t+1} = \arg\max_i \min_{c \in \text{centres} \cup \{i_1..i_t\}} \lVert x_i - x_c \rVert_2$$

    A 2-approximation of the k-centre problem (Gonzalez, 1985). Holds (..., n) distances, never all pairs, and does
    not wait for the device; ties go to the lower index. Without `centres` the first pick is the point farthest from
    the origin. Any leading dimensions are sets of their own.

    Args:
        points: (..., n, d) candidates.
        k: How many to pick, at most n.
        centres: (..., c, d) points already chosen; they repel the picks but are not returned.
        mask: (..., n) bool, false where there is no point. In a set of fewer than k points the first one is picked
            again and again after all others; of an empty set index 0 is.

    Returns:
        (..., k) int64 indices into `points`.
    """
    if not 0 < k <= points.shape[-2]:
        raise ValueError(f"cannot pick {k} centres out of {points.shape[-2]} points")
    nearest = points.new_full(points.shape[:-1], torch.inf)
    for centre in () if centres is None else centres.unbind(-2):
        nearest = torch.minimum(nearest, (points - centre[..., None, :]).square().sum(dim=-1))
    if mask is not None:
        nearest = nearest.masked_fill(~mask, ABSENT)
    picks: list[Tensor] = []
    for _ in range(k):
        gaps = nearest
        if not picks and (centres is None or centres.shape[-2] == 0):
            # The origin decides a free first pick and is then forgotten: as a centre it would leave all near it
            # uncovered.
            gaps = torch.minimum(nearest, points.square().sum(dim=-1))
        pick = gaps.argmax(dim=-1, keepdim=True)
        picks.append(pick)
        picked = points.take_along_dim(pick[..., None], dim=-2)
        nearest = torch.minimum(nearest, (points - picked).square().sum(dim=-1))
        # Never twice, also among duplicates.
        nearest = nearest.scatter(-1, pick, nearest.take_along_dim(pick, -1).clamp(max=PICKED))
    return torch.cat(picks, dim=-1)


def covering_radius(points: Tensor, centres: Tensor, mask: Tensor | None = None, *, chunk: int = 4096) -> Tensor:
    r"""Return how far the worst-covered point lies from its nearest centre: $\max_i \min_c \lVert x_i - c \rVert_2$.

    Any leading dimensions are sets of their own. Distances come from differences, accurate also where they are small.

    Args:
        points: (..., n, d).
        centres: (..., c, d).
        mask: (..., n) bool, false where there is no point; a set without any has radius 0.
        chunk: Points of a set compared at a time.

    Returns:
        (...), a scalar for one set.
    """
    if points.shape[-2] == 0 or centres.shape[-2] == 0:
        raise ValueError("a covering radius needs at least one point and one centre")
    worst: list[Tensor] = []
    for start in range(0, points.shape[-2], chunk):
        part = points[..., start : start + chunk, :]
        nearest = torch.cdist(part, centres, compute_mode="donot_use_mm_for_euclid_dist").amin(dim=-1)
        if mask is not None:
            nearest = nearest.masked_fill(~mask[..., start : start + chunk], 0.0)
        worst.append(nearest.amax(dim=-1))
    return torch.stack(worst).amax(dim=0)
