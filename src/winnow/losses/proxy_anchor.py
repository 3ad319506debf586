"""Proxy-Anchor loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from winnow.losses.base import PairLoss
from winnow.losses.multi_similarity import log_one_plus_sum_exp
from winnow.losses.pairs import Pairs


class ProxyAnchor(PairLoss):
    r"""Proxy-Anchor loss: each reference is the anchor, and the queries are what it is compared with.

    $$L = \frac1{|R^+|} \sum_{r \in R^+} \log\big(1 + \sum_{q \in P_r} e^{-\alpha (s_{qr} - \delta)}\big)
        + \frac1{|R^-|} \sum_{r \in R^-} \log\big(1 + \sum_{q \in N_r} e^{\alpha (s_{qr} + \delta)}\big)$$

    with $R^\pm$ the references that have a positive or a negative query. The paper divides the second sum by all
    proxies; in a batch of several classes that is the same number.

    When to use it: for fast and stable training on classes with many images each. It compares with proxies, so it
    does not need several images of a class in a batch. Proxies must learn faster than the network:
    `train.lr_multipliers={'references.proxies': 100}`. With very many small classes (SOP) most proxies are seldom
    pulled; losses over pairs of images are often ahead there.

    Reference: Kim et al., "Proxy Anchor Loss for Deep Metric Learning", CVPR 2020.

    Args:
        alpha: Sharpness.
        margin: Similarity delta above which positives, and below minus which negatives, no longer matter much.
    """

    made_for: ClassVar[str] = "proxies"

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cub": {"alpha": 32.0, "margin": 0.1},
        "cars": {"alpha": 32.0, "margin": 0.1},
        "sop": {"alpha": 32.0, "margin": 0.1},
        "inshop": {"alpha": 32.0, "margin": 0.1},
    }

    def __init__(self, *, alpha: float = 32.0, margin: float = 0.1) -> None:
        super().__init__()
        self.alpha, self.margin = alpha, margin

    def compare(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""
        s = pairs.cosines().mT
        pull = log_one_plus_sum_exp(-self.alpha * (s - self.margin), pairs.positives.mT)
        push = log_one_plus_sum_exp(self.alpha * (s + self.margin), pairs.negatives.mT)
        with_positive, with_negative = pairs.positives.any(dim=0).sum(), pairs.negatives.any(dim=0).sum()
        return pull.sum() / with_positive.clamp(min=1) + push.sum() / with_negative.clamp(min=1)
