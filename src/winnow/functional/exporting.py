"""What a graph for another program needs: one that can neither ask what it found nor hold operators of our own."""

from __future__ import annotations

import torch
from torch import Tensor

_POINTS = 32
_ROUNDS, _ROUNDS_IN_DOUBLE = 7, 13  # 31^7 = 3e10, 31^13 = 2e19: a bracket of 1e4 ends at the last digit


def is_exporting() -> bool:
    """Whether this is a trace by `torch.export` or `torch.jit.trace`, of which only plain operations come out."""
    tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return torch.compiler.is_exporting() or tracing


def threshold_by_sections(scores: Tensor, share: Tensor, mask: Tensor | None, prior: Tensor | None) -> Tensor:
    r"""Solve $\sum_j q_j\, \sigma(\tau + l_j) = \mu$ in a fixed number of plain operations.

    Between $\operatorname{logit}\mu - \max_j l_j$ and $\operatorname{logit}\mu - \min_j l_j$ the left side, which grows
    with $\tau$, is computed at many points at once, and the two that enclose $\mu$ are the next bracket. The arguments
    are those of [`selection_threshold`][winnow.functional.threshold.selection_threshold]; nothing is checked.
    """
    logit = torch.logit(share.clamp(max=1 - torch.finfo(scores.dtype).eps))
    masses = torch.ones_like(scores) if mask is None else mask.to(scores.dtype)
    masses = masses / masses.sum(dim=1, keepdim=True) if prior is None else prior
    lowest = scores if mask is None else scores.masked_fill(~mask, torch.inf)
    highest = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    low, high = logit - highest.amax(dim=1, keepdim=True), logit - lowest.amin(dim=1, keepdim=True)
    steps = torch.linspace(0, 1, _POINTS, dtype=scores.dtype, device=scores.device)
    for _ in range(_ROUNDS_IN_DOUBLE if scores.dtype == torch.float64 else _ROUNDS):
        points = low + (high - low) * steps
        kept = (masses[:, :, None] * torch.sigmoid(points[:, None] + scores[:, :, None])).sum(dim=1)
        low = torch.where(kept <= share, points, low).amax(dim=1, keepdim=True)
        high = torch.where(kept >= share, points, high).amin(dim=1, keepdim=True)
    return (low + high) / 2
