"""Poolings with attention weights: CBAM, CroW, DeLF, and TSMK."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, conv2d, relu, softplus

from winnow.functional import PoolingOutput
from winnow.pooling.base import (
    Layout,
    MaskedBatchNorm,
    Pooling,
    as_tokens,
    check_at_least,
    display_weights,
    glorot_linear,
    linear_in_dtype,
    masked_float,
    setting_repr,
    uniform_weights,
    weighted_sum,
)
from winnow.pooling.mean_max import maximum

Presence = Literal["nonzero", "sigmoid"]
_TINY = 1e-16


class CBAM(Pooling):
    r"""Convolutional block attention over channels and locations, then average pooling.

    $$f'_{jk} = \sigma\big(M(\max_j f_j) + M(\tfrac1n \textstyle\sum_j f_j)\big)_k f_{jk}, \qquad
      s = \sigma\big(\text{BN}(K * [\max_k f'_{jk}, \operatorname{mean}_k f'_{jk}])\big), \qquad
      g = \frac1n \sum_j s_j f'_j$$

    M is a perceptron with one hidden layer and K a convolution. Input: a map. The map is zero outside its border and
    at masked locations.

    Reference: Woo, Park, Lee, Kweon, "CBAM: Convolutional Block Attention Module", ECCV 2018.
    Use when: the neighbors of a location help to decide its weight.
    Differences: used once, on the last map, and without biases; the paper adds the block to every stage of a network.
        Batch normalization follows the authors' code; the comparison of [Thesis] has none (`normalize=False`).
        Weights are s, normalized.

    Args:
        in_features: Channels of the features.
        reduction: Ratio of channels to hidden units of the perceptron, at least 1.
        kernel: Side of the convolution kernel, odd.
        normalize: Apply batch normalization after the convolution.
    """

    layout: ClassVar[Layout] = "grid"
    aliases: ClassVar[Mapping[str, str]] = {"normalise": "normalize"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "comparison": {"reduction": 1, "kernel": 3, "normalize": False}
    }

    def __init__(self, in_features: int, *, reduction: int = 16, kernel: int = 7, normalize: bool = True) -> None:
        super().__init__()
        check_at_least("reduction", reduction, 1)
        if kernel < 1 or kernel % 2 == 0:
            raise ValueError(f"kernel: expected an odd number of at least 1, got {kernel}.")
        hidden = max(1, in_features // reduction)
        self.in_features, self.reduction = in_features, reduction
        self.squeeze, self.excite = glorot_linear(in_features, hidden), glorot_linear(hidden, in_features)
        self.kernel = nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, 2, kernel, kernel)))
        self.norm = MaskedBatchNorm(1) if normalize else None

    def pool(self, features: Tensor, mask: Tensor | None) -> PoolingOutput:
        """Pool a map (B, d, H, W)."""
        flat = None if mask is None else mask.flatten(1)
        x = masked_float(as_tokens(features), flat)
        uniform = uniform_weights(x, flat)
        x = x * torch.sigmoid(self._mlp(maximum(x, flat)[0]) + self._mlp(weighted_sum(x, uniform)))[:, None]
        summary = torch.stack([x.amax(dim=2), x.mean(dim=2)], dim=1).view(x.shape[0], 2, *features.shape[2:])
        logits = conv2d(summary, self.kernel.to(x.dtype), padding=self.kernel.shape[-1] // 2).flatten(1)
        if self.norm is not None:
            logits = self.norm(logits[..., None], flat).squeeze(2)
        s = torch.sigmoid(logits)
        pooled = weighted_sum(x, s * uniform)
        return PoolingOutput(pooled.to(features.dtype), display_weights(s * uniform, uniform), None)

    def _mlp(self, vectors: Tensor) -> Tensor:
        return linear_in_dtype(self.excite, relu(linear_in_dtype(self.squeeze, vectors)))

    def extra_repr(self) -> str:
        """Return the settings for `repr`."""
        return setting_repr(
            in_features=self.in_features,
            reduction=self.reduction,
            kernel=self.kernel.shape[-1],
            normalize=self.norm is not None,
        )


def crow_places(x: Tensor) -> Tensor:
    r"""Return the location weights (B, n) of tokens (B, n, d) >= 0.

    $a_j = (S_j / \lVert S \rVert_2)^{1/2}$ with $S_j = \sum_k x_{jk}$.
    """
    s = x.sum(dim=2)
    length = torch.linalg.vector_norm(s, dim=1, keepdim=True)
    ratio = s / torch.where(length > 0, length, 1.0)
    # The root has no slope at zero. There all features are zero, and so is their contribution.
    return torch.where(ratio > 0, torch.where(ratio > 0, ratio, 1.0).sqrt(), 0.0)


def crow_channels(presence: Tensor) -> Tensor:
    r"""Return the channel weights (B, d).

    $b_k = \log\big((d\epsilon + \sum_h q_h) / (\epsilon + q_k)\big)$. Rare channels get large weights.
    """
    total = presence.shape[1] * _TINY + presence.sum(dim=1, keepdim=True)
    return torch.log(total / (_TINY + presence))


class CroW(Pooling):
    r"""Cross-dimensional weighting: bright locations and rare channels weigh more.

    $$g_k = b_k \cdot \frac1n \sum_j a_j x_{jk}, \qquad x = \max(f, 0), \qquad
      a_j = \Big(\frac{S_j}{\lVert S \rVert_2}\Big)^{1/2}, \; S_j = \sum_k x_{jk}, \qquad
      b_k = \log\frac{d\epsilon + \sum_h q_h}{\epsilon + q_k}$$

    $q_k$ is the fraction of locations where channel k is not zero. There are no parameters.

    Reference: Kalantidis, Mellina, Osindero, "Cross-dimensional Weighting for Aggregated Deep Convolutional
        Features", ECCV Workshops 2016.
    Use when: the model is not trained, or you need weights without parameters.
    Differences: averages where the paper sums. The comparison of [Thesis] replaces $q_k$ by the mean of
        $\sigma(x_{jk})$ (`presence=sigmoid`), which has a gradient but varies little, since $\sigma(0) = 1/2$.
        Weights are a, normalized.

    Args:
        presence: Definition of q: fraction of nonzero locations, or mean sigmoid.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"comparison": {"presence": "sigmoid"}}

    def __init__(self, *, presence: Presence = "nonzero") -> None:
        super().__init__()
        if presence not in ("nonzero", "sigmoid"):
            raise ValueError(f"presence: expected 'nonzero' or 'sigmoid', got {presence!r}.")
        self.presence = presence

    def pool(self, features: Tensor, mask: Tensor | None) -> PoolingOutput:
        """Pool tokens (B, n, d)."""
        x = relu(masked_float(features, mask))
        uniform = uniform_weights(x, mask)
        present = torch.sigmoid(x) if self.presence == "sigmoid" else (x > 0).to(x.dtype)
        a = crow_places(x)
        pooled = crow_channels(weighted_sum(present, uniform)) * weighted_sum(x, a * uniform)
        return PoolingOutput(pooled.to(features.dtype), display_weights(a * uniform, uniform), None)

    def extra_repr(self) -> str:
        """Return the settings for `repr`."""
        return setting_repr(presence=self.presence)


