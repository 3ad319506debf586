r"""Root of the scalar equation of soft selection.

$\tfrac1n \sum_j \sigma(\tau + l_j) = \mu$
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from winnow.errors import DataError

Average = Callable[[Tensor], Tensor]
"""Mean (B, 1) of numbers (B, n) over the items that count, weighted by their masses if there are any."""

MAX_STEPS = 60  # plateaus at eps = 1e4 need about 30; bisection alone resolves float64 within 60
_QUICK_STEPS = 8
_POINTS = 32
_ROUNDS, _ROUNDS_IN_DOUBLE = 7, 13  # 31^7 = 3e10 and 31^13 = 2e19 shrink a bracket of 1e4 to the last digit


def is_exporting() -> bool:
    """Return whether `torch.export` or `torch.jit.trace` is tracing.

    An exported model can contain plain operators only.
    """
    tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return torch.compiler.is_exporting() or tracing


def is_capturing(scores: Tensor) -> bool:
    """Return whether operations on this tensor are captured in a CUDA graph.

    No value can be read during a capture.
    """
    return scores.is_cuda and torch.cuda.is_current_stream_capturing()


def selection_threshold(scores: Tensor, mu: Tensor, mask: Tensor | None, prior: Tensor | None = None) -> Tensor:
    r"""Solve the equation of soft selection for the threshold of each row.

    $\operatorname{mean}_j \sigma(\tau + l_j) = \mu$, or $\sum_j q_j \sigma(\tau + l_j) = \mu$ with a prior.

    Newton steps are used in general, and [`solve_by_bracketing`][winnow.functional.threshold.solve_by_bracketing]
    where no value may be read: in exported models and CUDA graphs.

    Args:
        scores: (B, n), finite where `mask` is true.
        mu: (B, 1) in (0, 1]. The value 1 has no root; any number is returned.
        mask: (B, n) bool, true for the items that count; None: all.
        prior: (B, n) masses q, each row summing to one, zero where masked; None: equal masses for all that count.

    Returns:
        (B, 1) thresholds tau, without gradient.
    """
    if is_exporting():
        return solve_by_bracketing(scores, mu, mask, prior)
    if torch.compiler.is_compiling():
        tau: Tensor = _threshold_op(scores, mu, mask, prior)
        return tau
    return _solve(scores, mu, mask, prior)


def solve_by_bracketing(scores: Tensor, mu: Tensor, mask: Tensor | None, prior: Tensor | None) -> Tensor:
    r"""Solve for the threshold in a fixed number of plain operators.

    $\sum_j q_j\, \sigma(\tau + l_j) = \mu$

    The left side grows with $\tau$. The first bracket reaches from $\operatorname{logit}\mu - \max_j l_j$ to
    $\operatorname{logit}\mu - \min_j l_j$. Each round evaluates the left side at 32 points of the bracket; the two
    that enclose $\mu$ are the next bracket.
    [`selection_threshold`][winnow.functional.threshold.selection_threshold] describes the arguments. They are not
    validated.
    """
    logit = torch.logit(mu.clamp(max=1 - torch.finfo(scores.dtype).eps))
    masses = torch.ones_like(scores) if mask is None else mask.to(scores.dtype)
    masses = masses / masses.sum(dim=1, keepdim=True) if prior is None else prior
    lowest = scores if mask is None else scores.masked_fill(~mask, torch.inf)
    highest = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    low, high = logit - highest.amax(dim=1, keepdim=True), logit - lowest.amin(dim=1, keepdim=True)
    steps = torch.linspace(0, 1, _POINTS, dtype=scores.dtype, device=scores.device)
    for _ in range(_ROUNDS_IN_DOUBLE if scores.dtype == torch.float64 else _ROUNDS):
        points = low + (high - low) * steps
        kept = (masses[:, :, None] * torch.sigmoid(points[:, None] + scores[:, :, None])).sum(dim=1)
        low = torch.where(kept <= mu, points, low).amax(dim=1, keepdim=True)
        high = torch.where(kept >= mu, points, high).amin(dim=1, keepdim=True)
    return (low + high) / 2


def fully_masked(empty: Tensor) -> DataError:
    """Return the error for images (B,) bool without any feature that counts."""
    image = int(empty.nonzero()[0])
    return DataError(f"mask: every feature of image {image} of the batch is masked. Keep at least one per image.")


@torch.no_grad()
def _solve(scores: Tensor, mu: Tensor, mask: Tensor | None, prior: Tensor | None) -> Tensor:
    if is_capturing(scores):  # the steps before the capture have validated the arguments
        return solve_by_bracketing(scores, mu, mask, prior)
    _check(scores, mu, mask)
    mu = mu.clamp(max=1 - torch.finfo(scores.dtype).eps)  # the caller handles mu = 1
    logit = torch.logit(mu)
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
    return tau if found else _safeguarded(scores, mu, average, low, high, tau)


def _check(scores: Tensor, mu: Tensor, mask: Tensor | None) -> None:
    wrong = ~((mu > 0) & (mu <= 1))  # also true for NaN
    empty = torch.full_like(wrong, scores.shape[1] == 0) if mask is None else ~mask.any(dim=1, keepdim=True)
    if bool((empty | wrong).any()):  # read one value, because each read synchronizes a GPU
        if bool(wrong.any()):
            raise ValueError(f"mu: expected fractions in (0, 1], got {float(mu[wrong][0])}.")
        raise fully_masked(empty.squeeze(1))


def _quick(
    scores: Tensor, logit: Tensor, average: Average, low: Tensor, high: Tensor, tau: Tensor
) -> tuple[Tensor, bool]:
    r"""Take a few Newton steps on a difference of logits.

    $F(\tau) = \operatorname{logit}(\tfrac1n\sum_j s_j) - \operatorname{logit}(\mu)$

    $F$ is a straight line for equal scores, so scores that differ little need few steps. Because $|F''| \le 2 |F'|$
    everywhere, a step of length $\delta$ leaves an error of about $\delta^2$ at most.

    Returns:
        The thresholds, and whether all of them have converged.
    """
    small = torch.finfo(scores.dtype).eps ** 0.5
    for step in range(_QUICK_STEPS):
        s = torch.sigmoid(tau + scores)
        kept = average(s)
        slope = average(s - s * s)
        move = (torch.logit(kept) - logit) * (kept - kept * kept) / slope
        tau = (tau - move).clamp(low, high)
        # Reading a value synchronizes a GPU, so convergence is checked there only at the end.
        if (tau.device.type == "cpu" or step == _QUICK_STEPS - 1) and float(move.norm()) <= small:
            return tau, True
    return tau, False


def _safeguarded(
    scores: Tensor, mu: Tensor, average: Average, low: Tensor, high: Tensor, tau: Tensor
) -> Tensor:  # fmt: skip
    """Take Newton steps on the mean itself inside a shrinking bracket.

    The start is `tau`. A step out of the bracket is replaced by its midpoint.
    """
    tiny = torch.finfo(scores.dtype).eps
    tau = torch.where(tau.isnan(), (low + high) / 2, tau)
    for step in range(MAX_STEPS):
        s = torch.sigmoid(tau + scores)
        excess = average(s) - mu
        slope = average(s * (1 - s))
        low = torch.where(excess < 0, tau, low)
        high = torch.where(excess > 0, tau, high)
        newton = tau - excess / slope
        inside = (newton > low) & (newton < high)  # also false for NaN and inf from a zero slope
        # At the root, rounding may point out of a bracket with a far other end. The step is then not halved.
        done = (excess.abs() <= 4 * tiny * mu) | (newton == tau)
        next_tau = torch.where(inside, newton, torch.where(done, tau, (low + high) / 2))
        settled = done | ((next_tau - tau).abs() <= 2 * tiny * tau.abs().clamp(min=1))
        tau = next_tau
        # Reading a value synchronizes a GPU, so convergence is checked there every eighth step.
        if (tau.device.type == "cpu" or step % 8 == 7) and bool(settled.all()):
            break
    return tau


@torch.library.custom_op("winnow::selection_threshold", mutates_args=())
def _threshold_op(scores: Tensor, mu: Tensor, mask: Tensor | None, prior: Tensor | None) -> Tensor:
    """Hide the data-dependent loop from torch.compile, for a graph without breaks."""
    return _solve(scores, mu, mask, prior)


@_threshold_op.register_fake
def _(scores: Tensor, mu: Tensor, mask: Tensor | None, prior: Tensor | None) -> Tensor:
    return scores.new_empty(scores.shape[0], 1)
