"""The batch as its own references."""

from __future__ import annotations

from torch import Tensor

from winnow.losses import PairLoss
from winnow.references.base import References


class Batch(References):
    r"""The batch itself: every query is compared with all the others.

    $$L = \ell(Q, Q)$$

    When to use it: by default, with batches of several images per class. It has nothing to learn or to keep; what it
    lacks is references: a batch of 32 shows few classes at a time.
    """

    def forward(self, loss: PairLoss, queries: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of the batch within itself."""
        value: Tensor = loss(queries, labels)
        return value
