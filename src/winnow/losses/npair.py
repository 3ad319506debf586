"""N-pair loss."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.losses.base import PairLoss
from winnow.losses.pairs import Pairs


class NPair(PairLoss):
    r"""N-pair loss: a positive must be more similar than all negatives together.

    $$L = \operatorname{mean}_{q,\, p \in P_q} \log\Big(1 + \sum_{n \in N_q} e^{\lambda (s_{qn} - s_{qp})}\Big)$$

    over the pairs of queries that have a negative. The paper compares vectors of free length; between unit vectors
    the scale $\lambda$ stands for it.

    When to use it: on batches of very many classes with two images each, or with few positives per query, such as
    pairs of a photo and its match; it is the loss known as InfoNCE, of temperature $1 / \lambda$.

    Reference: Sohn, "Improved Deep Metric Learning with Multi-class N-pair Loss Objective", NeurIPS 2016.

    Args:
        scale: Factor lambda on similarities.
    """

    def __init__(self, *, scale: float = 16.0) -> None:
        super().__init__()
        self.scale = scale

    def compare(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""
        h = self.scale * pairs.cosines()
        if h.shape[1] == 0:
            return h.sum()
        judged = pairs.negatives.any(dim=1, keepdim=True)
        # Where there is no negative all references stand in, and the pairs are not counted.
        push = h.masked_fill(~(pairs.negatives | ~judged), -torch.inf).logsumexp(dim=1, keepdim=True)
        counted = pairs.positives & judged
        terms = torch.nn.functional.softplus(push - h) * counted
        return terms.sum() / counted.sum().clamp(min=1)
