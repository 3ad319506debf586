r"""Soft and hard selection of the highest-scored items, with closed-form gradients.

Soft selection solves one scalar equation. Given a score $l_j$ for each of $n$ items and a fraction $\mu$ of them to
keep, it keeps the fraction

$$s_j = \sigma(\tau + l_j), \qquad \tau \text{ such that } \tfrac1n \textstyle\sum_j s_j = \mu$$

of item $j$ and gives it the weight $p_j = s_j / (n \mu)$. The mean is monotone in $\tau$, so there is one root. The
gradient follows from the implicit function theorem and needs the root alone, not the way it was computed. With
$v_j = s_j (1 - s_j)$, $u_j = v_j / \sum_k v_k$ and $g_j = \partial L / \partial p_j$,

$$\frac{\partial L}{\partial l_j} = \frac{v_j}{n \mu} \Big(g_j - \sum_k u_k g_k\Big), \qquad
  \frac{\partial L}{\partial \mu} = \frac1\mu \Big(\sum_j u_j g_j - \sum_j p_j g_j\Big).$$

Items may have individual masses $q_j$ instead of $1/n$. Then $\sum_j q_j s_j = \mu$, $p_j = q_j s_j / \mu$ and
$u_j \propto q_j v_j$. All else is as above, and $\partial L / \partial q_j = s_j (g_j - \sum_k u_k g_k) / \mu$.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from winnow.functional.distances import check_tensor
from winnow.functional.threshold import is_exporting, selection_threshold


def soft_selection(
    scores: Tensor, mu: Tensor | float, mask: Tensor | None = None, prior: Tensor | None = None
) -> Tensor:  # fmt: skip
    r"""Compute weights that keep a fraction $\mu$ of the items: a soft top-k.

    $p_j = \sigma(\tau + l_j) / (n\mu)$ with $\tau$ such that the fractions $\sigma(\tau + l_j)$ average to $\mu$.

    Args:
        scores: (B, n) float32 or float64.
        mu: Fraction to keep, in (0, 1]; a number, or a tensor with one element or one for each row.
        mask: (B, n) bool, true for the items that count; default all. Masked scores are never read.
        prior: (B, n) masses of the items, not negative and not all zero; default equal masses.

    Returns:
        (B, n) weights that sum to one in each row, zero where masked.

    Raises:
        TypeError: If `scores` is not a floating-point tensor.
        ValueError: If a shape is wrong, or mu is not in (0, 1].
        DataError: If all items of a row are masked.
    """
    check_tensor(scores, "scores", "(B, n)", 2)
    check_mu(mu, scores.shape[0])
    check_mask(mask, scores.shape)
    if not isinstance(mu, Tensor):
        mu = scores.new_full((), mu)
    if mask is not None:
        scores = scores.masked_fill(~mask, 0.0)
    column = mu.to(scores.dtype).reshape(-1, 1).expand(scores.shape[0], 1)
    if prior is not None:
        check_prior(prior, scores)
        prior = normalize_prior(prior.to(scores.dtype), mask)
    if is_exporting():
        return select(scores, column, mask, prior)[1]
    weights: Tensor = _SoftSelection.apply(scores, column, mask, prior)  # type: ignore[no-untyped-call]
    return weights


def hard_selection(scores: Tensor, mu: float) -> Tensor:
    r"""Compute weights that keep the top fraction $\mu$ of the items.

    It is the limit of soft selection.

    $$\max_{0 \le s_j \le 1} \sum_j l_j s_j \quad\text{s.t.}\quad \tfrac1n \sum_j s_j = \mu, \qquad
      p_j = \frac{s_j}{n \mu}$$

    With $l_j = -\min_i c_{ij}$ these are the weights $(1/n - \rho_j)/\mu$ of problem (P1) of [GSP]: the mass of each
    feature moves to the nearest prototype or nowhere. Items are taken in order of their scores, ties by position. The
    last one is taken in part if $n \mu$ is not an integer.

    Args:
        scores: (..., n).
        mu: Fraction to keep, in (0, 1].

    Returns:
        (..., n) weights that sum to one. They are piecewise constant in the scores and have no gradient.
    """
    check_tensor(scores, "scores")
    check_mu(mu, 1)
    count = scores.shape[-1]
    order = scores.argsort(dim=-1, descending=True, stable=True)
    rank = order.argsort(dim=-1)
    return (count * mu - rank.to(scores.dtype)).clamp(min=0, max=1) / (count * mu)


def normalize_prior(prior: Tensor, mask: Tensor | None = None) -> Tensor:
    """Divide masses (B, n) by their sum over unmasked items; others become zero."""
    kept = prior if mask is None else torch.where(mask, prior, 0.0)
    return kept / kept.sum(dim=1, keepdim=True)


def select(
    scores: Tensor, mu: Tensor, mask: Tensor | None, prior: Tensor | None = None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    r"""Return $x_j = \tau + l_j$ and the weights $p_j$, both (B, n)."""
    x = selection_threshold(scores, mu, mask, prior) + scores
    s = torch.where(mu < 1, torch.sigmoid(x), 1.0)
    if mask is not None:
        s = s.masked_fill(~mask, 0.0)
    if prior is not None:
        s = prior * s
    # At the root, the sum is n mu up to rounding. Dividing by the sum itself makes the weights sum to one.
    return x, s / s.sum(dim=1, keepdim=True)


def selection_gradient(
    grad: Tensor, x: Tensor, weights: Tensor, mu: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the gradients of scores (B, n) and mu (B, 1).

    Args:
        grad: (B, n) gradient of the weights.
        x: (B, n) as returned by `select`.
        weights: (B, n) as returned by `select`.
        mu: (B, 1).
        mask: (B, n) bool or None.
    """
    grad_scores, grad_mu, _ = prior_gradient(grad, x, weights, mu, mask, None)
    return grad_scores, grad_mu


