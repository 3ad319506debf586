"""Distance-weighted sampling."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.losses import Pairs
from winnow.mining.base import Mining, largest


class DistanceWeighted(Mining):
    r"""Negatives drawn so that every distance is as likely as any other.

    $$P'_q = P_q, \qquad N'_q = |P_q| \text{ draws of } n \in N_q \text{ with } d_{qn} < u, \qquad
      \Pr(n) \propto \frac{1}{q(\max(l, d_{qn}))}, \qquad
      q(d) \propto d^{\,D-2} \Big[1 - \frac{d^2}{4}\Big]^{\frac{D-3}2}$$

    $q$ is the density of the distance between two random points on the sphere in $D$ dimensions. Most random pairs are
    near $\sqrt 2$ apart; dividing by their density lets near, hard ones and far ones be drawn alike. Nearer than $l$
    the weight no longer grows, so that noise is not chosen all the time; beyond $u$ the loss has nothing to say.
    Draws are without replacement: the largest of $\log \Pr(n) + G_n$ with independent Gumbel $G_n$. Where fewer
    negatives are within $u$, there are fewer.

    When to use it: with the margin loss, whose paper it is from, and with contrastive or triplet losses on batches of
    several images per class.

    Reference: Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017.

    Args:
        lower: Distance l below which the weight stays the same.
        upper: Distance u from which on no negative is drawn.
    """

    def __init__(self, *, lower: float = 0.5, upper: float = 1.4) -> None:
        super().__init__()
        if not 0 < lower < upper:
            raise ValueError(f"the cut-offs must be above 0 and in order, got {lower} and {upper}")
        self.lower, self.upper = lower, upper

    def choose(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return which positives and which negatives remain."""
        d = pairs.distances()
        gumbel = -torch.empty_like(d).exponential_().log()
        scores = gumbel - log_density(d.clamp(min=self.lower), pairs.queries.shape[1])
        near = pairs.negatives & (d < self.upper)
        return pairs.positives, largest(scores, near, pairs.positives.sum(dim=1))


def log_density(distances: Tensor, dimensions: int) -> Tensor:
    r"""Return $\log q(d)$ up to a constant: how likely random unit vectors are that far apart.

    Args:
        distances: Any shape, above 0.
        dimensions: D.
    """
    inside = (1 - distances.square() / 4).clamp(min=torch.finfo(distances.dtype).eps)  # opposite vectors: above 0
    return (dimensions - 2) * distances.log() + (dimensions - 3) / 2 * inside.log()
