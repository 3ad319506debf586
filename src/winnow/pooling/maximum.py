"""Max pooling."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from winnow.functional import Pooled
from winnow.pooling.base import Pooling


def maximum(features: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    r"""Return $\max_j f_{jk}$ (B, d) of tokens (B, n, d), and the share of channels that is largest at each (B, n)."""
    kept = features if mask is None else features.masked_fill(~mask[..., None], -torch.inf)
    pooled, winner = kept.max(dim=1)
    share = torch.full((1, 1), 1 / features.shape[2], device=features.device).expand(winner.shape)
    return pooled, torch.zeros(features.shape[:2], device=features.device).scatter_add(1, winner, share)


class GMP(Pooling):
    r"""Global max pooling: each channel takes its largest value.

    $$g_k = \max_j f_{jk}$$

    It has no weights over features; shown instead is the share of channels whose maximum lies at each place.
    """

    def pool(self, features: Tensor, mask: Tensor | None) -> Pooled:
        """Take the maximum of tokens (B, n, d) in each channel."""
        return Pooled(*maximum(features, mask), None)


class ProjectedGMP(GMP):
    r"""Global max pooling of the projected map: the projection learns what the maximum picks.

    $$g_k = \max_j (W f_j)_k$$

    The documents take the maximum of the backbone's own channels, as GMP does. Over a frozen backbone nothing that is
    learned then comes before the maximum, and this order is the stronger rival.
    """

    pools: ClassVar[Literal["raw", "projected"]] = "projected"