class DeLF(Pooling):
    r"""Attentive local features: a small network computes one weight per feature.

    $$g = \frac1n \sum_j a_j f_j, \qquad
      a_j = \operatorname{softplus}\big(v^\top \max(U f_j + b, 0) + c\big)$$

    Reference: Noh, Araujo, Sim, Weyand, Han, "Large-Scale Image Retrieval with Attentive Deep Local Features",
        ICCV 2017.
    Use when: the backbone is frozen and background covers much of the image. Compare it with GSP.
    Differences: averages where the paper sums, so the length of the vector does not grow with the map. Weights are a,
        normalized.

    Args:
        in_features: Channels of the features.
        hidden: Hidden units of the attention network, at least 1.
    """

    def __init__(self, in_features: int, *, hidden: int = 512) -> None:
        super().__init__()
        check_at_least("hidden", hidden, 1)
        self.in_features = in_features
        self.hidden, self.score = glorot_linear(in_features, hidden, bias=True), glorot_linear(hidden, 1, bias=True)

    def pool(self, features: Tensor, mask: Tensor | None) -> PoolingOutput:
        """Pool tokens (B, n, d)."""
        x = masked_float(features, mask)
        uniform = uniform_weights(x, mask)
        a = softplus(linear_in_dtype(self.score, relu(linear_in_dtype(self.hidden, x))).squeeze(2))
        pooled = weighted_sum(x, a * uniform)
        return PoolingOutput(pooled.to(features.dtype), display_weights(a * uniform, uniform), None)

    def extra_repr(self) -> str:
        """Return the settings for `repr`."""
        return setting_repr(in_features=self.in_features, hidden=self.hidden.out_features)


