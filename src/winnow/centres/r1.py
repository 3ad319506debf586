"""R1: for each centre, the log-exp mean over the other centres."""

from __future__ import annotations

from torch import Tensor

from winnow.centres.base import CentreRegulariser, Measure, Of, Toward, above, mean_over, nearness
from winnow.functional import log_exp_mean


class R1(CentreRegulariser):
    r"""Log-exp mean: each centre is pushed from its nearest, or from its farthest, others.

    $$R_1 = \frac1C \sum_i \big[ M_{\pm\gamma}\{ s_{ij} : j \ne i \} - \delta \big]_+, \qquad
      M_\gamma(x) = \frac1\gamma \log \operatorname{mean}_j e^{\gamma x_j}$$

    with $+\gamma$ toward the nearest and $-\gamma$ toward the farthest; with distances $s_{ij}$ is $-d_{ij}$.
    Without $\delta$ there is no $[\cdot]_+$.
    Reference: document 004, Eq. 8, which prints $+\gamma$ and speaks of the farthest.

    Args:
        toward: Whether the "nearest" or the "farthest" centres weigh most.
        gamma: Sharpness, at least 0; at 0 all others weigh the same.
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
        gamma: float = 10.0,
        delta: float | None = None,
        measure: Measure = "cosine",
        of: Of = "auto",
        sample: int | None = None,
        weight: float = 0.3,
    ) -> None:
        super().__init__(weight=weight, of=of, sample=sample)
        if gamma < 0:
            raise ValueError(f"gamma must be at least 0, got {gamma}; the direction is set by toward")
        self.toward, self.gamma, self.delta, self.measure = toward, gamma, delta, measure

    def spread(self, centres: Tensor, others: Tensor, pairs: Tensor) -> Tensor:
        """Return the mean over centres of the log-exp mean over the others."""
        gamma = self.gamma if self.toward == "nearest" else -self.gamma
        means = log_exp_mean(nearness(centres, others, self.measure), gamma, mask=pairs)
        return mean_over(above(means, self.delta), pairs.any(dim=1))
