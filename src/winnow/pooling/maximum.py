"""Max pooling."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.functional import Pooled
from winnow.pooling.base import Pooling


class GMP(Pooling):
    r"""Global max pooling: each channel takes its largest value.

    $$g_k = \max_j f_{jk}$$

    It has no weights over features; shown instead is the share of channels whose maximum lies at each place.
    """

    def pool(self, features: Tensor, mask: Tensor) -> Pooled:
        """Take the maximum of tokens (B, n, d) in each channel."""
        kept = features.masked_fill(~mask[..., None], -torch.inf)
        pooled, winner = kept.max(dim=1)
        share = torch.full((1, 1), 1 / features.shape[2], device=features.device).expand(winner.shape)
        weights = torch.zeros(mask.shape, device=features.device).scatter_add(1, winner, share)
        return Pooled(pooled, weights, None)