def prior_gradient(
    grad: Tensor, x: Tensor, weights: Tensor, mu: Tensor, mask: Tensor | None, prior: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients of scores, mu, and prior (B, n), None without a prior."""
    # In the log domain, because on a plateau every v underflows although their ratios u do not; u has the limit
    # softmax(-l) as mu tends to 1.
    size = x.abs()
    log_v = torch.where(mu < 1, -size - 2 * torch.log1p(torch.exp(-size)), -x)
    if mask is not None:
        log_v, grad = log_v.masked_fill(~mask, -torch.inf), grad.masked_fill(~mask, 0.0)
    if prior is not None:
        log_v = log_v + prior.log()
    mean_grad = (log_v.softmax(dim=1) * grad).sum(dim=1, keepdim=True)
    one_minus_s = torch.where(mu < 1, torch.sigmoid(-x), 0.0)
    grad_scores = weights * one_minus_s * (grad - mean_grad)
    grad_mu = (mean_grad - (weights * grad).sum(dim=1, keepdim=True)) / mu
    if prior is None:
        return grad_scores, grad_mu, None
    grad_prior = (1 - one_minus_s) * (grad - mean_grad) / mu
    return grad_scores, grad_mu, grad_prior if mask is None else grad_prior.masked_fill(~mask, 0.0)


class _SoftSelection(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, mu: Tensor, mask: Tensor | None, prior: Tensor | None) -> Tensor:
        x, weights = select(scores, mu, mask, prior)
        ctx.save_for_backward(x, weights, mu, mask, prior)
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, Tensor | None]:
        scores, mu, prior = prior_gradient(grads[0], *ctx.saved_tensors)
        return scores, mu, None, prior


def check_mu(mu: Tensor | float, images: int) -> None:
    """Raise `ValueError` unless mu is a fraction in (0, 1].

    A tensor needs one element or one per image; its values are not read.
    """
    if isinstance(mu, Tensor):
        if mu.numel() not in (1, images):
            raise ValueError(f"mu: expected one number or {images}, one per image, got shape {tuple(mu.shape)}.")
    elif not 0 < mu <= 1:
        raise ValueError(f"mu: expected a fraction in (0, 1], got {mu}.")


def check_mask(mask: Tensor | None, shape: Sequence[int]) -> None:
    """Raise `ValueError` unless a mask is None or a bool tensor of the given shape."""
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != shape:
        got = f"{mask.dtype} {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        wanted = f"a bool tensor of shape {tuple(shape)}"
        raise ValueError(f"mask: expected {wanted}, got {got}. True marks the features that count.")


def check_prior(prior: Tensor, features: Tensor) -> None:
    """Raise an error unless a prior is a tensor of shape `features.shape[:2]`."""
    check_tensor(prior, "prior", floating=False)
    if prior.shape != features.shape[:2]:
        raise ValueError(f"prior: expected shape {tuple(features.shape[:2])}, got {tuple(prior.shape)}.")
