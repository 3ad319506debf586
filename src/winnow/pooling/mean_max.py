"""Average, max, generalized-mean, generalized-max, and top-k poolings."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from winnow.functional import PoolingOutput
from winnow.pooling.base import (
    Pooling,
    Stage,
    check_at_least,
    display_weights,
    masked_float,
    masked_mean,
    setting_repr,
    uniform_weights,
    weighted_sum,
)

MIN_FEATURE = 1e-6
"""Lower bound of features in a power mean; powers need positive numbers."""


def maximum(features: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    r"""Return $\max_j f_{jk}$ (B, d) of tokens (B, n, d), and its weights (B, n).

    The weight of a feature is the fraction of channels with their maximum there.
    """
    unmasked = features if mask is None else features.masked_fill(~mask[..., None], -torch.inf)
    pooled, winner = unmasked.max(dim=1)
    fraction = torch.full((1, 1), 1 / features.shape[2], device=features.device).expand(winner.shape)
    return pooled, torch.zeros(features.shape[:2], device=features.device).scatter_add(1, winner, fraction)


def power_mean(features: Tensor, p: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return the power mean of each channel, and the contribution of each feature.

    $$g_k = \Big(\sum_j w_j \max(f_{jk}, 10^{-6})^p\Big)^{1/p}$$

    Args:
        features: Tokens (B, n, d), float32 or float64.
        p: Power, a scalar tensor.
        weights: Weights (B, n) with row sums of one.

    Returns:
        Means (B, d), and contributions (B, n): fractions of the sum, averaged over channels, without gradient.
    """
    x = features.clamp(min=MIN_FEATURE)
    # Dividing by the largest value prevents overflow. The mean and its gradient do not depend on this unit.
    unit = x.detach().amax(dim=1, keepdim=True)
    powers = weights[..., None] * (x / unit) ** p
    total = powers.sum(dim=1, keepdim=True)
    pooled = (unit * total ** (1 / p)).squeeze(1)
    return pooled, (powers.detach() / total.detach()).mean(dim=2)


