"""WELDON: the best and the worst places of each channel."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from winnow.functional import Pooled
from winnow.pooling.base import Pooling, counted


def mean_of_largest(features: Tensor, k: int, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the mean of each channel's k largest values (B, d) of tokens (B, n, d), and their places' shares (B, n).

    Of fewer than k features all are taken.
    """
    n = features.shape[1]
    kept = features if mask is None else features.masked_fill(~mask[..., None], -torch.inf)
    values, places = kept.topk(min(k, n), dim=1)  # (B, k, d), the largest first, so that masked ones come last
    taken = features.new_ones(features.shape[0], values.shape[1], 1)
    if mask is not None:
        rank = torch.arange(values.shape[1], device=mask.device)
        taken = (rank < mask.sum(dim=1, keepdim=True)).to(features.dtype)[..., None]
    part = (taken / taken.sum(dim=1, keepdim=True)).expand(values.shape)
    pooled = (part * torch.where(part > 0, values, 0.0)).sum(dim=1)
    seen = features.new_zeros(features.shape[:2]).scatter_add(1, places.flatten(1), part.flatten(1))
    return pooled, seen / features.shape[2]


class WELDON(Pooling):
    r"""The mean of each channel's largest values plus that of its smallest: evidence for and against.

    $$g_k = \frac1{k^+} \sum_{j \in \text{top}_{k^+}} f_{jk} + \frac1{k^-} \sum_{j \in \text{low}_{k^-}} f_{jk}$$

    It pools the projected map, as the original pools maps of class scores. The documents' comparison takes sums, which
    with $k^+ = k^-$ differ by a factor alone. Weights are the mean shares of the channels that pick each place.

    Reference: Durand, Thome and Cord, "WELDON: Weakly Supervised Learning of Deep Convolutional Neural Networks",
    CVPR 2016.

    Args:
        largest: How many of the largest values to take.
        smallest: How many of the smallest.
    """

    pools: ClassVar[Literal["raw", "projected"]] = "projected"

    def __init__(self, *, largest: int = 3, smallest: int = 3) -> None:
        super().__init__()
        if largest < 1 or smallest < 1:
            raise ValueError(f"WELDON takes at least one value from either end, got {largest} and {smallest}")
        self.largest, self.smallest = largest, smallest

    def pool(self, features: Tensor, mask: Tensor | None) -> Pooled:
        """Pool tokens (B, n, d)."""
        x = counted(features, mask)
        top, best = mean_of_largest(x, self.largest, mask)
        low, worst = mean_of_largest(-x, self.smallest, mask)
        return Pooled((top - low).to(features.dtype), (best + worst) / 2, None)
