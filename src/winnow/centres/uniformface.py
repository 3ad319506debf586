"""UniformFace: the electric potential energy of the centres."""

from __future__ import annotations

from torch import Tensor

from winnow.centres.base import CLOSEST, CentreRegulariser, Of, mean_over
from winnow.functional import pairwise_distance


class UniformFace(CentreRegulariser):
    r"""Uniform loss: centres are like charges, and their potential energy is to be low.

    $$R = \operatorname{mean}_{i \ne j} \frac1{d_{ij} + o} = \frac1{M_{-1}\{d_{ij} + o\}}$$

    with $M_{-1}$ the harmonic mean and $o = 1$, which keeps the energy of near centres from growing without bound;
    document 004 leaves it out, and $o = 0$ is MHE with $s = 1$.
    Reference: Duan, Lu and Zhou, "UniformFace", CVPR 2019.

    Args:
        offset: What is added to every distance, at least 0.
        of: What the centres are: the "proxies", the class "means" of the batch, or auto: proxies where there are any.
        sample: Centres drawn in each step to be compared with all; default all of them.
        weight: Factor on the term in training.
    """

    def __init__(
        self, *, offset: float = 1.0, of: Of = "auto", sample: int | None = None, weight: float = 0.3
    ) -> None:  # fmt: skip
        super().__init__(weight=weight, of=of, sample=sample)
        if offset < 0:
            raise ValueError(f"the offset must be at least 0, got {offset}")
        self.offset = offset

    def spread(self, centres: Tensor, others: Tensor, pairs: Tensor) -> Tensor:
        """Return the mean energy of the pairs."""
        d = pairwise_distance(centres, others).clamp(min=CLOSEST)
        return mean_over(1 / (d + self.offset), pairs)
