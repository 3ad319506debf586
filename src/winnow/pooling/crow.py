"""CroW: cross-dimensional weighting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import relu

from winnow.functional import Pooled
from winnow.pooling.base import Pooling, counted, shares, uniform_weights, weighted_sum

Sparsity = Literal["nonzero", "sigmoid"]
_TINY = 1e-16


def crow_places(x: Tensor) -> Tensor:
    r"""Return $a_j = (S_j / \lVert S \rVert_2)^{1/2}$ with $S_j = \sum_k x_{jk}$, (B, n), of tokens (B, n, d) >= 0."""
    s = x.sum(dim=2)
    length = torch.linalg.vector_norm(s, dim=1, keepdim=True)
    ratio = s / torch.where(length > 0, length, 1.0)
    # A root has no slope at zero; where a place is dark all its features are zero, and so is what it adds.
    return torch.where(ratio > 0, torch.where(ratio > 0, ratio, 1.0).sqrt(), 0.0)


def crow_channels(presence: Tensor) -> Tensor:
    r"""Return $b_k = \log\big((d\epsilon + \sum_h q_h) / (\epsilon + q_k)\big)$, as rare words count more: (B, d)."""
    total = presence.shape[1] * _TINY + presence.sum(dim=1, keepdim=True)
    return torch.log(total / (_TINY + presence))


class CroW(Pooling):
    r"""Cross-dimensional weighting: bright places and rare channels count more; nothing is learned.

    $$g_k = b_k \cdot \frac1n \sum_j a_j x_{jk}, \qquad x = \max(f, 0), \qquad
      a_j = \Big(\frac{S_j}{\lVert S \rVert_2}\Big)^{1/2}, \; S_j = \sum_k x_{jk}, \qquad
      b_k = \log\frac{d\epsilon + \sum_h q_h}{\epsilon + q_k}$$

    $q_k$ is the share of places where channel k is not zero. The original sums where this averages. The documents'
    comparison replaces $q_k$ by the mean of $\sigma(x_{jk})$ (`presence=sigmoid`), which has a gradient but hardly
    varies, since $\sigma(0) = 1/2$. Weights are the shares of a.

    Reference: Kalantidis, Mellina and Osindero, "Cross-dimensional Weighting for Aggregated Deep Convolutional
    Features", ECCV Workshops 2016.

    Args:
        presence: What q is: the share of places that are not zero, or the mean sigmoid.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"comparison": {"presence": "sigmoid"}}

    def __init__(self, *, presence: Sparsity = "nonzero") -> None:
        super().__init__()
        self.presence = presence

    def pool(self, features: Tensor, mask: Tensor | None) -> Pooled:
        """Pool tokens (B, n, d)."""
        x = relu(counted(features, mask))
        uniform = uniform_weights(x, mask)
        present = torch.sigmoid(x) if self.presence == "sigmoid" else (x > 0).to(x.dtype)
        a = crow_places(x)
        pooled = crow_channels(weighted_sum(present, uniform)) * weighted_sum(x, a * uniform)
        return Pooled(pooled.to(features.dtype), shares(a * uniform, uniform), None)
