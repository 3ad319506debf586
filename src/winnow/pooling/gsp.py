"""Generalized Sum Pooling, and the poolings that use its weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from winnow.functional import PoolingOutput, gsp
from winnow.functional.selection import normalize_prior
from winnow.pooling.base import Stage, display_weights, masked_float, masked_mean, uniform_weights, weighted_sum
from winnow.pooling.mean_max import check_power, maximum, power_mean
from winnow.pooling.prototypes import SETTING_ALIASES, PrototypePooling, check_eps

Role = Literal["foreground", "background"]


class GSP(PrototypePooling):
    r"""Generalized Sum Pooling: mean of the features nearest to learned prototypes.

    $$g = \sum_j p_j f_j, \qquad p_j = \frac{\sigma(\tau + l_j)}{n\mu}, \qquad
      l_j = \log \sum_i e^{-\varepsilon \lVert \bar w_i - \bar f_j \rVert_2}, \qquad
      \tau:\; \tfrac1n\sum_j \sigma(\tau + l_j) = \mu$$

    $\bar u$ is $u$ scaled to at most unit length. Input: projected features, so prototypes and embeddings share a
    space. With `role=background` the prototypes represent clutter: the fraction mu nearest to them is dropped, and the
    weights are $(1/n - \mu p_j) / (1 - \mu)$.

    Reference: [GSP], section 4; the background role is appendix B.
    Use when: background covers much of the image and the backbone is frozen. No gain was measured with fine-tuned
        backbones on CUB-200-2011 and Cars196 (`results/protocols/`).
    Differences: the threshold $\tau$ is exact, where [GSP] has 100 fixed-point iterations. The layer equals GAP with
        attributes of zero until prototypes are set from `memory_size` training embeddings, or by `init_prototypes`.
        Evaluating it earlier warns once. Not in pytorch-metric-learning.

    Args:
        in_features: Channels of the features.
        num_prototypes: Number of prototypes m, at least 1. [GSP] uses 64 (CUB, Cars) and 128 (SOP, In-shop).
        mu: Fraction of features matched to prototypes, in (0, 1]; 1 is GAP.
        eps: Selection sharpness, at least 0; 0 is GAP, large values select the nearest features. Try 20 if frozen.
        memory_size: Embeddings collected before initialization, at least twice `num_prototypes`.
        role: Keep features near the prototypes (foreground), or drop them (background).
        learn_mu: Train mu, as the sigmoid of a parameter.
        learn_eps: Train eps, as the exponential of a parameter.
    """

    stage: ClassVar[Stage] = "projected"
    has_attributes: ClassVar[bool] = True
    aliases: ClassVar[Mapping[str, str]] = SETTING_ALIASES

    def __init__(
        self,
        in_features: int,
        *,
        num_prototypes: int = 64,
        mu: float = 0.3,
        eps: float = 5.0,
        memory_size: int = 1024,
        role: Role = "foreground",
        learn_mu: bool = False,
        learn_eps: bool = False,
    ) -> None:
        check_mu(mu)
        check_eps(eps)
        if role not in ("foreground", "background"):
            raise ValueError(f"role: expected 'foreground' or 'background', got {role!r}.")
        if mu == 1 and (learn_mu or role == "background"):
            raise ValueError(f"mu: expected below 1 with {'learn_mu' if learn_mu else 'role=background'}, got {mu}.")
        if eps == 0 and learn_eps:
            raise ValueError(f"eps: expected above 0 with learn_eps, got {eps}.")
        super().__init__(in_features, num_prototypes, memory_size)
        self.role = role
        self._mu, self._eps = mu, eps
        self.mu_logit = nn.Parameter(torch.tensor(math.log(mu / (1 - mu)))) if learn_mu else None
        self.log_eps = nn.Parameter(torch.tensor(math.log(eps))) if learn_eps else None

    @property
    def mu(self) -> Tensor | float:
        """Fraction of features matched to prototypes; a scalar tensor if it is learned."""
        return self._mu if self.mu_logit is None else self.mu_logit.sigmoid()

    @property
    def eps(self) -> Tensor | float:
        """Selection sharpness; a scalar tensor if it is learned."""
        return self._eps if self.log_eps is None else self.log_eps.exp()

    def average(self, features: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the mean (B, d) of tokens (B, n, d) and its weights (B, n), as GAP."""
        return masked_mean(features, mask)

    def pool(
        self, features: Tensor, mask: Tensor | None = None, mu: Tensor | None = None, prior: Tensor | None = None
    ) -> PoolingOutput:
        """Pool tokens (B, n, d).

        Args:
            features: Local features.
            mask: Boolean (B, n), true for features to pool. Default: all.
            mu: Fraction for each image (B,), which replaces the layer's mu.
            prior: Mass of each feature before selection, (B, n), at least 0. Default: equal masses.
        """
        fraction = self.mu if mu is None else mu
        if self.prototypes_ready:
            result = PoolingOutput(*gsp(features, self.prototypes, fraction, self.eps, mask, prior))
            return result if self.role == "foreground" else pool_residual(features, result, fraction, mask, prior)
        if prior is None:
            pooled, weights = self.average(features, mask)
        else:
            x = masked_float(features, mask)
            weights = normalize_prior(prior.to(x.dtype), mask)
            pooled = weighted_sum(x, weights).to(features.dtype)
        self.observe(pooled)
        return PoolingOutput(pooled, weights, weights.new_zeros(pooled.shape[0], len(self.prototypes)))

    def extra_repr(self) -> str:
        """Return the settings and the state for `repr`."""
        learned = {"learn_mu": True} if self.mu_logit is not None else {}
        learned |= {"learn_eps": True} if self.log_eps is not None else {}
        return self.describe(mu=self._mu, eps=self._eps, role=self.role, **learned)


