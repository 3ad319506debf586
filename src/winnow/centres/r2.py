"""R2: the power mean over all pairs of centres."""

from __future__ import annotations

from torch import Tensor

from winnow.centres.base import CLOSEST, CentreRegulariser, Measure, Of, Toward, above
from winnow.functional import pairwise_distance, power_mean


class R2(CentreRegulariser):
    r"""Power mean: the nearest, or the farthest, pairs of all are pushed apart.

    $$R_2 = \big[ M_{\pm t}\{ \tfrac{1 + s_{ij}}2 : i \ne j \} - \delta \big]_+, \qquad
      M_t(x) = \big( \operatorname{mean}_{ij} x_{ij}^t \big)^{1/t}$$

    with $+t$ toward the nearest and $-t$ toward the farthest; with distances it is $-M_{\mp t}\{d_{ij}\}$ in place of
    $M_{\pm t}$. Without $\delta$ there is no $[\cdot]_+$. Powers need positive numbers, hence $(1 + s) / 2$ for the
    cosine $s$; numbers below $10^{-4}$ count as that. Toward the farthest use distances: of one opposite pair
    $(1 + s) / 2$ is 0, which decides a mean with a negative exponent by itself.
    Reference: document 004, Eqs. 8 to 10.

    Args:
        toward: Whether the "nearest" or the "farthest" pairs weigh most.
        t: Exponent, at least 0; 0 is the geometric mean.
        delta: Level below which the mean is low enough; with distances it is minus a distance. Default none.
        measure: Whether to compare by "cosine" or by "distance".
        of: What the centres are: the "proxies", the class "means" of the batch, or auto: proxies where there are any.
        sample: Centres drawn in each step to be compared with all; default all of them.
        weight: Factor on the term in training; toward the farthest a long one may gain by more.
    """

    def __init__(
        self,
        *,
        toward: Toward = "farthest",
        t: float = 10.0,
        delta: float | None = None,
        measure: Measure = "distance",
        of: Of = "auto",
        sample: int | None = None,
        weight: float = 0.3,
    ) -> None:
        super().__init__(weight=weight, of=of, sample=sample)
        if t < 0:
            raise ValueError(f"t must be at least 0, got {t}; the direction is set by toward")
        self.toward, self.t, self.delta, self.measure = toward, t, delta, measure

    def spread(self, centres: Tensor, others: Tensor, pairs: Tensor) -> Tensor:
        """Return the power mean over the pairs."""
        t = self.t if self.toward == "nearest" else -self.t
        if self.measure == "cosine":
            share = ((1 + centres @ others.mT) / 2).clamp(min=CLOSEST)
            nearness = power_mean(share.flatten(), t, mask=pairs.flatten())
        else:
            distance = pairwise_distance(centres, others).clamp(min=CLOSEST)
            nearness = -power_mean(distance.flatten(), -t, mask=pairs.flatten())
        return above(nearness, self.delta) * pairs.any()
