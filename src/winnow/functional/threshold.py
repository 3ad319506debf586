r"""The root of the one scalar equation of soft selection, $\tfrac1n \sum_j \sigma(\tau + l_j) = \mu$."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from winnow.errors import DataError
from winnow.functional.exporting import is_exporting, threshold_by_sections

Average = Callable[[Tensor], Tensor]
"""The mean (B, 1) of numbers (B, n) over the items that count, by their masses where they have any."""

MAX_STEPS = 60  # plateaus at eps = 1e4 need about 30; bisection alone ends float64 within 60
_QUICK_STEPS = 8


def selection_threshold(scores: Tensor, share: Tensor, mask: Tensor | None, prior: Tensor | None = None) -> Tensor:
    r"""Solve $\operatorname{mean}_j \sigma(\tau + l_j) = \mu$, or $\sum_j q_j \sigma(\tau + l_j) = \mu$, for each row.

    Args:
        scores: (B, n), finite where `mask` is true.
        share: (B, 1) in (0, 1]. Where it is 1 there is no root; any number is returned.
        mask: (B, n) bool, true for the items that count; None: all.
        prior: (B, n) masses q, each row summing to one, zero where masked; None: the same for all that count.

    Returns:
        (B, 1) thresholds tau, without gradient.
    """
    if is_exporting():
        return threshold_by_sections(scores, share, mask, prior)
    if torch.compiler.is_compiling():
        tau: Tensor = _threshold_op(scores, share, mask, prior)
        return tau
    return _solve(scores, share, mask, prior)


def is_capturing(scores: Tensor) -> bool:
    """Whether what is done to these numbers goes into a CUDA graph, which can ask nothing either."""
    return scores.is_cuda and torch.cuda.is_current_stream_capturing()


@torch.no_grad()
def _solve(scores: Tensor, share: Tensor, mask: Tensor | None, prior: Tensor | None) -> Tensor:
    if is_capturing(scores):  # the steps before the capture have checked
        return threshold_by_sections(scores, share, mask, prior)
    _check(scores, share, mask)
    share = share.clamp(max=1 - torch.finfo(scores.dtype).eps)  # where(share == 1) is decided by the caller
    logit = torch.logit(share)
    if mask is None:
        count: Tensor | int = scores.shape[1]
        lowest, mean = scores.amin(dim=1, keepdim=True), scores.mean(dim=1, keepdim=True)
    else:
        count = mask.sum(dim=1, keepdim=True)
        lowest = scores.masked_fill(~mask, torch.inf).amin(dim=1, keepdim=True)
        mean = scores.masked_fill(~mask, 0.0).sum(dim=1, keepdim=True) / count
        scores = scores.masked_fill(~mask, -torch.inf)
    low, high = logit - scores.amax(dim=1, keepdim=True), logit - lowest

    def average(values: Tensor) -> Tensor:
        if prior is None:
            return values.sum(dim=1, keepdim=True) / count
        return (prior * values).sum(dim=1, keepdim=True)

    tau, found = _quick(scores, logit, average, low, high, logit - mean)
    return tau if found else _safeguarded(scores, share, average, low, high, tau)


def _check(scores: Tensor, share: Tensor, mask: Tensor | None) -> None:
    wrong = ~((share > 0) & (share <= 1))  # true also for NaN
    empty = torch.full_like(wrong, scores.shape[1] == 0) if mask is None else ~mask.any(dim=1, keepdim=True)
    if bool((empty | wrong).any()):  # one question, because each costs a synchronisation on a GPU
        if bool(wrong.any()):
            raise ValueError(f"the share mu must be in (0, 1], not {float(share[wrong][0])}")
        image = int(empty.squeeze(1).nonzero()[0])
        raise DataError(f"every feature of image {image} of the batch is masked; leave at least one unmasked")


def _quick(
    scores: Tensor, logit: Tensor, average: Average, low: Tensor, high: Tensor, tau: Tensor
) -> tuple[Tensor, bool]:
    r"""Take a few Newton steps on $F(\tau) = \operatorname{logit}(\tfrac1n\sum_j s_j) - \operatorname{logit}(\mu)$.

    Scores that are all alike make $F$ a straight line, so scores that differ by little need few steps. Because
    $|F''| \le 2 |F'|$ everywhere, a step of length $\delta$ leaves an error of about $\delta^2$ at most.

    Returns:
        The thresholds, and whether all of them are found.
    """
    small = torch.finfo(scores.dtype).eps ** 0.5
    for step in range(_QUICK_STEPS):
        s = torch.sigmoid(tau + scores)
        kept = average(s)
        slope = average(s - s * s)
        move = (torch.logit(kept) - logit) * (kept - kept * kept) / slope
        tau = (tau - move).clamp(low, high)
        # Asking costs a synchronisation on a GPU, so ask there only in the end.
        if (tau.device.type == "cpu" or step == _QUICK_STEPS - 1) and float(move.norm()) <= small:
            return tau, True
    return tau, False


def _safeguarded(
    scores: Tensor, share: Tensor, average: Average, low: Tensor, high: Tensor, tau: Tensor
) -> Tensor:  # fmt: skip
    """Take Newton steps on the mean itself inside a shrinking bracket, or halve it, from `tau` on if that is any."""
    tiny = torch.finfo(scores.dtype).eps
    tau = torch.where(tau.isnan(), (low + high) / 2, tau)
    for step in range(MAX_STEPS):
        s = torch.sigmoid(tau + scores)
        excess = average(s) - share
        slope = average(s * (1 - s))
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
def _threshold_op(scores: Tensor, share: Tensor, mask: Tensor | None, prior: Tensor | None) -> Tensor:
    """Hide the data-dependent loop from torch.compile, so that a whole model compiles to one graph."""
    return _solve(scores, share, mask, prior)


@_threshold_op.register_fake
def _(scores: Tensor, share: Tensor, mask: Tensor | None, prior: Tensor | None) -> Tensor:
    return scores.new_empty(scores.shape[0], 1)
