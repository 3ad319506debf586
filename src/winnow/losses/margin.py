"""Margin loss with a trainable boundary."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from winnow.losses.base import PairLoss
from winnow.losses.pairs import Pairs


class Margin(PairLoss):
    r"""Margin loss: positives below, negatives above a boundary that is learned.

    $$L = \operatorname{mean}_{+} \big( [d_{qp} - \beta + \alpha]_+,\; [\beta + \alpha - d_{qn}]_+ \big) + \nu \beta$$

    with one mean over the terms of both kinds that are above zero. With a boundary for each class, a pair is judged by
    $\beta_{y_q}$, that of its query's class, and $\nu$ weighs the mean of all boundaries. The loss of the paper draws
    its negatives by distance: `mining=distance_weighted`. Without that all pairs count.

    When to use it: where the right distance between classes is unknown, since the boundary finds it; with
    distance-weighted mining it is a strong baseline on batches of several images per class. Boundaries learn slowly at
    the network's rate: `train.lr_multipliers={'loss.beta': 100}` lets them move.

    Reference: Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017.

    Args:
        num_classes: Training classes; needed for a boundary per class, whose labels must be 0 .. num_classes - 1.
        alpha: Half the width of the band between positives and negatives.
        beta: Where the boundary starts; it is trained.
        nu: Weight that keeps the boundary from growing.
        per_class: Whether every class has a boundary of its own.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        *,
        alpha: float = 0.2,
        beta: float = 1.2,
        nu: float = 0.0,
        per_class: bool = False,
    ) -> None:
        super().__init__()
        if per_class and num_classes is None:
            raise ValueError("a boundary for each class needs the number of classes: give num_classes")
        self.alpha, self.nu, self.per_class = alpha, nu, per_class
        self.beta = nn.Parameter(torch.full((num_classes,) if per_class and num_classes else (), float(beta)))

    def compare(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""
        d = pairs.distances()
        beta = self.beta.to(d.dtype)
        boundary = beta[pairs.labels, None] if self.per_class else beta
        pull = (d - boundary + self.alpha).relu() * pairs.positives
        push = (boundary + self.alpha - d).relu() * pairs.negatives
        active = (pull > 0).sum() + (push > 0).sum()
        return (pull.sum() + push.sum()) / active.clamp(min=1) + self.nu * beta.mean()
