"""Generalized mean pooling (GeM)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from winnow.functional import Pooled
from winnow.pooling.base import Pooling, counted, shares, uniform_weights

SMALLEST = 1e-6
"""What features are raised to, because powers are of positive numbers."""


def power_mean(features: Tensor, p: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return the power mean of each channel, and how much of it each feature makes up, averaged over channels.

    $$g_k = \Big(\sum_j w_j \max(f_{jk}, 10^{-6})^p\Big)^{1/p}$$

    Args:
        features: (B, n, d) float32 or float64.
        p: The power, one number.
        weights: (B, n), summing to one.

    Returns:
        (B, d) and (B, n), which is for showing and has no gradient.
    """
    x = features.clamp(min=SMALLEST)
    # In units of the largest, so that no power overflows; the mean does not depend on the unit, nor does its gradient.
    unit = x.detach().amax(dim=1, keepdim=True)
    powers = weights[..., None] * (x / unit) ** p
    total = powers.sum(dim=1, keepdim=True)
    pooled = (unit * total ** (1 / p)).squeeze(1)
    return pooled, (powers.detach() / total.detach()).mean(dim=2)


class GeMean(Pooling):
    r"""Generalized mean (GeM): between the average (p = 1) and the maximum (p to infinity), with p learned.

    $$g_k = \Big(\frac1n \sum_j \max(f_{jk}, 10^{-6})^p\Big)^{1/p}$$

    Weights are each feature's part in that sum, averaged over the channels.

    Reference: Radenović, Tolias and Chum, "Fine-tuning CNN Image Retrieval with No Human Annotation", TPAMI 2019.

    Args:
        p: The power that training starts from, one for all channels.
    """

    def __init__(self, *, p: float = 3.0) -> None:
        super().__init__()
        if not p > 0:
            raise ValueError(f"the power p of GeMean must be above 0, got {p}")
        self.p = nn.Parameter(torch.tensor(float(p)))

    def pool(self, features: Tensor, mask: Tensor | None) -> Pooled:
        """Pool tokens (B, n, d)."""
        x = counted(features, mask)
        uniform = uniform_weights(x, mask)
        pooled, parts = power_mean(x, self.p.to(x.dtype), uniform)
        return Pooled(pooled.to(features.dtype), shares(parts, uniform), None)
