"""Skewed means: a parameter moves them from the smallest to the largest number."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from winnow.functional.distances import check_tensor


def log_exp_mean(
    x: Tensor, gamma: float, *, delta: float = 0.0, dim: int = -1, mask: Tensor | None = None
) -> Tensor:  # fmt: skip
    r"""Compute the log-exp mean.

    $$M_\gamma(x) = \frac1\gamma \log \frac1N \sum_{j=1}^N e^{\gamma (x_j - \delta)}$$

    It grows with $\gamma$ from the smallest number at $-\infty$ over the mean at 0 to the largest at $\infty$. Its
    gradient is $\operatorname{softmax}_j(\gamma x_j)$. The shift $\delta$ changes the value, not the gradient.

    Reference: [Skewed].

    Args:
        x: Numbers, any shape.
        gamma: Sharpness, any real number; 0 and both infinities are the limits.
        delta: Constant subtracted from every number.
        dim: Dimension over which to average.
        mask: Bool, broadcastable to x; false excludes a number. If all are excluded, the mean is 0.

    Returns:
        The shape of x without `dim`.
    """
    check_tensor(x, "x")
    if math.isnan(gamma):
        raise ValueError("gamma: expected a real number or infinity, got NaN.")
    counted = torch.ones_like(x, dtype=torch.bool) if mask is None else mask.expand_as(x)
    count = counted.sum(dim)
    if abs(gamma) < torch.finfo(x.dtype).tiny ** 0.5:  # products with a smaller gamma would underflow
        mean = x.masked_fill(~counted, 0.0).sum(dim) / count.clamp(min=1)
    else:
        mean = _log_exp(x, gamma, dim, counted, count)
    return torch.where(count > 0, mean - delta, 0.0)


def _log_exp(x: Tensor, gamma: float, dim: int, counted: Tensor, count: Tensor) -> Tensor:
    """Return the mean of the numbers that count for a nonzero gamma.

    It is finite if none count.
    """
    if x.shape[dim] == 0:
        return x.sum(dim)
    sign = math.copysign(1.0, gamma)
    # Rows in which nothing counts are computed as zeros, so their gradient is finite.
    signed = torch.where(counted, sign * x, -torch.inf).masked_fill((count == 0).unsqueeze(dim), 0.0)
    top = signed.amax(dim, keepdim=True)
    if math.isinf(gamma):
        return sign * top.squeeze(dim)
    top = top.detach()
    below = abs(gamma) * (signed - top)  # at most 0, so no exponential overflows
    n = count.clamp(min=1).to(x.dtype)
    # log mean exp in two ways: expm1 keeps the digits if all numbers are near the extreme one (a small gamma),
    # logsumexp if most are far from it.
    near = below.expm1().masked_fill(~counted, 0.0).sum(dim) / n
    exponent = torch.where(near > -0.5, near.clamp(min=-0.5).log1p(), below.logsumexp(dim) - n.log())
    return sign * (top.squeeze(dim) + exponent / abs(gamma))


def power_mean(x: Tensor, t: float, *, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    r"""Compute the power mean of nonnegative numbers.

    $$M_t(x) = \Big( \frac1N \sum_{j=1}^N x_j^t \Big)^{1/t} = \exp M^{\text{log-exp}}_t(\log x)$$

    It grows with $t$: smallest ($-\infty$), harmonic (-1), geometric (0), arithmetic (1), quadratic (2), largest
    ($\infty$). It is computed by the right-hand side, so no power overflows. Numbers below the smallest normal number
    of their dtype are replaced by it and have no gradient.

    Reference: [Skewed].

    Args:
        x: Numbers, any shape.
        t: Exponent, any real number; 0 and both infinities are the limits.
        dim: Dimension over which to average.
        mask: Bool, broadcastable to x; false excludes a number. If all are excluded, the mean is 0.

    Returns:
        The shape of x without `dim`.
    """
    check_tensor(x, "x")
    counted = torch.ones_like(x, dtype=torch.bool) if mask is None else mask.expand_as(x)
    log_x = x.masked_fill(~counted, 1.0).clamp(min=torch.finfo(x.dtype).tiny).log()
    mean = log_exp_mean(log_x, t, dim=dim, mask=counted).exp()
    return torch.where(counted.any(dim), mean, 0.0)


def hard_skewed_mean(
    x: Tensor, k: int, *, largest: bool = True, dim: int = -1, mask: Tensor | None = None
) -> Tensor:  # fmt: skip
    r"""Compute the mean of the K largest or K smallest numbers.

    It is the hard form of the other means.

    $$M_{[K]}(x) = \frac1K \sum_{j=1}^K x_{(N - j + 1)}, \qquad M_{[-K]}(x) = \frac1K \sum_{j=1}^K x_{(j)}$$

    with $x_{(1)} \le \dots \le x_{(N)}$. If fewer than K numbers count, it is the mean of all of them.

    Args:
        x: Numbers, any shape.
        k: Number of numbers to average, at least 1.
        largest: Average the largest numbers if true, the smallest if false.
        dim: Dimension over which to average.
        mask: Bool, broadcastable to x; false excludes a number. If all are excluded, the mean is 0.

    Returns:
        The shape of x without `dim`.
    """
    check_tensor(x, "x")
    if k < 1:
        raise ValueError(f"k: expected at least 1, got {k}.")
    counted = torch.ones_like(x, dtype=torch.bool) if mask is None else mask.expand_as(x)
    k = min(k, x.shape[dim])
    last = -torch.inf if largest else torch.inf
    chosen, indices = x.masked_fill(~counted, last).topk(k, dim=dim, largest=largest)
    chosen = chosen.masked_fill(~counted.gather(dim, indices), 0.0)
    return chosen.sum(dim) / counted.sum(dim).clamp(min=1, max=max(k, 1))
