"""No regulariser."""

from __future__ import annotations

from torch import Tensor

from winnow.centres.base import CentreRegulariser


class Unregularised(CentreRegulariser):
    r"""No term for the centres.

    $$R = 0$$
    """

    def __init__(self) -> None:
        super().__init__(weight=0.0, of="auto", sample=None)

    def spread(self, centres: Tensor, others: Tensor, pairs: Tensor) -> Tensor:
        """Return zero."""
        return others.sum() * 0.0
