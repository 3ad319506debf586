"""CBAM: attention over channels, then over places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, relu

from winnow.functional import Pooled
from winnow.pooling.base import Pooling, as_tokens, counted, dense, glorot_linear, shares, uniform_weights, weighted_sum
from winnow.pooling.batch_norm import TokenNorm
from winnow.pooling.maximum import maximum


class CBAM(Pooling):
    r"""Convolutional block attention before average pooling.

    $$f'_{jk} = \sigma\big(M(\max_j f_j) + M(\tfrac1n \textstyle\sum_j f_j)\big)_k f_{jk}, \qquad
      s = \sigma\big(\text{BN}(K * [\max_k f'_{jk}, \operatorname{mean}_k f'_{jk}])\big), \qquad
      g = \frac1n \sum_j s_j f'_j$$

    M is a perceptron with one hidden layer, K a convolution over the map, so it takes maps alone; beyond the border and
    at masked places the map counts as zero. The batch norm is in the original's code, not in its text, and keeps the
    sigmoid from saturating; the documents' comparison has none (`normalise=false`). The original puts the block into
    every stage of a network; here it is used once, on the last map, as in that comparison, and without biases. Weights
    are the shares of s.

    Reference: Woo, Park, Lee and Kweon, "CBAM: Convolutional Block Attention Module", ECCV 2018.

    Args:
        width: Size of the features.
        reduction: How many times fewer hidden units than channels the perceptron has.
        kernel: Side of the convolution, odd.
        normalise: Batch-normalise what the convolution makes.
    """

    takes: ClassVar[Literal["set", "grid", "fixed"]] = "grid"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "comparison": {"reduction": 1, "kernel": 3, "normalise": False}
    }

    def __init__(self, width: int, *, reduction: int = 16, kernel: int = 7, normalise: bool = True) -> None:
        super().__init__()
        if reduction < 1:
            raise ValueError(f"reduction must be at least 1, got {reduction}")
        if kernel < 1 or kernel % 2 == 0:
            raise ValueError(f"the side of the kernel must be odd, got {kernel}")
        hidden = max(1, width // reduction)
        self.squeeze, self.excite = glorot_linear(width, hidden), glorot_linear(hidden, width)
        self.kernel = nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, 2, kernel, kernel)))
        self.norm = TokenNorm(1) if normalise else None

    def pool(self, features: Tensor, mask: Tensor | None) -> Pooled:
        """Pool a map (B, d, H, W)."""
        flat = None if mask is None else mask.flatten(1)
        x = counted(as_tokens(features), flat)
        uniform = uniform_weights(x, flat)
        x = x * torch.sigmoid(self._mlp(maximum(x, flat)[0]) + self._mlp(weighted_sum(x, uniform)))[:, None]
        seen = torch.stack([x.amax(dim=2), x.mean(dim=2)], dim=1).view(x.shape[0], 2, *features.shape[2:])
        places = conv2d(seen, self.kernel.to(x.dtype), padding=self.kernel.shape[-1] // 2).flatten(1)
        if self.norm is not None:
            places = self.norm(places[..., None], flat).squeeze(2)
        s = torch.sigmoid(places)
        pooled = weighted_sum(x, s * uniform)
        return Pooled(pooled.to(features.dtype), shares(s * uniform, uniform), None)

    def _mlp(self, vectors: Tensor) -> Tensor:
        return dense(self.excite, relu(dense(self.squeeze, vectors)))