def smooth(maps: Tensor, counts: Tensor) -> Tensor:
    """Average a map (B, d, H, W) over 3 x 3 locations where `counts` is 1, not 0."""
    total, number = (avg_pool2d(x, kernel_size=3, stride=1, padding=1) for x in (maps * counts, counts))
    return total / torch.where(number > 0, number, 1.0)


class TSMK(Pooling):
    r"""Smoothed features weighted by the length of the unsmoothed ones (SMK as in HOW).

    $$g = \frac1n \sum_j \lVert f_j \rVert_2 \,(\tilde f_j - m), \qquad
      \tilde f_j = \text{mean of } f \text{ over the } 3 \times 3 \text{ locations around } j$$

    Input: a map. The mean m is learned; with the projection that follows, this is the whitening
    $W (\tilde f_j - m)$ of the paper.

    Reference: Tolias, Jenicek, Chum, "Learning and Aggregating Deep Local Descriptors for Instance-Level
        Recognition", ECCV 2020.
    Use when: the length of a feature indicates its importance, as in landmarks.
    Differences: the aggregated vector only, without the matching of local descriptors. The comparison of [Thesis]
        stops the gradient through the lengths (`attention_gradient=False`). Weights are the lengths, normalized.

    Args:
        in_features: Channels of the features.
        attention_gradient: Propagate gradients through the lengths.
    """

    layout: ClassVar[Layout] = "grid"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"comparison": {"attention_gradient": False}}

    def __init__(self, in_features: int, *, attention_gradient: bool = True) -> None:
        super().__init__()
        self.in_features, self.attention_gradient = in_features, attention_gradient
        self.mean = nn.Parameter(torch.zeros(in_features))

    def pool(self, features: Tensor, mask: Tensor | None) -> PoolingOutput:
        """Pool a map (B, d, H, W)."""
        flat = None if mask is None else mask.flatten(1)
        x = masked_float(as_tokens(features), flat)
        uniform = uniform_weights(x, flat)
        counts = x.new_ones(x.shape[0], 1, *features.shape[2:]) if mask is None else mask[:, None].to(x.dtype)
        smoothed = as_tokens(smooth(x.mT.reshape(features.shape), counts))
        lengths: Tensor = torch.linalg.vector_norm(x if self.attention_gradient else x.detach(), dim=2)
        pooled = weighted_sum(smoothed - self.mean.to(x.dtype), lengths * uniform)
        return PoolingOutput(pooled.to(features.dtype), display_weights(lengths * uniform, uniform), None)

    def extra_repr(self) -> str:
        """Return the settings for `repr`."""
        return setting_repr(in_features=self.in_features, attention_gradient=self.attention_gradient)
