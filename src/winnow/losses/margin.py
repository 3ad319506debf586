"""Margin loss with a trainable boundary."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from winnow.functional import pairwise_distance
from winnow.losses.base import PairLoss


class Margin(PairLoss):
    r"""Margin loss: positives below, negatives above a boundary that is learned.

    $$L = \operatorname{mean}_{+} \big( [d_{qp} - \beta + \alpha]_+,\; [\beta + \alpha - d_{qn}]_+ \big) + \nu \beta$$

    with one mean over the terms of both kinds that are above zero. Its paper samples negatives by distance; without
    that, all pairs count.
    Reference: Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017.

    Args:
        alpha: Half the width of the band between positives and negatives.
        beta: Where the boundary starts; it is trained.
        nu: Weight that keeps the boundary from growing.
    """

    def __init__(self, *, alpha: float = 0.2, beta: float = 1.2, nu: float = 0.0) -> None:
        super().__init__()
        self.alpha, self.nu = alpha, nu
        self.beta = nn.Parameter(torch.tensor(beta))

    def compare(self, queries: Tensor, references: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        """Return the scalar loss of unit queries (Q, d) and references (R, d) under pair masks (Q, R)."""
        d = pairwise_distance(queries, references)
        beta = self.beta.to(d.dtype)
        pull = (d - beta + self.alpha).relu() * positives
        push = (beta + self.alpha - d).relu() * negatives
        active = (pull > 0).sum() + (push > 0).sum()
        return (pull.sum() + push.sum()) / active.clamp(min=1) + self.nu * beta
