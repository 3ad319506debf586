r"""The one scalar equation at the heart of Generalized Sum Pooling.

Given a score $l_j$ for each of $n$ items and a share $\mu$ of them to keep, soft selection gives item $j$ the fraction

$$s_j = \sigma(\tau + l_j), \qquad \tau \text{ such that } \tfrac1n \textstyle\sum_j s_j = \mu,$$

and the weight $p_j = s_j / (n \mu)$. The mean is monotone in $\tau$, so there is one root. The gradient
follows from the implicit function theorem and needs the root alone, nothing of how it was found. With
$v_j = s_j (1 - s_j)$, $u_j = v_j / \sum_k v_k$ and $g_j = \partial L / \partial p_j$,

$$\frac{\partial L}{\partial l_j} = \frac{v_j}{n \mu} \Big(g_j - \sum_k u_k g_k\Big), \qquad
  \frac{\partial L}{\partial \mu} = \frac1\mu \Big(\sum_j u_j g_j - \sum_j p_j g_j\Big).$$

Items may have masses $q_j$ of their own in place of $1/n$: then $\sum_j q_j s_j = \mu$, $p_j = q_j s_j / \mu$,
$u_j \propto q_j v_j$, all else is as above, and $\partial L / \partial q_j = s_j (g_j - \sum_k u_k g_k) / \mu$.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from winnow.functional.exporting import is_exporting
from winnow.functional.threshold import selection_threshold


def select(
    scores: Tensor, share: Tensor, mask: Tensor | None, prior: Tensor | None = None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    r"""Return $x_j = \tau + l_j$ and the weights $p_j$, both (B, n), of scores (B, n) and a share (B, 1)."""
    x = selection_threshold(scores, share, mask, prior) + scores
    s = torch.where(share < 1, torch.sigmoid(x), 1.0)
    if mask is not None:
        s = s.masked_fill(~mask, 0.0)
    if prior is not None:
        s = prior * s
    # The root makes the sum n mu up to rounding; dividing by the sum itself makes the weights sum to one.
    return x, s / s.sum(dim=1, keepdim=True)


def selection_gradient(
    grad: Tensor, x: Tensor, weights: Tensor, share: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the gradients of scores (B, n) and share (B, 1), given that of the weights and what `select` returned."""
    grad_scores, grad_share, _ = prior_gradient(grad, x, weights, share, mask, None)
    return grad_scores, grad_share


def prior_gradient(
    grad: Tensor, x: Tensor, weights: Tensor, share: Tensor, mask: Tensor | None, prior: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradient of the prior (B, n) as well; None where there is none."""
    # In the log domain, because on a plateau every v underflows while their ratios u do not; u has the limit
    # softmax(-l) as the share tends to 1.
    size = x.abs()
    log_v = torch.where(share < 1, -size - 2 * torch.log1p(torch.exp(-size)), -x)
    if mask is not None:
        log_v, grad = log_v.masked_fill(~mask, -torch.inf), grad.masked_fill(~mask, 0.0)
    if prior is not None:
        log_v = log_v + prior.log()
    mean_grad = (log_v.softmax(dim=1) * grad).sum(dim=1, keepdim=True)
    one_minus_s = torch.where(share < 1, torch.sigmoid(-x), 0.0)
    grad_scores = weights * one_minus_s * (grad - mean_grad)
    grad_share = (mean_grad - (weights * grad).sum(dim=1, keepdim=True)) / share
    if prior is None:
        return grad_scores, grad_share, None
    grad_prior = (1 - one_minus_s) * (grad - mean_grad) / share
    return grad_scores, grad_share, grad_prior if mask is None else grad_prior.masked_fill(~mask, 0.0)


class _SoftSelection(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, share: Tensor, mask: Tensor | None, prior: Tensor | None) -> Tensor:
        x, weights = select(scores, share, mask, prior)
        ctx.save_for_backward(x, weights, share, mask, prior)
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, Tensor | None]:
        scores, share, prior = prior_gradient(grads[0], *ctx.saved_tensors)
        return scores, share, None, prior


def normalise_prior(prior: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return masses (B, n), none negative, divided by their sum over the items that count; zero where masked."""
    kept = prior if mask is None else torch.where(mask, prior, 0.0)
    return kept / kept.sum(dim=1, keepdim=True)


def soft_selection(
    scores: Tensor, share: Tensor | float, mask: Tensor | None = None, prior: Tensor | None = None
) -> Tensor:  # fmt: skip
    r"""Return weights that keep a share $\mu$ of the items, the highest-scored first: a soft top-k.

    $p_j = \sigma(\tau + l_j) / (n\mu)$ with $\tau$ such that the fractions $\sigma(\tau + l_j)$ average to $\mu$.

    Args:
        scores: (B, n) float32 or float64.
        share: mu in (0, 1], a number or a tensor with one element, or with one for each row.
        mask: (B, n) bool, true for the items that count; default all. Masked scores are never read.
        prior: (B, n) mass of each item, not negative and not all zero, of which mu is the share; default all alike.

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
    if mask is not None:
        scores = scores.masked_fill(~mask, 0.0)
    column = share.to(scores.dtype).reshape(-1, 1).expand(rows, 1)
    if prior is not None:
        prior = normalise_prior(prior.to(scores.dtype), mask)
    if is_exporting():
        return select(scores, column, mask, prior)[1]
    weights: Tensor = _SoftSelection.apply(scores, column, mask, prior)  # type: ignore[no-untyped-call]
    return weights