def check_mu(mu: float) -> None:
    """Raise `ValueError` if a fraction of features is not in (0, 1]."""
    if not 0 < mu <= 1:
        raise ValueError(f"mu: expected a fraction in (0, 1], got {mu}.")


def pool_residual(
    features: Tensor, moved: PoolingOutput, mu: Tensor | float, mask: Tensor | None = None, prior: Tensor | None = None
) -> PoolingOutput:
    r"""Pool with the mass that transport does not move.

    $$g = \sum_j \frac{\rho_j}{1 - \mu} f_j, \qquad \rho_j = q_j - \mu p_j$$

    $p$ are the weights of the moved mass, and $q_j = 1/n$ or the prior.

    Reference: [GSP], appendix B.

    Args:
        features: Tokens (B, n, d).
        moved: Result of [`gsp`][winnow.functional.gsp] for these features. Its attributes are returned unchanged.
        mu: Fraction that was moved, below 1: a number, a scalar tensor, or one value per image.
        mask: Boolean (B, n), true for features to pool. Default: all.
        prior: Masses (B, n), if `gsp` was called with a prior.
    """
    assert moved.weights is not None
    x = masked_float(features, mask)
    fraction = mu.to(x.dtype).reshape(-1, 1) if isinstance(mu, Tensor) else mu
    masses = uniform_weights(x, mask) if prior is None else normalize_prior(prior.to(x.dtype), mask)
    weights = (masses - fraction * moved.weights).clamp(min=0) / (1 - fraction)  # negative by rounding only
    return PoolingOutput(weighted_sum(x, weights).to(features.dtype), weights, moved.attributes)


