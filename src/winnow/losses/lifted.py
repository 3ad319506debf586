"""Lifted structure loss."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.losses.base import PairLoss
from winnow.losses.pairs import Pairs


class LiftedStructure(PairLoss):
    r"""Lifted structure loss, generalised to all positives of a query.

    $$L = \operatorname{mean}_q \Big[\log \sum_{p \in P_q} e^{d_{qp}} + \log \sum_{n \in N_q} e^{m - d_{qn}}\Big]_+$$

    over the queries that have both a positive and a negative. The first form of the loss takes the negatives of both
    ends of a positive pair and squares the hinge; only a batch compared with itself has them, so this is the form that
    queries and references of any source share.

    When to use it: to compare with work that uses it. It looks at a query's worst positive and worst negative, both
    softly, and like all losses with a hinge over hard pairs it is sensitive to wrong labels.

    Reference: Hermans, Beyer and Leibe, "In Defense of the Triplet Loss", 2017, after Oh Song et al., CVPR 2016.

    Args:
        margin: m.
    """

    def __init__(self, *, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = margin

    def compare(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""
        d = pairs.distances()
        if d.shape[1] == 0:
            return d.sum()
        judged = pairs.positives.any(dim=1) & pairs.negatives.any(dim=1)
        others = ~judged[:, None]  # for queries that are not judged all references stand in, so that nothing is empty
        pull = d.masked_fill(~(pairs.positives | others), -torch.inf).logsumexp(dim=1)
        push = (self.margin - d).masked_fill(~(pairs.negatives | others), -torch.inf).logsumexp(dim=1)
        return ((pull + push).relu() * judged).sum() / judged.sum().clamp(min=1)
