"""Contrastive losses: C1 on cosine similarity, C2 on distance with a positive margin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from winnow.losses.base import PairLoss, mean_nonzero
from winnow.losses.pairs import Pairs


class C1(PairLoss):
    r"""Contrastive loss on cosine similarity, as cross-batch memory uses it.

    $$L = \frac1Q \sum_q \Big( \sum_{r \in P_q} [1 - \delta - s_{qr}]_+ + \sum_{r \in N_q} [s_{qr} - m]_+ \Big),
      \qquad \delta = 10^{-5}$$

    The small $\delta$ keeps identical pairs from counting.

    When to use it: with `references=memory`, the pairing of its paper. It sums over pairs, so its size grows with the
    number of references; near convergence only the negatives above the margin are left to learn from.

    Reference: Wang et al., "Cross-Batch Memory for Embedding Learning", CVPR 2020; Hadsell, Chopra and LeCun,
    CVPR 2006.

    Args:
        margin: Similarity m above which a negative pair is pushed apart.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cub": {"margin": 0.5},
        "cars": {"margin": 0.5},
        "sop": {"margin": 0.5},
        "inshop": {"margin": 0.5},
    }

    def __init__(self, *, margin: float = 0.5) -> None:
        super().__init__()
        self.margin = margin

    def compare(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""
        s = pairs.cosines()
        pull = (1 - 1e-5 - s).relu() * pairs.positives
        push = (s - self.margin).relu() * pairs.negatives
        return (pull.sum() + push.sum()) / max(len(pairs.queries), 1)


class C2(PairLoss):
    r"""Contrastive loss on Euclidean distance with a margin for positives too.

    $$L = \operatorname{mean}_{+} [d_{qr} - m_+]_+ + \operatorname{mean}_{-} [m_- - d_{qr}]_+$$

    over positive and negative pairs, each mean taken over the pairs whose term is above zero, by more than rounding
    (1e-5).

    When to use it: as a simple and strong baseline, the documents' own, for GSP and for CCP alike. Its margins are
    distances between unit vectors and want tuning for each data set; the presets are the documents'. A negative
    margin near 1, about what images of other classes are apart in a pretrained network, pushes from the first step.

    Reference: Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017 (with $m_\pm = \beta \mp \alpha$).

    Args:
        positive_margin: Distance below which a positive pair is near enough.
        negative_margin: Distance above which a negative pair is far enough.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cub": {"positive_margin": 0.0, "negative_margin": 0.3841},
        "cars": {"positive_margin": 0.2652, "negative_margin": 0.5409},
        "sop": {"positive_margin": 0.2858, "negative_margin": 0.5130},
        "inshop": {"positive_margin": 0.2858, "negative_margin": 0.5130},
    }

    def __init__(self, *, positive_margin: float = 0.0, negative_margin: float = 1.0) -> None:
        super().__init__()
        self.positive_margin = positive_margin
        self.negative_margin = negative_margin

    def compare(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""
        d = pairs.distances()
        pull = (d - self.positive_margin).relu() * pairs.positives
        push = (self.negative_margin - d).relu() * pairs.negatives
        return mean_nonzero(pull) + mean_nonzero(push)
