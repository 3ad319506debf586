r"""The one scalar equation at the heart of Generalized Sum Pooling.

Given a score $l_j$ for each of $n$ items and a share $\mu$ of them to keep, soft selection gives item $j$ the fraction

$$s_j = \sigma(\tau + l_j), \qquad \tau \text{ such that } \tfrac1n \textstyle\sum_j s_j = \mu,$$

and the weight $p_j = s_j / (n \mu)$. The mean is monotone in $\tau$, so there is one root; it is found by Newton's
method inside a shrinking bracket. The gradient follows from the implicit function theorem and needs the root alone,
nothing of the iterations. With $v_j = s_j (1 - s_j)$, $u_j = v_j / \sum_k v_k$ and $g_j = \partial L / \partial p_j$,

$$\frac{\partial L}{\partial l_j} = \frac{v_j}{n \mu} \Big(g_j - \sum_k u_k g_k\Big), \qquad
  \frac{\partial L}{\partial \mu} = \frac1\mu \Big(\sum_j u_j g_j - \sum_j p_j g_j\Big).$$
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import logsigmoid

from winnow.errors import DataError

MAX_STEPS = 60  # plateaus at eps = 1e4 need about 30; bisection alone ends float64 within 60


def selection_threshold(scores: Tensor, share: Tensor, mask: Tensor) -> Tensor:
    r"""Solve $\operatorname{mean}_j \sigma(\tau + l_j) = \mu$ for each row by safeguarded Newton steps.

    Args:
        scores: (B, n), finite where `mask` is true.
        share: (B, 1) in (0, 1). Where it is 1 there is no root; any finite number is returned.
        mask: (B, n) bool, true for the items that count.

    Returns:
        (B, 1) thresholds tau, without gradient.
    """
    if torch.compiler.is_compiling():
        tau: Tensor = _threshold_op(scores, share, mask)
        return tau
    return _solve(scores, share, mask)


@torch.no_grad()
def _solve(scores: Tensor, share: Tensor, mask: Tensor) -> Tensor:
    empty = ~mask.any(dim=1)
    outside = ~((share > 0) & (share <= 1)).squeeze(1)  # true also for NaN
    if bool((empty | outside).any()):  # one question, because each costs a synchronisation on a GPU
        if bool(outside.any()):
            raise ValueError(f"the share mu must be in (0, 1], not {float(share[outside][0])}")
        image = int(empty.nonzero()[0])
        raise DataError(f"every feature of image {image} of the batch is masked; leave at least one unmasked")
    tiny = torch.finfo(scores.dtype).eps
    share = share.clamp(max=1 - tiny)  # where(share == 1) is decided by the caller
    count = mask.sum(dim=1, keepdim=True)
    logit = torch.logit(share)
    masked = scores.masked_fill(~mask, -torch.inf)
    low = logit - masked.amax(dim=1, keepdim=True)
    high = logit - scores.masked_fill(~mask, torch.inf).amin(dim=1, keepdim=True)
    tau = (low + high) / 2
    for step in range(MAX_STEPS):
        s = torch.sigmoid(tau + masked)
        excess = s.sum(dim=1, keepdim=True) / count - share
        slope = (s * (1 - s)).sum(dim=1, keepdim=True) / count
        low = torch.where(excess < 0, tau, low)
        high = torch.where(excess > 0, tau, high)
        newton = tau - excess / slope
        inside = (newton > low) & (newton < high)  # false also for the NaN and inf of a vanished slope
        # At the root rounding may point out of the bracket, of which the other end can still be far away: stay.
        done = (excess.abs() <= 4 * tiny * share) | (newton == tau)
        next_tau = torch.where(inside, newton, torch.where(done, tau, (low + high) / 2))
        settled = done | ((next_tau - tau).abs() <= 2 * tiny * tau.abs().clamp(min=1))
        tau = next_tau
        # Asking costs a synchronisation on a GPU, so ask there only now and then.
        if (tau.device.type == "cpu" or step % 8 == 7) and bool(settled.all()):
            break
    return tau


@torch.library.custom_op("winnow::selection_threshold", mutates_args=())
def _threshold_op(scores: Tensor, share: Tensor, mask: Tensor) -> Tensor:
    """Hide the data-dependent loop from torch.compile, so that a whole model compiles to one graph."""
    return _solve(scores, share, mask)


@_threshold_op.register_fake
def _(scores: Tensor, share: Tensor, mask: Tensor) -> Tensor:
    return scores.new_empty(scores.shape[0], 1)


class _SoftSelection(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, share: Tensor, mask: Tensor) -> Tensor:
        tau = selection_threshold(scores, share, mask)
        s = torch.where(share < 1, torch.sigmoid(tau + scores), 1.0).masked_fill(~mask, 0.0)
        # The root makes the sum n mu up to rounding; dividing by the sum itself makes the weights sum to one.
        weights = s / s.sum(dim=1, keepdim=True)
        ctx.save_for_backward(scores, share, mask, tau, weights)
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        scores, share, mask, tau, weights = ctx.saved_tensors
        grad = grads[0].masked_fill(~mask, 0.0)
        x = tau + scores
        # In the log domain, because on a plateau every v underflows while their ratios u do not; u has the limit
        # softmax(-l) as the share tends to 1.
        log_v = torch.where(share < 1, logsigmoid(x) + logsigmoid(-x), -scores)
        u = log_v.masked_fill(~mask, -torch.inf).softmax(dim=1)
        mean_grad = (u * grad).sum(dim=1, keepdim=True)
        one_minus_s = torch.where(share < 1, torch.sigmoid(-x), 0.0)
        grad_scores = weights * one_minus_s * (grad - mean_grad)
        grad_share = (mean_grad - (weights * grad).sum(dim=1, keepdim=True)) / share
        return grad_scores, grad_share, None


def soft_selection(scores: Tensor, share: Tensor | float, mask: Tensor | None = None) -> Tensor:
    r"""Return weights that keep a share $\mu$ of the items, the highest-scored first: a soft top-k.

    $p_j = \sigma(\tau + l_j) / (n\mu)$ with $\tau$ such that the fractions $\sigma(\tau + l_j)$ average to $\mu$.

    Args:
        scores: (B, n) float32 or float64.
        share: mu in (0, 1], a number or a tensor with one element, or with one for each row.
        mask: (B, n) bool, true for the items that count; default all. Masked scores are never read.

    Returns:
        (B, n) weights that sum to one in each row, zero where masked.

    Raises:
        ValueError: if the share is not in (0, 1], or neither one number nor one for each row.
        DataError: if a row has nothing unmasked.
    """
    rows = scores.shape[0]
    if not isinstance(share, Tensor):
        if not 0 < share <= 1:
            raise ValueError(f"the share mu must be in (0, 1], not {share}")
        share = scores.new_full((), share)
    if share.numel() not in (1, rows):
        raise ValueError(f"the share mu must be one number or {rows}, one per image, got {tuple(share.shape)}")
    if mask is None:
        mask = torch.ones_like(scores, dtype=torch.bool)
    else:
        scores = scores.masked_fill(~mask, 0.0)
    column = share.to(scores.dtype).reshape(-1, 1).expand(rows, 1)
    weights: Tensor = _SoftSelection.apply(scores, column, mask)  # type: ignore[no-untyped-call]
    return weights
