"""Minimum hyperspherical energy of the centres."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from winnow.centres.base import CLOSEST, CentreRegulariser, Of, mean_over
from winnow.functional import pairwise_distance


class MHE(CentreRegulariser):
    r"""Minimum hyperspherical energy: the Riesz energy of points on a sphere.

    $$R = \operatorname{mean}_{i \ne j} d_{ij}^{-s} = M_{-s}\{d_{ij}\}^{-s} \;(s > 0), \qquad
      R = \operatorname{mean}_{i \ne j} -\log d_{ij} = -\log M_0\{d_{ij}\} \;(s = 0)$$

    with $M_t$ the power mean. Distances below $10^{-4}$ count as that.
    Reference: Liu et al., "Learning towards Minimum Hyperspherical Energy", NeurIPS 2018.

    Args:
        s: Power of the energy: 0, 1 or 2; the higher, the more the nearest pairs weigh.
        of: What the centres are: the "proxies", the class "means" of the batch, or auto: proxies where there are any.
        sample: Centres drawn in each step to be compared with all; default all of them.
        weight: Factor on the term in training.
    """

    def __init__(
        self, *, s: Literal[0, 1, 2] = 2, of: Of = "auto", sample: int | None = None, weight: float = 0.1
    ) -> None:  # fmt: skip
        super().__init__(weight=weight, of=of, sample=sample)
        self.s = s

    def spread(self, centres: Tensor, others: Tensor, pairs: Tensor) -> Tensor:
        """Return the mean energy of the pairs."""
        d = pairwise_distance(centres, others).clamp(min=CLOSEST)
        return mean_over(-d.log() if self.s == 0 else d**-self.s, pairs)
