"""Max and generalized mean pooling of the raw map, by weights of GSP on the projected one."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from winnow.functional import Pooled, gsp
from winnow.pooling.base import counted, shares, uniform_weights, weighted_sum
from winnow.pooling.gemean import power_mean
from winnow.pooling.gsp import check_numbers
from winnow.pooling.maximum import maximum
from winnow.pooling.prototypes import PrototypePooling


class GuidedByGSP(PrototypePooling):
    """Base of the poolings of raw features X_j by the weights p_j that GSP gives to the projected ones W X_j."""

    guided: ClassVar[bool] = True
    has_attributes: ClassVar[bool] = True

    def __init__(self, dim: int, prototypes: int, mu: float, eps: float, memory: int) -> None:
        check_numbers(type(self).__name__, mu, eps)
        super().__init__(dim, prototypes, memory)
        self.mu, self.eps = mu, eps

    def pool(self, features: Tensor, mask: Tensor | None) -> Pooled:
        """Refuse to pool without a guide."""
        raise ValueError(f"{type(self).__name__} pools raw features by the projected ones: give them as guide=")

    def select(self, guide: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the weights (B, n) and attributes (B, m) of the projected tokens (B, n, d)."""
        if self.is_ready:
            chosen = gsp(guide, self.prototypes, self.mu, self.eps, mask)
            return chosen.weights, chosen.attributes
        x = counted(guide, mask)
        weights = uniform_weights(x, mask)
        if self.training:
            self.collect(weighted_sum(x, weights))
        return weights, weights.new_zeros(len(x), len(self.prototypes))


class GMPGSP(GuidedByGSP):
    r"""Max pooling plus Generalized Sum Pooling, both of the raw map, with weights from the projected one.

    $$g = \max_j X_j + \sum_j p_j X_j, \qquad p = \text{the weights of GSP for } W X$$

    where W is the projection that follows. With `maximum=weighted` it is $g = \max_j n p_j X_j$ instead, as in the
    original authors' PyTorch code: the maximum of the re-weighted map, and no average. As weights it shows the mean of
    p and of the shares of channels that are largest at each place.

    Reference: Gürbüz, Şener and Alatan, "Generalized Sum Pooling for Metric Learning", ICCV 2023.

    Args:
        dim: Size of the projected features.
        prototypes: Number of prototypes m.
        mu: Share of the features to keep, in (0, 1].
        eps: Sharpness of the selection.
        memory: Embeddings to collect before the prototypes are set from them; at least twice `prototypes`.
        maximum: Whether the maximum is of the map as it is, with the weighted sum beside it, or of the weighted map.
    """

    def __init__(
        self, dim: int, *, prototypes: int = 64, mu: float = 0.3, eps: float = 5.0, memory: int = 1024,
        maximum: Literal["plain", "weighted"] = "plain",
    ) -> None:  # fmt: skip
        super().__init__(dim, prototypes, mu, eps, memory)
        self.maximum = maximum

    def pool_guided(self, features: Tensor, guide: Tensor, mask: Tensor | None) -> Pooled:
        """Pool raw tokens (B, n, C) by projected ones (B, n, d)."""
        x = counted(features, mask)
        p, attributes = self.select(guide, mask)
        p = p.to(x.dtype)
        if self.maximum == "weighted":
            pooled, winners = maximum(x * (p * count(x, mask))[..., None], mask)
            return Pooled(pooled.to(features.dtype), winners, attributes)
        largest, winners = maximum(x, mask)
        return Pooled((largest + weighted_sum(x, p)).to(features.dtype), (p + winners) / 2, attributes)


class GeMeanGSP(GuidedByGSP):
    r"""Generalized mean of the raw map, weighed by Generalized Sum Pooling of the projected one.

    $$g_k = \Big(\frac1n \sum_j \max(n p_j X_{jk}, 10^{-6})^r\Big)^{1/r}, \qquad
      p = \text{the weights of GSP for } W X$$

    where W is the projection that follows, and r is learned. Weights are each feature's part in that sum, averaged over
    the channels.

    Reference: Gürbüz, Şener and Alatan, "Generalized Sum Pooling for Metric Learning", ICCV 2023; the mean is that of
    [`GeMean`][winnow.pooling.GeMean].

    Args:
        dim: Size of the projected features.
        prototypes: Number of prototypes m.
        mu: Share of the features to keep, in (0, 1].
        eps: Sharpness of the selection.
        memory: Embeddings to collect before the prototypes are set from them; at least twice `prototypes`.
        p: The power r that training starts from.
    """

    def __init__(
        self, dim: int, *, prototypes: int = 64, mu: float = 0.3, eps: float = 5.0, memory: int = 1024, p: float = 3.0
    ) -> None:
        super().__init__(dim, prototypes, mu, eps, memory)
        if not p > 0:
            raise ValueError(f"the power p of GeMeanGSP must be above 0, got {p}")
        self.p = nn.Parameter(torch.tensor(float(p)))

    def pool_guided(self, features: Tensor, guide: Tensor, mask: Tensor | None) -> Pooled:
        """Pool raw tokens (B, n, C) by projected ones (B, n, d)."""
        x = counted(features, mask)
        chosen, attributes = self.select(guide, mask)
        scale = chosen.to(x.dtype) * count(x, mask)
        uniform = uniform_weights(x, mask)
        pooled, parts = power_mean(x * scale[..., None], self.p.to(x.dtype), uniform)
        return Pooled(pooled.to(features.dtype), shares(parts, uniform), attributes)


def count(features: Tensor, mask: Tensor | None) -> Tensor | int:
    """Return how many features of each image count, (B, 1)."""
    return features.shape[1] if mask is None else mask.sum(dim=1, keepdim=True)
