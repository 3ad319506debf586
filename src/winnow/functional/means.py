"""Skewed means: between the smallest and the largest of a set of numbers, by a parameter."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def log_exp_mean(
    x: Tensor, gamma: float, *, delta: float = 0.0, dim: int = -1, mask: Tensor | None = None
) -> Tensor:  # fmt: skip
    r"""Return the log-exp mean.

    $$M_\gamma(x) = \frac1\gamma \log \frac1N \sum_{j=1}^N e^{\gamma (x_j - \delta)}$$

    It grows with $\gamma$: the smallest number at $-\infty$, the mean at 0, the largest at $\infty$. Its gradient is
    $\operatorname{softmax}_j(\gamma x_j)$. The shift $\delta$ only shifts the value.

    Args:
        x: Numbers, any shape.
        gamma: Sharpness, any real number; 0 and both infinities are the limits.
        delta: What is taken off every number.
        dim: Dimension over which to average.
        mask: Bool, broadcastable to x; false leaves a number out. Where all are left out the mean is 0.

    Returns:
        The shape of x without `dim`.
    """
    if math.isnan(gamma):
        raise ValueError("gamma is not a number")
    counted = torch.ones_like(x, dtype=torch.bool) if mask is None else mask.expand_as(x)
    count = counted.sum(dim)
    if abs(gamma) < torch.finfo(x.dtype).tiny ** 0.5:  # nearer to 0 the products with it run out of digits
        mean = x.masked_fill(~counted, 0.0).sum(dim) / count.clamp(min=1)
    else:
        mean = _log_exp(x, gamma, dim, counted, count)
    return torch.where(count > 0, mean - delta, 0.0)


def _log_exp(x: Tensor, gamma: float, dim: int, counted: Tensor, count: Tensor) -> Tensor:
    """Return the mean of the numbers that count for gamma other than 0; finite also where none do."""
    if x.shape[dim] == 0:
        return x.sum(dim)
    sign = math.copysign(1.0, gamma)
    # Rows in which nothing counts are computed as if all were 0, for the sake of their gradient.
    signed = torch.where(counted, sign * x, -torch.inf).masked_fill((count == 0).unsqueeze(dim), 0.0)
    top = signed.amax(dim, keepdim=True)
    if math.isinf(gamma):
        return sign * top.squeeze(dim)
    top = top.detach()
    below = abs(gamma) * (signed - top)  # 0 at the extreme number, which no exponential can overflow from
    n = count.clamp(min=1).to(x.dtype)
    # log mean exp by two ways: expm1 keeps the digits where all numbers are near the extreme one (a small gamma),
    # logsumexp those where most are far from it.
    near = below.expm1().masked_fill(~counted, 0.0).sum(dim) / n
    exponent = torch.where(near > -0.5, near.clamp(min=-0.5).log1p(), below.logsumexp(dim) - n.log())
    return sign * (top.squeeze(dim) + exponent / abs(gamma))


def power_mean(x: Tensor, t: float, *, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    r"""Return the power mean of numbers that are not negative.

    $$M_t(x) = \Big( \frac1N \sum_{j=1}^N x_j^t \Big)^{1/t} = \exp M^{\text{log-exp}}_t(\log x)$$

    It grows with $t$: smallest ($-\infty$), harmonic (-1), geometric (0), arithmetic (1), quadratic (2), largest
    ($\infty$). The right-hand side is how it is computed, so that no power overflows. A number below the smallest
    normal one of its type counts as that, with no gradient.

    Args:
        x: Numbers, any shape.
        t: Exponent, any real number; 0 and both infinities are the limits.
        dim: Dimension over which to average.
        mask: Bool, broadcastable to x; false leaves a number out. Where all are left out the mean is 0.

    Returns:
        The shape of x without `dim`.
    """
    counted = torch.ones_like(x, dtype=torch.bool) if mask is None else mask.expand_as(x)
    log_x = x.masked_fill(~counted, 1.0).clamp(min=torch.finfo(x.dtype).tiny).log()
    mean = log_exp_mean(log_x, t, dim=dim, mask=counted).exp()
    return torch.where(counted.any(dim), mean, 0.0)


def hard_skewed_mean(
    x: Tensor, k: int, *, largest: bool = True, dim: int = -1, mask: Tensor | None = None
) -> Tensor:  # fmt: skip
    r"""Return the mean of the K largest or the K smallest numbers, which the other means smooth.

    $$M_{[K]}(x) = \frac1K \sum_{j=1}^K x_{(N - j + 1)}, \qquad M_{[-K]}(x) = \frac1K \sum_{j=1}^K x_{(j)}$$

    with $x_{(1)} \le \dots \le x_{(N)}$. Where fewer than K numbers count it is the mean of all of them.

    Args:
        x: Numbers, any shape.
        k: How many, at least 1.
        largest: Whether the largest; else the smallest.
        dim: Dimension over which to average.
        mask: Bool, broadcastable to x; false leaves a number out. Where all are left out the mean is 0.

    Returns:
        The shape of x without `dim`.
    """
    if k < 1:
        raise ValueError(f"a mean of {k} numbers makes no sense: give at least 1")
    counted = torch.ones_like(x, dtype=torch.bool) if mask is None else mask.expand_as(x)
    k = min(k, x.shape[dim])
    last = -torch.inf if largest else torch.inf
    chosen, places = x.masked_fill(~counted, last).topk(k, dim=dim, largest=largest)
    chosen = chosen.masked_fill(~counted.gather(dim, places), 0.0)
    return chosen.sum(dim) / counted.sum(dim).clamp(min=1, max=max(k, 1))
