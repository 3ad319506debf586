"""SOLAR's second-order attention, before generalized mean pooling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from winnow.functional import Pooled
from winnow.pooling.base import Pooling, counted, dense, glorot_linear, shares, uniform_weights
from winnow.pooling.batch_norm import TokenNorm
from winnow.pooling.gemean import power_mean


def second_order_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Return $\operatorname{softmax}(q k^\top / \sqrt d)\, v$, over the features that count.

    Args:
        queries: (B, n, d).
        keys: (B, n, d).
        values: (B, n, v).
        mask: (B, n) bool, true for the features that count; default all.
    """
    scores = queries @ keys.mT / queries.shape[2] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None], -torch.inf)
    return torch.bmm(scores.softmax(dim=2), values)


class SOLAR(Pooling):
    r"""Second-order attention: every feature takes up what similar features say, before generalized mean pooling.

    $$f'_j = f_j + V \sum_k \operatorname{softmax}_k\Big(\frac{q_j^\top q'_k}{\sqrt{c}}\Big) H f_k, \qquad
      q = \max(\text{BN}(Q f), 0), \; q' = \max(\text{BN}(K f), 0), \qquad
      g = \operatorname{GeMean}(f')$$

    V starts at zero, so that the layer starts as GeMean. It is the attention alone, without the second-order loss
    of the original, which has such a block in two stages of the network and a whitening after. Weights are those of
    the generalized mean.

    Reference: Ng, Balntas, Tian and Mikolajczyk, "SOLAR: Second-Order Loss and Attention for Image Retrieval",
    ECCV 2020.

    Args:
        width: Size of the features.
        reduction: How many times smaller queries, keys and values are.
        p: The power of the mean that training starts from.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"comparison": {"reduction": 1}}

    def __init__(self, width: int, *, reduction: int = 2, p: float = 3.0) -> None:
        super().__init__()
        if reduction < 1:
            raise ValueError(f"reduction must be at least 1, got {reduction}")
        if not p > 0:
            raise ValueError(f"the power p of SOLAR must be above 0, got {p}")
        inner = max(1, width // reduction)
        self.query, self.query_norm = glorot_linear(width, inner), TokenNorm(inner)
        self.key, self.key_norm = glorot_linear(width, inner), TokenNorm(inner)
        self.value, self.output = glorot_linear(width, inner, bias=True), nn.Linear(inner, width)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)
        self.p = nn.Parameter(torch.tensor(float(p)))

    def pool(self, features: Tensor, mask: Tensor | None) -> Pooled:
        """Pool tokens (B, n, d)."""
        x = counted(features, mask)
        q = relu(self.query_norm(dense(self.query, x), mask))
        k = relu(self.key_norm(dense(self.key, x), mask))
        x = x + dense(self.output, second_order_attention(q, k, dense(self.value, x), mask))
        uniform = uniform_weights(x, mask)
        pooled, parts = power_mean(x, self.p.to(x.dtype), uniform)
        return Pooled(pooled.to(features.dtype), shares(parts, uniform), None)
