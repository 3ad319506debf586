"""The hard K-skewed mean over each centre's nearest or farthest others."""

from __future__ import annotations

from torch import Tensor

from winnow.centres.base import CentreRegulariser, Measure, Of, Toward, above, mean_over, nearness
from winnow.functional import hard_skewed_mean


class Hard(CentreRegulariser):
    r"""K-skewed mean: each centre is pushed from exactly its K nearest, or K farthest, others.

    $$R = \frac1C \sum_i \big[ M_{[\pm K]}\{ s_{ij} : j \ne i \} - \delta \big]_+$$

    with $M_{[K]}$ the mean of the K largest numbers (the nearest centres) and $M_{[-K]}$ of the K smallest (the
    farthest); with distances $s_{ij}$ is $-d_{ij}$. Without $\delta$ there is no $[\cdot]_+$. R1 is its
    smooth form. Reference: document 004, Definition 1.

    Args:
        toward: Whether the "nearest" or the "farthest" centres count.
        k: How many of them.
        delta: Level below which a centre's mean is low enough; with distances it is minus a distance. Default none.
        measure: Whether to compare by "cosine" or by "distance".
        of: What the centres are: the "proxies", the class "means" of the batch, or auto: proxies where there are any.
        sample: Centres drawn in each step to be compared with all; default all of them.
        weight: Factor on the term in training; toward the farthest a long one may gain by more.
    """

    def __init__(
        self,
        *,
        toward: Toward = "farthest",
        k: int = 8,
        delta: float | None = None,
        measure: Measure = "cosine",
        of: Of = "auto",
        sample: int | None = None,
        weight: float = 0.3,
    ) -> None:
        super().__init__(weight=weight, of=of, sample=sample)
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}; the direction is set by toward")
        self.toward, self.k, self.delta, self.measure = toward, k, delta, measure

    def spread(self, centres: Tensor, others: Tensor, pairs: Tensor) -> Tensor:
        """Return the mean over centres of the mean over their K nearest or farthest others."""
        found = nearness(centres, others, self.measure)
        means = hard_skewed_mean(found, self.k, largest=self.toward == "nearest", mask=pairs)
        return mean_over(above(means, self.delta), pairs.any(dim=1))
