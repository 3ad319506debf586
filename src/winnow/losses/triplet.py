"""Triplet and lifted structure losses, without a tensor of all triplets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from winnow.functional.pairs import Pairs
from winnow.losses.base import Mining, Normalization, PairLoss


class TripletMarginLoss(PairLoss):
    r"""Triplet loss over all triplets, averaged over those above zero.

    $$L = \operatorname{mean}_{+} [d_{qp} - d_{qn} + m]_+, \qquad p \in P_q,\; n \in N_q$$

    The Q R R terms are never formed. With the negatives of a query sorted by distance, those inside $t = d_{qp} + m$
    are a prefix of length $k$. Their terms sum to $k\,t - \sum_{i \le k} d_{(i)}$. Memory grows with the distance
    matrix.

    Reference: Schroff, Kalenichenko, Philbin, "FaceNet", CVPR 2015.

    Use when: only the order of distances matters, as in ranking. Learning slows once most triplets are satisfied;
    larger batches, a memory, or `miner=semi_hard` provide harder ones.

    Differences: distances are Euclidean, where FaceNet squares them. Equal to PML `TripletMarginLoss(margin)` with its
    default reducer, whose default margin is 0.05; `swap` and `smooth_loss` do not exist here.

    Args:
        margin: Distance by which a negative must be farther than a positive, at least 0.
        normalize: Normalization before comparison: "unit", "ball", None, or a function.
        miner: Selects the pairs to compare. None compares all pairs.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cub": {"margin": 0.0961},
        "cars": {"margin": 0.1190},
        "sop": {"margin": 0.0451},
        "inshop": {"margin": 0.0451},
    }

    def __init__(self, *, margin: float = 0.1, normalize: Normalization = "unit", miner: Mining | None = None) -> None:
        super().__init__(normalize=normalize, miner=miner)
        self.margin = margin

    def compute_loss(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""
        d = pairs.distances()
        ordered = d.masked_fill(~pairs.negatives, torch.inf).sort(dim=1).values
        # prefix[:, k] is the sum of the k smallest negative distances. Columns past the last negative are never used.
        prefix = torch.nn.functional.pad(ordered.masked_fill(ordered.isinf(), 0.0).cumsum(dim=1), (1, 0))
        reach = d + self.margin
        k = torch.searchsorted(ordered.detach(), reach.detach().contiguous()) * pairs.positives
        terms = k * reach - prefix.gather(1, k)
        return terms.sum() / k.sum().clamp(min=1)


class GeneralizedLiftedStructureLoss(PairLoss):
    r"""Lifted structure loss, generalized to all positives of a query.

    $$L = \operatorname{mean}_q \Big[\log \sum_{p \in P_q} e^{d_{qp}} + \log \sum_{n \in N_q} e^{m - d_{qn}}\Big]_+$$

    The mean is over the queries that have both a positive and a negative.

    Reference: Hermans, Beyer, Leibe, "In Defense of the Triplet Loss for Person Re-Identification", 2017, after
    Oh Song et al., "Deep Metric Learning via Lifted Structured Feature Embedding", CVPR 2016.

    Use when: you compare with work that uses it. It weights the worst positive and the worst negative of each query,
    so wrong labels affect it strongly.

    Differences: Oh Song et al. use the negatives of both ends of a positive pair and square the hinge, which requires
    that queries and references are one batch. Equal to PML `GeneralizedLiftedStructureLoss(neg_margin, pos_margin=0)`
    where each query has a positive and a negative; PML averages over the other queries too.

    Args:
        neg_margin: Distance m up to which negatives are pushed away.
        normalize: Normalization before comparison: "unit", "ball", None, or a function.
        miner: Selects the pairs to compare. None compares all pairs.
    """

    aliases: ClassVar[Mapping[str, str]] = {"margin": "neg_margin"}

    def __init__(
        self, *, neg_margin: float = 1.0, normalize: Normalization = "unit", miner: Mining | None = None
    ) -> None:
        super().__init__(normalize=normalize, miner=miner)
        self.neg_margin = neg_margin

    def compute_loss(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""
        d = pairs.distances()
        if d.shape[1] == 0:
            return d.sum()
        complete = pairs.positives.any(dim=1) & pairs.negatives.any(dim=1)
        others = ~complete[:, None]  # incomplete queries take all references, so no sum is empty
        attract = d.masked_fill(~(pairs.positives | others), -torch.inf).logsumexp(dim=1)
        repel = (self.neg_margin - d).masked_fill(~(pairs.negatives | others), -torch.inf).logsumexp(dim=1)
        return ((attract + repel).relu() * complete).sum() / complete.sum().clamp(min=1)
