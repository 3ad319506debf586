"""Multi-similarity loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from winnow.losses.base import PairLoss
from winnow.losses.pairs import Pairs


class MultiSimilarity(PairLoss):
    r"""Multi-similarity loss over all pairs.

    $$L = \frac1Q \sum_q \Big( \tfrac1\alpha \log\big(1 + \sum_{r \in P_q} e^{-\alpha (s_{qr} - \lambda)}\big)
        + \tfrac1\beta \log\big(1 + \sum_{r \in N_q} e^{\beta (s_{qr} - \lambda)}\big) \Big)$$

    When to use it: first. It weighs pairs by how wrong they are, so that it needs no mining and trains well on small
    batches with a few images per class; its defaults carry over between data sets better than margins do.

    Reference: Wang et al., "Multi-Similarity Loss with General Pair Weighting", CVPR 2019 (without its mining).

    Args:
        alpha: Sharpness over positive pairs.
        beta: Sharpness over negative pairs.
        threshold: Similarity lambda that separates the two.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cub": {"alpha": 2.0, "beta": 40.0, "threshold": 0.5},
        "cars": {"alpha": 14.35, "beta": 75.83, "threshold": 0.66},
        "sop": {"alpha": 2.0, "beta": 40.0, "threshold": 0.5},
        "inshop": {"alpha": 8.49, "beta": 57.38, "threshold": 0.41},
    }

    def __init__(self, *, alpha: float = 2.0, beta: float = 40.0, threshold: float = 0.5) -> None:
        super().__init__()
        self.alpha, self.beta, self.threshold = alpha, beta, threshold

    def compare(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""
        s = pairs.cosines() - self.threshold
        pull = log_one_plus_sum_exp(-self.alpha * s, pairs.positives) / self.alpha
        push = log_one_plus_sum_exp(self.beta * s, pairs.negatives) / self.beta
        return (pull + push).sum() / max(len(pairs.queries), 1)


def log_one_plus_sum_exp(values: Tensor, mask: Tensor) -> Tensor:
    r"""Return $\log(1 + \sum_{j: \text{mask}} e^{x_{ij}})$ for each row; 0 where nothing is unmasked."""
    return pad(values.masked_fill(~mask, -torch.inf), (1, 0)).logsumexp(dim=1)
