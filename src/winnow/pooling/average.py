"""Average pooling."""

from __future__ import annotations

from torch import Tensor

from winnow.functional import Pooled
from winnow.pooling.base import Pooling, masked_mean


class GAP(Pooling):
    r"""Global average pooling: every local feature counts the same.

    $$g = \frac1n \sum_j f_j$$
    """

    def pool(self, features: Tensor, mask: Tensor | None) -> Pooled:
        """Average tokens (B, n, d)."""
        pooled, weights = masked_mean(features, mask)
        return Pooled(pooled, weights, None)
