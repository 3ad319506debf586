"""Quantiles of Student's distribution: how much wider an interval is when its width comes from few models."""

from __future__ import annotations

from math import cos, pi, sin, sqrt, tan
from statistics import NormalDist


def share_within(angle: float, freedom: int) -> float:
    r"""Return $P(|T| < t)$ of Student's distribution for $t = \sqrt\nu \tan\theta$, which is a finite sum.

    $$P = \begin{cases}
      \sin\theta \left(1 + \tfrac12 \cos^2\theta + \tfrac{1 \cdot 3}{2 \cdot 4} \cos^4\theta + \dots\right)
        & \nu \text{ even} \\
      \tfrac2\pi \left(\theta + \sin\theta \left(\cos\theta + \tfrac23 \cos^3\theta + \dots\right)\right)
        & \nu \text{ odd}
      \end{cases}$$

    up to the power $\nu - 2$.

    Reference: Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.3 and 26.7.4.

    Args:
        angle: theta, from 0 to a right angle.
        freedom: Degrees of freedom nu, at least 1.
    """
    odd = freedom % 2
    term, total = cos(angle) if odd else 1.0, 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= cos(angle) ** 2 * (power + 1) / (power + 2)
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total


def student_quantile(level: float, freedom: int) -> float:
    """Return the t that holds a share of Student's distribution between -t and t.

    Args:
        level: The share, such as 0.95.
        freedom: Degrees of freedom, at least 1.
    """
    low, high = 0.0, pi / 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if share_within(middle, freedom) < level else (low, middle)
    return sqrt(freedom) * tan(low)


def widening(level: float, freedom: int) -> float:
    """Return by how much an interval of this level is wider than a normal one: 2.2 for 95 % and 2 degrees, then less.

    Args:
        level: The share of the interval.
        freedom: Degrees of freedom of the deviation that it is made from.
    """
    return student_quantile(level, freedom) / NormalDist().inv_cdf((1 + level) / 2)