class GSPGuidedPooling(PrototypePooling):
    """Base class of poolings of raw features with GSP weights of projected features."""

    needs_guide: ClassVar[bool] = True
    has_attributes: ClassVar[bool] = True
    aliases: ClassVar[Mapping[str, str]] = SETTING_ALIASES

    def __init__(self, dim: int, num_prototypes: int, mu: float, eps: float, memory_size: int) -> None:
        check_mu(mu)
        check_eps(eps)
        super().__init__(dim, num_prototypes, memory_size)
        self.in_features, self.guide_features = None, dim
        self.mu, self.eps = mu, eps

    def pool(self, features: Tensor, mask: Tensor | None) -> PoolingOutput:
        """Raise `ValueError`, because the guide is missing."""
        raise ValueError(f"guide: {type(self).__name__} needs the projected features. Pass them as guide=.")

    def select(self, guide: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the weights (B, n) and attributes (B, m) of projected tokens (B, n, d)."""
        if self.prototypes_ready:
            chosen = gsp(guide, self.prototypes, self.mu, self.eps, mask)
            return chosen.weights, chosen.attributes
        mean, weights = self.average(guide, mask)
        self.observe(mean)
        return weights, weights.new_zeros(len(mean), len(self.prototypes))


class GMPGSP(GSPGuidedPooling):
    r"""Max pooling plus Generalized Sum Pooling of raw features.

    $$g = \max_j X_j + \sum_j p_j X_j, \qquad p = \text{weights of GSP for } W X$$

    W is the projection that follows. With `maximum=weighted` the result is $g = \max_j n p_j X_j$.

    Reference: [GSP].
    Use when: average plus max pooling is your baseline.
    Differences: `maximum=weighted` follows the authors' PyTorch code: the maximum of the reweighted map, without the
        sum. Weights are the average of p and of the fraction of channels with their maximum at a location.

    Args:
        dim: Channels of the projected features.
        num_prototypes: Number of prototypes m, at least 1.
        mu: Fraction of features matched to prototypes, in (0, 1].
        eps: Selection sharpness, at least 0.
        memory_size: Embeddings collected before initialization, at least twice `num_prototypes`.
        maximum: Add the maximum of the map to the weighted sum (plain), or return the maximum of the weighted map.
    """

    def __init__(
        self, dim: int, *, num_prototypes: int = 64, mu: float = 0.3, eps: float = 5.0, memory_size: int = 1024,
        maximum: Literal["plain", "weighted"] = "plain",
    ) -> None:  # fmt: skip
        super().__init__(dim, num_prototypes, mu, eps, memory_size)
        if maximum not in ("plain", "weighted"):
            raise ValueError(f"maximum: expected 'plain' or 'weighted', got {maximum!r}.")
        self.maximum = maximum

    def pool_guided(self, features: Tensor, guide: Tensor, mask: Tensor | None) -> PoolingOutput:
        """Pool raw tokens (B, n, C) with weights from projected tokens (B, n, d)."""
        x = masked_float(features, mask)
        p, attributes = self.select(guide, mask)
        p = p.to(x.dtype)
        if self.maximum == "weighted":
            pooled, winners = maximum(x * (p * unmasked_count(x, mask))[..., None], mask)
            return PoolingOutput(pooled.to(features.dtype), winners, attributes)
        largest, winners = maximum(x, mask)
        return PoolingOutput((largest + weighted_sum(x, p)).to(features.dtype), (p + winners) / 2, attributes)

    def extra_repr(self) -> str:
        """Return the settings and the state for `repr`."""
        return self.describe(mu=self.mu, eps=self.eps, maximum=self.maximum)


class GeMGSP(GSPGuidedPooling):
    r"""Generalized mean of raw features with the weights of Generalized Sum Pooling.

    $$g_k = \Big(\frac1n \sum_j \max(n p_j X_{jk}, 10^{-6})^r\Big)^{1/r}, \qquad
      p = \text{weights of GSP for } W X$$

    W is the projection that follows, and r is learned.

    Reference: [GSP]; mean as in [`GeM`][winnow.pooling.GeM].
    Use when: GeM is your baseline.
    Differences: none known. Weights are each feature's fraction of the sum, averaged over channels.

    Args:
        dim: Channels of the projected features.
        num_prototypes: Number of prototypes m, at least 1.
        mu: Fraction of features matched to prototypes, in (0, 1].
        eps: Selection sharpness, at least 0.
        memory_size: Embeddings collected before initialization, at least twice `num_prototypes`.
        p: Initial power r, above 0.
    """

    def __init__(
        self, dim: int, *, num_prototypes: int = 64, mu: float = 0.3, eps: float = 5.0, memory_size: int = 1024,
        p: float = 3.0,
    ) -> None:  # fmt: skip
        super().__init__(dim, num_prototypes, mu, eps, memory_size)
        self.initial_p = check_power(p)
        self.p = nn.Parameter(torch.tensor(float(p)))

    def pool_guided(self, features: Tensor, guide: Tensor, mask: Tensor | None) -> PoolingOutput:
        """Pool raw tokens (B, n, C) with weights from projected tokens (B, n, d)."""
        x = masked_float(features, mask)
        chosen, attributes = self.select(guide, mask)
        scale = chosen.to(x.dtype) * unmasked_count(x, mask)
        uniform = uniform_weights(x, mask)
        pooled, fractions = power_mean(x * scale[..., None], self.p.to(x.dtype), uniform)
        return PoolingOutput(pooled.to(features.dtype), display_weights(fractions, uniform), attributes)

    def extra_repr(self) -> str:
        """Return the settings and the state for `repr`."""
        return self.describe(mu=self.mu, eps=self.eps, p=self.initial_p)


def unmasked_count(features: Tensor, mask: Tensor | None) -> Tensor | int:
    """Return the number of unmasked features of each image, (B, 1)."""
    return features.shape[1] if mask is None else mask.sum(dim=1, keepdim=True)
