"""Generalized Sum Pooling as a layer, with prototypes that start from data."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from winnow.functional import Pooled, gsp
from winnow.functional.selection import normalise_prior
from winnow.pooling.base import counted, masked_mean, uniform_weights, weighted_sum
from winnow.pooling.prototypes import PrototypePooling

Role = Literal["foreground", "background"]


class GSP(PrototypePooling):
    r"""Generalized Sum Pooling: keep the share mu of the features that lie nearest to learned prototypes.

    $$g = \sum_j p_j f_j, \qquad p_j = \frac{\sigma(\tau + l_j)}{n\mu}, \qquad
      l_j = \log \sum_i e^{-\varepsilon \lVert \bar w_i - \bar f_j \rVert_2}, \qquad
      \tau:\; \tfrac1n\sum_j \sigma(\tau + l_j) = \mu$$

    It pools the projected map, so that prototypes live in the embedding's space. Prototypes start from data: until a
    memory of average-pooled training embeddings is full the layer *is* average pooling (uniform weights, zero
    attributes, `is_ready` false); then a greedy k-centre cover of the memory becomes the prototypes, in place, so that
    an optimiser built earlier goes on to train them. All of that state is in buffers and travels in the state dict.

    With `role=background` the prototypes stand for the clutter instead: the share mu nearest to them is dropped, and
    the weights are those of what stays behind, $(1/n - \mu p_j) / (1 - \mu)$.

    Reference: Gürbüz, Şener and Alatan, "Generalized Sum Pooling for Metric Learning", ICCV 2023.

    Args:
        width: Size of the features.
        prototypes: Number of prototypes m.
        mu: Share of the features that goes to the prototypes, in (0, 1].
        eps: Sharpness of the selection: 0 is average pooling, large a hard choice of the nearest features.
        memory: Embeddings to collect before the prototypes are set from them; at least twice `prototypes`.
        role: Whether what is near the prototypes is kept (foreground) or dropped (background).
        learn_mu: Train mu, as the sigmoid of a parameter.
        learn_eps: Train eps, as the exponential of a parameter.
    """

    pools: ClassVar[Literal["raw", "projected"]] = "projected"
    has_attributes: ClassVar[bool] = True

    def __init__(
        self,
        width: int,
        *,
        prototypes: int = 64,
        mu: float = 0.3,
        eps: float = 5.0,
        memory: int = 1024,
        role: Role = "foreground",
        learn_mu: bool = False,
        learn_eps: bool = False,
    ) -> None:
        check_numbers("GSP", mu, eps)
        if mu == 1 and (learn_mu or role == "background"):
            raise ValueError(f"mu must be below 1 to be {'learned' if learn_mu else 'dropped'}, got {mu}")
        if eps == 0 and learn_eps:
            raise ValueError("the sharpness eps must be above 0 to be learned, got 0")
        super().__init__(width, prototypes, memory)
        self.role = role
        self._mu, self._eps = mu, eps
        self.mu_logit = nn.Parameter(torch.tensor(math.log(mu / (1 - mu)))) if learn_mu else None
        self.log_eps = nn.Parameter(torch.tensor(math.log(eps))) if learn_eps else None

    @property
    def mu(self) -> Tensor | float:
        """The share of the features that goes to the prototypes; a scalar tensor where it is learned."""
        return self._mu if self.mu_logit is None else self.mu_logit.sigmoid()

    @property
    def eps(self) -> Tensor | float:
        """The sharpness of the selection; a scalar tensor where it is learned."""
        return self._eps if self.log_eps is None else self.log_eps.exp()

    def pool(
        self, features: Tensor, mask: Tensor | None = None, mu: Tensor | None = None, prior: Tensor | None = None
    ) -> Pooled:
        """Pool tokens (B, n, d).

        Args:
            features: Local features.
            mask: (B, n) bool, true for the features that count; default all.
            mu: (B,) a share for each image, in place of the layer's own.
            prior: (B, n) mass of each feature before any selection, not negative; default the same for all.
        """
        share = self.mu if mu is None else mu
        if self.is_ready:
            result = Pooled(*gsp(features, self.prototypes, share, self.eps, mask, prior))
            return result if self.role == "foreground" else left_behind(features, result, share, mask, prior)
        if prior is None:
            pooled, weights = masked_mean(features, mask)
        else:
            x = counted(features, mask)
            weights = normalise_prior(prior.to(x.dtype), mask)
            pooled = weighted_sum(x, weights).to(features.dtype)
        if self.training:
            self.collect(pooled)
        return Pooled(pooled, weights, weights.new_zeros(pooled.shape[0], len(self.prototypes)))

    def extra_repr(self) -> str:
        """Describe the layer in `repr`."""
        count, width = self.prototypes.shape
        return f"width={width}, prototypes={count}, mu={self._mu}, eps={self._eps}, ready={self.is_ready}"


def check_numbers(name: str, mu: float, eps: float) -> None:
    """Refuse a share or a sharpness out of range."""
    if not 0 < mu <= 1:
        raise ValueError(f"{name} keeps a share mu of the features, which must be in (0, 1], got {mu}")
    if not 0 <= eps < math.inf:
        raise ValueError(f"the sharpness eps of {name} must be finite and not negative, got {eps}")


def left_behind(
    features: Tensor, moved: Pooled, mu: Tensor | float, mask: Tensor | None = None, prior: Tensor | None = None
) -> Pooled:
    r"""Pool what transport leaves behind: with $q_j = 1/n$, or the prior, and $p$ the weights of what is moved,

    $$g = \sum_j \frac{\rho_j}{1 - \mu} f_j, \qquad \rho_j = q_j - \mu p_j.$$

    Reference: appendix B of "Generalized Sum Pooling for Metric Learning", ICCV 2023.

    Args:
        features: (B, n, d).
        moved: What [`gsp`][winnow.functional.gsp] returned for them; its attributes are passed on.
        mu: The share that was moved, below 1: a number, a scalar tensor, or one value per image.
        mask: (B, n) bool, true for the features that count; default all.
        prior: (B, n), if `gsp` was given one.
    """
    assert moved.weights is not None
    x = counted(features, mask)
    share = mu.to(x.dtype).reshape(-1, 1) if isinstance(mu, Tensor) else mu
    masses = uniform_weights(x, mask) if prior is None else normalise_prior(prior.to(x.dtype), mask)
    weights = (masses - share * moved.weights).clamp(min=0) / (1 - share)  # rounding alone makes any of them negative
    return Pooled(weighted_sum(x, weights).to(features.dtype), weights, moved.attributes)
