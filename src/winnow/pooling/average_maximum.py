"""Average plus max pooling."""

from __future__ import annotations

from torch import Tensor

from winnow.functional import Pooled
from winnow.pooling.base import Pooling, counted, masked_mean
from winnow.pooling.maximum import maximum


class GAPGMP(Pooling):
    r"""Average plus max pooling, the usual choice of the conventional protocol.

    $$g_k = \frac1n \sum_j f_{jk} + \max_j f_{jk}$$

    As weights it shows the mean of those of its two parts.
    """

    def pool(self, features: Tensor, mask: Tensor | None) -> Pooled:
        """Add the mean and the maximum of tokens (B, n, d)."""
        mean, uniform = masked_mean(counted(features, mask), mask)
        largest, winners = maximum(features, mask)
        return Pooled((mean + largest).to(features.dtype), (uniform + winners) / 2, None)
