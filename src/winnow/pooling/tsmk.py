"""Trainable SMK (HOW): smoothed features, weighed by their length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from winnow.functional import Pooled
from winnow.pooling.base import Pooling, as_tokens, counted, shares, uniform_weights, weighted_sum


def smooth(maps: Tensor, counts: Tensor) -> Tensor:
    """Average a map (B, d, H, W) over 3 x 3 places, of which those count where `counts` (B, 1, H, W) is 1, not 0."""
    total, number = (avg_pool2d(x, kernel_size=3, stride=1, padding=1) for x in (maps * counts, counts))
    return total / torch.where(number > 0, number, 1.0)


class TSMK(Pooling):
    r"""Trainable selective match kernel, aggregated: smoothed features, weighed by the length of the sharp ones.

    $$g = \frac1n \sum_j \lVert f_j \rVert_2 \,(\tilde f_j - m), \qquad
      \tilde f_j = \text{mean of } f \text{ over the } 3 \times 3 \text{ places around } j$$

    It takes maps alone, whose neighbourhoods it knows. The mean m is learned; with the projection that follows it is
    the original's whitening $W (\tilde f_j - m)$. The original lets the gradient through the lengths; the documents'
    comparison does not (`attention_gradient=false`). The matching of local descriptors, for which the original trains,
    is no part of this. Weights are the shares of the lengths.

    Reference: Tolias, Jenicek and Chum, "Learning and Aggregating Deep Local Descriptors for Instance-Level
    Recognition", ECCV 2020.

    Args:
        width: Size of the features.
        attention_gradient: Whether the lengths are trained too.
    """

    takes: ClassVar[Literal["set", "grid", "fixed"]] = "grid"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"comparison": {"attention_gradient": False}}

    def __init__(self, width: int, *, attention_gradient: bool = True) -> None:
        super().__init__()
        self.attention_gradient = attention_gradient
        self.mean = nn.Parameter(torch.zeros(width))

    def pool(self, features: Tensor, mask: Tensor | None) -> Pooled:
        """Pool a map (B, d, H, W)."""
        flat = None if mask is None else mask.flatten(1)
        x = counted(as_tokens(features), flat)
        uniform = uniform_weights(x, flat)
        counts = x.new_ones(x.shape[0], 1, *features.shape[2:]) if mask is None else mask[:, None].to(x.dtype)
        smoothed = as_tokens(smooth(x.mT.reshape(features.shape), counts))
        lengths: Tensor = torch.linalg.vector_norm(x if self.attention_gradient else x.detach(), dim=2)
        pooled = weighted_sum(smoothed - self.mean.to(x.dtype), lengths * uniform)
        return Pooled(pooled.to(features.dtype), shares(lengths * uniform, uniform), None)