def generalized_max(features: Tensor, ridge: float, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    r"""Return the vector with equal similarity to all features, and its coefficients.

    $$g = \arg\min_g \sum_j (f_j^\top g - 1)^2 + \lambda \lVert g \rVert^2 = \sum_j \alpha_j f_j, \qquad
      \alpha = (F F^\top + \lambda I)^{-1} 1$$

    The system is solved in the smaller of the two dimensions: $g = (F^\top F + \lambda I)^{-1} F^\top 1$ and
    $\alpha_j = (1 - f_j^\top g) / \lambda$ are equivalent.

    Args:
        features: F, (B, n, d) of float32 or float64, zero where masked.
        ridge: Penalty lambda, above 0.
        mask: Boolean (B, n), true for features to pool. Default: all.

    Returns:
        Vectors (B, d) and coefficients (B, n).
    """
    images, n, d = features.shape
    # Long features make the matrix ill-conditioned at a ridge of 1; float32 would leave few correct digits.
    f = features.double()
    ones = f.new_ones(images, n) if mask is None else mask.double()
    if n <= d:
        alpha = _solve(f @ f.mT, ridge, ones)
        g = weighted_sum(f, alpha)
    else:
        g = _solve(f.mT @ f, ridge, weighted_sum(f, ones))
        alpha = ones * (1 - (f @ g[:, :, None]).squeeze(2)) / ridge
    return g.to(features.dtype), alpha.to(features.dtype)


def _solve(gram: Tensor, ridge: float, right: Tensor) -> Tensor:
    gram = gram + ridge * torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    # cholesky would synchronize with the device to check what ridge > 0 guarantees; cholesky_ex does not.
    root = torch.linalg.cholesky_ex(gram).L
    half = torch.linalg.solve_triangular(root, right[:, :, None], upper=False)
    solution: Tensor = torch.linalg.solve_triangular(root.mT, half, upper=True)
    return solution.squeeze(2)


def mean_of_largest(features: Tensor, k: int, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the mean of the k largest values per channel, and the feature weights.

    With fewer than k features all values are used. The weight of a feature is its average weight over channels.

    Args:
        features: Tokens (B, n, d).
        k: Number of values.
        mask: Boolean (B, n), true for features to pool. Default: all.

    Returns:
        Means (B, d) and weights (B, n).
    """
    n = features.shape[1]
    unmasked = features if mask is None else features.masked_fill(~mask[..., None], -torch.inf)
    values, indices = unmasked.topk(min(k, n), dim=1)  # (B, k, d) in descending order: masked values come last
    taken = features.new_ones(features.shape[0], values.shape[1], 1)
    if mask is not None:
        rank = torch.arange(values.shape[1], device=mask.device)
        taken = (rank < mask.sum(dim=1, keepdim=True)).to(features.dtype)[..., None]
    weight = (taken / taken.sum(dim=1, keepdim=True)).expand(values.shape)
    pooled = (weight * torch.where(weight > 0, values, 0.0)).sum(dim=1)
    total = features.new_zeros(features.shape[:2]).scatter_add(1, indices.flatten(1), weight.flatten(1))
    return pooled, total / features.shape[2]


class GAP(Pooling):
    r"""Global average pooling: the mean of all local features.

    $$g = \frac1n \sum_j f_j$$

    Reference: Lin, Chen, Yan, "Network In Network", ICLR 2014.
    Use when: you need a baseline, or the object fills the image.
    Differences: none for maps; equals `torch.nn.AdaptiveAvgPool2d(1)`. Accepts tokens and masks as well.
    """

    def pool(self, features: Tensor, mask: Tensor | None) -> PoolingOutput:
        """Average tokens (B, n, d)."""
        pooled, weights = masked_mean(features, mask)
        return PoolingOutput(pooled, weights, None)


class GMP(Pooling):
    r"""Global max pooling: the largest value of each channel.

    $$g_k = \max_j f_{jk}$$

    Reference: Tolias, Sicre, Jégou, "Particular object retrieval with integral max-pooling of CNN activations",
        ICLR 2016 (MAC).
    Use when: few locations contain the object.
    Differences: none for maps; equals `torch.nn.AdaptiveMaxPool2d(1)`. Weights are for display: the fraction of
        channels with their maximum at a location.
    """

    def pool(self, features: Tensor, mask: Tensor | None) -> PoolingOutput:
        """Take the maximum of tokens (B, n, d) in each channel."""
        return PoolingOutput(*maximum(features, mask), None)


class ProjectedMaxPooling(GMP):
    r"""Global max pooling of projected features.

    $$g_k = \max_j (W f_j)_k$$

    Reference: winnow. [Thesis] pools the channels of the backbone, as `gmp` does.
    Use when: the backbone is frozen. `gmp` then learns nothing before the maximum.
    Differences: the projection W comes before the maximum, not after it.
    """

    stage: ClassVar[Stage] = "projected"


class AverageMaxPooling(Pooling):
    r"""Sum of average and max pooling, the default of the conventional protocol.

    $$g_k = \frac1n \sum_j f_{jk} + \max_j f_{jk}$$

    Reference: the authors' code of Kim et al., "Proxy Anchor Loss", CVPR 2020.
    Use when: you reproduce methods of the conventional protocol.
    Differences: timm `avgmax` is half of this sum. Weights are the average of the weights of both terms.
    """

    def pool(self, features: Tensor, mask: Tensor | None) -> PoolingOutput:
        """Add the mean and the maximum of tokens (B, n, d)."""
        mean, uniform = masked_mean(masked_float(features, mask), mask)
        largest, winners = maximum(features, mask)
        return PoolingOutput((mean + largest).to(features.dtype), (uniform + winners) / 2, None)


class GeM(Pooling):
    r"""Generalized mean pooling (GeM) with a learned power p.

    $$g_k = \Big(\frac1n \sum_j \max(f_{jk}, 10^{-6})^p\Big)^{1/p}$$

    p = 1 is average pooling; large p approaches max pooling.

    Reference: Radenović, Tolias, Chum, "Fine-tuning CNN Image Retrieval with No Human Annotation", TPAMI 2019.
    Use when: you want one learned number between average and max pooling. A strong default for landmarks.
    Differences: none in value from the authors' `GeM`. Powers are taken relative to the largest value, so they do not
        overflow. Weights are each feature's fraction of the sum, averaged over channels.

    Args:
        p: Initial power, above 0; one for all channels.
    """

    def __init__(self, *, p: float = 3.0) -> None:
        super().__init__()
        self.initial_p = check_power(p)
        self.p = nn.Parameter(torch.tensor(float(p)))

    def pool(self, features: Tensor, mask: Tensor | None) -> PoolingOutput:
        """Pool tokens (B, n, d)."""
        x = masked_float(features, mask)
        uniform = uniform_weights(x, mask)
        pooled, fractions = power_mean(x, self.p.to(x.dtype), uniform)
        return PoolingOutput(pooled.to(features.dtype), display_weights(fractions, uniform), None)

    def extra_repr(self) -> str:
        """Return the settings for `repr`."""
        return setting_repr(p=self.initial_p)


def check_power(p: float) -> float:
    """Return the initial power of a mean, or raise `ValueError` if it is not above 0."""
    if not p > 0:
        raise ValueError(f"p: expected a power above 0, got {p}.")
    return float(p)


class GeMax(Pooling):
    r"""Generalized max pooling: the vector has equal similarity to all features.

    $$g = \sum_j \alpha_j f_j, \qquad \alpha = (F F^\top + \lambda I)^{-1} 1$$

    The rows of F are the features. Frequent features get small coefficients.

    Reference: Murray, Perronnin, "Generalized Max Pooling", CVPR 2014.
    Use when: repeated texture dominates the average.
    Differences: pools network features, where the paper pools encoded descriptors. Coefficients may be negative;
        weights are the normalized positive ones.

    Args:
        ridge: Penalty lambda, above 0. As it grows, the vector turns toward the average.
    """

    def __init__(self, *, ridge: float = 1.0) -> None:
        super().__init__()
        if not ridge > 0:
            raise ValueError(f"ridge: expected a number above 0, got {ridge}.")
        self.ridge = ridge

    def pool(self, features: Tensor, mask: Tensor | None) -> PoolingOutput:
        """Pool tokens (B, n, d)."""
        x = masked_float(features, mask)
        pooled, alpha = generalized_max(x, self.ridge, mask)
        weights = display_weights(alpha.clamp(min=0), uniform_weights(x, mask))
        return PoolingOutput(pooled.to(features.dtype), weights, None)

    def extra_repr(self) -> str:
        """Return the settings for `repr`."""
        return setting_repr(ridge=self.ridge)


class WELDON(Pooling):
    r"""Mean of the largest values of each channel plus the mean of its smallest values.

    $$g_k = \frac1{k^+} \sum_{j \in \text{top}_{k^+}} f_{jk} + \frac1{k^-} \sum_{j \in \text{low}_{k^-}} f_{jk}$$

    Reference: Durand, Thome, Cord, "WELDON: Weakly Supervised Learning of Deep Convolutional Neural Networks",
        CVPR 2016.
    Use when: the absence of a feature is evidence as well.
    Differences: pools projected features, where the paper pools maps of class scores. [Thesis] takes sums, which
        differ by a constant factor if both counts are equal. Weights are averages over channels.

    Args:
        largest: Number of largest values, at least 1.
        smallest: Number of smallest values, at least 1.
    """

    stage: ClassVar[Stage] = "projected"

    def __init__(self, *, largest: int = 3, smallest: int = 3) -> None:
        super().__init__()
        check_at_least("largest", largest, 1)
        check_at_least("smallest", smallest, 1)
        self.largest, self.smallest = largest, smallest

    def pool(self, features: Tensor, mask: Tensor | None) -> PoolingOutput:
        """Pool tokens (B, n, d)."""
        x = masked_float(features, mask)
        top, best = mean_of_largest(x, self.largest, mask)
        low, worst = mean_of_largest(-x, self.smallest, mask)
        return PoolingOutput((top - low).to(features.dtype), (best + worst) / 2, None)

    def extra_repr(self) -> str:
        """Return the settings for `repr`."""
        return setting_repr(largest=self.largest, smallest=self.smallest)
