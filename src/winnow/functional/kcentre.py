"""Greedy k-centre: a few points that cover many."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.functional.distances import pairwise_distance


def greedy_k_centre(points: Tensor, k: int, centres: Tensor | None = None) -> Tensor:
    r"""Pick $k$ points so that every point is near a picked one: always the farthest from those picked so far.

    $$i_{t+1} = \arg\max_i \min_{c \in \text{centres} \cup \{i_1..i_t\}} \lVert x_i - x_c \rVert_2$$

    A 2-approximation of the k-centre problem (Gonzalez, 1985). Holds (n,) distances, never all pairs; ties go to the
    lower index. Without `centres` the first pick is the point farthest from the origin.

    Args:
        points: (n, d) candidates.
        k: How many to pick, at most n.
        centres: (c, d) points already chosen; they repel the picks but are not returned.

    Returns:
        (k,) int64 indices into `points`.
    """
    if not 0 < k <= len(points):
        raise ValueError(f"cannot pick {k} centres out of {len(points)} points")
    nearest = points.new_full((len(points),), torch.inf)
    for centre in () if centres is None else centres:
        nearest = torch.minimum(nearest, (points - centre).square().sum(dim=1))
    free = centres is None or len(centres) == 0
    picks: list[Tensor] = []
    for _ in range(k):
        # The origin decides a free first pick and is then forgotten: as a centre it would leave all near it uncovered.
        pick = (points.square().sum(dim=1) if free and not picks else nearest).argmax()
        picks.append(pick)
        nearest = torch.minimum(nearest, (points - points[pick]).square().sum(dim=1))
        nearest[pick] = -1.0  # never twice, also among duplicates
    return torch.stack(picks)


def covering_radius(points: Tensor, centres: Tensor, chunk: int = 4096) -> Tensor:
    r"""Return how far the worst-covered point lies from its nearest centre: $\max_i \min_c \lVert x_i - c \rVert_2$.

    Args:
        points: (n, d).
        centres: (c, d).
        chunk: Points compared at a time.

    Returns:
        A scalar.
    """
    if len(points) == 0 or len(centres) == 0:
        raise ValueError("a covering radius needs at least one point and one centre")
    worst = [pairwise_distance(part, centres).amin(dim=1).amax() for part in torch.split(points, chunk)]
    return torch.stack(worst).amax()
