"""Semi-hard mining."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from winnow.losses import Pairs
from winnow.mining.base import Mining


class SemiHard(Mining):
    r"""The negatives that lie behind a positive of their query, but within a margin.

    $$P'_q = P_q, \qquad N'_q = \{ n \in N_q : \exists\, p \in P_q,\; d_{qp} < d_{qn} < d_{qp} + m \}$$

    FaceNet speaks of triplets; among pairs, a negative remains if it is in a semi-hard triplet with any positive of
    its query. A query may keep none.

    When to use it: with the triplet loss, of the same margin, early in training: it leaves out negatives nearer than
    every positive, which may be wrong labels, and those that are far enough already. It suits losses over distances
    between images; against one proxy per class the band behind the proxy is mostly empty.

    Reference: Schroff, Kalenichenko and Philbin, "FaceNet", CVPR 2015.

    Args:
        margin: Width m of the band behind a positive.
    """

    def __init__(self, *, margin: float = 0.2) -> None:
        super().__init__()
        if margin <= 0:
            raise ValueError(f"the margin must be above 0, got {margin}")
        self.margin = margin

    def choose(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return which positives and which negatives remain."""
        d = pairs.distances()
        ordered = d.masked_fill(~pairs.positives, torch.inf).sort(dim=1).values
        nearer = torch.searchsorted(ordered, d)  # how many positives are nearer than this reference
        last = pad(ordered, (1, 0), value=-torch.inf).gather(1, nearer)  # the farthest of them
        return pairs.positives, pairs.negatives & (d < last + self.margin)
