"""What every choice of pairs shares."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from winnow.losses import Pairs


class Mining(nn.Module):
    """Base of choices among the pairs of queries and references. A subclass writes `choose`.

    What is chosen may depend on the vectors, and on random numbers of torch; no gradient goes through it. It knows
    neither the loss nor where the references come from: `loss.mining = SemiHard()` puts it in front of any loss.
    """

    @abstractmethod
    def choose(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return which positives and which negatives remain, two (Q, R) bool masks."""

    def forward(self, pairs: Pairs) -> Pairs:
        """Return the pairs that remain."""
        with torch.no_grad():
            positives, negatives = self.choose(pairs)
        return pairs.keep(positives, negatives)


def largest(scores: Tensor, candidates: Tensor, counts: Tensor) -> Tensor:
    """Mark in each row the candidates with the largest scores; of equal ones the first.

    Args:
        scores: (Q, R), finite at candidates.
        candidates: (Q, R) bool.
        counts: (Q,) how many to mark; all candidates where there are fewer.

    Returns:
        (Q, R) bool.
    """
    order = scores.masked_fill(~candidates, -torch.inf).argsort(dim=1, descending=True, stable=True)
    rank = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return candidates & (torch.empty_like(order).scatter(1, order, rank) < counts[:, None])
