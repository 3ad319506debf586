"""The batch as its own references."""

from __future__ import annotations

from torch import Tensor

from winnow.losses import PairLoss
from winnow.references.base import References


class Batch(References):
    r"""The batch itself: every query is compared with all the others.

    $$L = \ell(Q, Q)$$
    """

    def forward(self, loss: PairLoss, queries: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of the batch within itself."""
        value: Tensor = loss(queries, labels)
        return value
