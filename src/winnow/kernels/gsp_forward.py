# mypy: ignore-errors
"""Forward kernels of the fused GSP; `gsp_tiles` states the math."""

from __future__ import annotations

import triton
import triton.language as tl

from winnow.kernels.gsp_tiles import affinity, distances, load, number, pair_sum, rows_of


@triton.jit
def scores_kernel(
    f_ptr, w_ptr, parts_ptr, w2_ptr, long_w2_ptr, near_ptr, long_f2_ptr, mask_ptr, eps_ptr, closest_ptr, log_total_ptr,
    eps_value, f_image, f_row, f_column, n, d, m,
    R: tl.constexpr, N: tl.constexpr, M: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr,
    MASKED: tl.constexpr, EPS_TENSOR: tl.constexpr,
):  # fmt: skip
    """Write the two terms of the score of each feature.

    They are closest = min_i c_ij - base and log sum_i exp(eps (min_i c_ij - c_ij)). The base is stored with the
    measurements of near pairs.
    """
    image, feature, exists, keep = rows_of(tl.program_id(0), mask_ptr, n, R, N, MASKED)
    eps = number(eps_ptr, 0, eps_value, image, EPS_TENSOR)
    valid = tl.arange(0, M) < m
    f_rows = image.to(tl.int64) * f_image + feature * f_row
    at = image * n + feature
    c, _, _, _, _, _, _ = distances(
        f_ptr, w_ptr, parts_ptr, w2_ptr, long_w2_ptr, near_ptr, long_f2_ptr, f_ptr, f_rows, f_column, at, exists, keep,
        valid, eps, m, d, R, M, K, PARTS, False, False,
    )  # fmt: skip
    _, total, closest = affinity(c, valid, eps)
    tl.store(closest_ptr + at, closest, mask=exists)
    tl.store(log_total_ptr + at, tl.log(total), mask=exists)


@triton.jit
def _root(score, keep, mu):
    """Solve mean_j sigmoid(tau + l_j) = mu by Newton steps inside a shrinking bracket."""
    tiny: tl.constexpr = 1.1920929e-07
    fraction = tl.minimum(mu, 1.0 - tiny)
    count = tl.sum(keep.to(tl.float32), 0)
    logit = tl.log(fraction) - tl.log(1.0 - fraction)
    low = logit - tl.max(tl.where(keep, score, float("-inf")), 0)
    high = logit - tl.min(tl.where(keep, score, float("inf")), 0)
    tau = tl.minimum(tl.maximum(logit - tl.sum(tl.where(keep, score, 0.0), 0) / count, low), high)
    step = 0
    while step < 60:
        s = tl.where(keep, tl.sigmoid(tau + score), 0.0)
        total, slope = tl.reduce((s, s * (1.0 - s)), 0, pair_sum)
        excess = total / count - fraction
        low = tl.where(excess < 0, tau, low)
        high = tl.where(excess > 0, tau, high)
        newton = tau - excess / (slope / count)
        inside = (newton > low) & (newton < high)  # also false for NaN and inf from a zero slope
        done = (tl.abs(excess) <= 4 * tiny * fraction) | (newton == tau)
        following = tl.where(inside, newton, tl.where(done, tau, (low + high) / 2))
        settled = done | (tl.abs(following - tau) <= 2 * tiny * tl.maximum(tl.abs(tau), 1.0))
        tau = following
        step = tl.where(settled, 60, step + 1)
    return tau


@triton.jit
def _score(base, closest, log_total, best, keep, eps):
    """Return the scores l up to a constant per image, which the root absorbs.

    Differences are computed first, because a large eps would remove their digits.
    """
    return tl.where(keep, eps * ((best - base) - closest) + log_total, 0.0)


@triton.jit
def pool_kernel(
    f_ptr, w_ptr, parts_ptr, w2_ptr, long_w2_ptr, near_ptr, long_f2_ptr, mask_ptr, mu_ptr, eps_ptr, closest_ptr,
    log_total_ptr, pooled_ptr, weights_ptr, x_ptr, attributes_ptr,
    mu_value, eps_value, mu_stride, f_image, f_row, f_column, n, d, m,
    R: tl.constexpr, N: tl.constexpr, ALL: tl.constexpr, M: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr,
    MASKED: tl.constexpr, MU_TENSOR: tl.constexpr, EPS_TENSOR: tl.constexpr,
):  # fmt: skip
    """Write weights and x of a tile.

    Add its contribution to the pooled vector and the attributes of the image.
    """
    image, feature, exists, keep = rows_of(tl.program_id(0), mask_ptr, n, R, N, MASKED)
    mu = number(mu_ptr, mu_stride, mu_value, image, MU_TENSOR)
    eps = number(eps_ptr, 0, eps_value, image, EPS_TENSOR)
    indices = tl.arange(0, M)
    valid = indices < m
    f_rows = image.to(tl.int64) * f_image + feature * f_row
    at = image * n + feature
    c, base, _, _, _, _, _ = distances(
        f_ptr, w_ptr, parts_ptr, w2_ptr, long_w2_ptr, near_ptr, long_f2_ptr, f_ptr, f_rows, f_column, at, exists, keep,
        valid, eps, m, d, R, M, K, PARTS, N > R, False,
    )  # fmt: skip
    e, total, closest = affinity(c, valid, eps)
    if N == R:
        best = tl.min(tl.where(keep, base + closest, float("inf")), 0)
        score = _score(base, closest, tl.log(total), best, keep, eps)
        x = _root(score, keep, mu) + score
        s = tl.where(keep, tl.where(mu < 1.0, tl.sigmoid(x), 1.0), 0.0)
        p = s / tl.sum(s, 0)
    else:
        every = tl.arange(0, ALL)
        counts = every < n
        if MASKED:
            counts = counts & (tl.load(mask_ptr + image * n + every, mask=counts, other=0) != 0)
        all_base = tl.zeros([ALL], tl.float32)
        if PARTS > 1:
            all_base = tl.load(near_ptr + (image * n + every) * 4 + 1, mask=counts, other=0.0)
        all_closest = tl.load(closest_ptr + image * n + every, mask=counts, other=0.0)
        all_log_total = tl.load(log_total_ptr + image * n + every, mask=counts, other=0.0)
        best = tl.min(tl.where(counts, all_base + all_closest, float("inf")), 0)
        scores = _score(all_base, all_closest, all_log_total, best, counts, eps)
        tau = _root(scores, counts, mu)
        all_s = tl.where(counts, tl.where(mu < 1.0, tl.sigmoid(tau + scores), 1.0), 0.0)
        # Load the numbers used in `scores` instead of recomputing them; then the weights sum to one.
        closest = tl.load(closest_ptr + at, mask=keep, other=0.0)
        log_total = tl.load(log_total_ptr + at, mask=keep, other=0.0)
        x = tau + _score(base, closest, log_total, best, keep, eps)
        s = tl.where(keep, tl.where(mu < 1.0, tl.sigmoid(x), 1.0), 0.0)
        p = s / tl.sum(all_s, 0)
    tl.store(weights_ptr + at, p, mask=exists)
    tl.store(x_ptr + at, x, mask=exists)
    z = tl.sum(e * (p / total)[:, None], 0)
    if N == R:
        tl.store(attributes_ptr + image * m + indices, z, mask=valid)
    else:
        tl.atomic_add(attributes_ptr + image * m + indices, z, mask=valid, sem="relaxed")
    for start in range(0, d, K):
        columns = start + tl.arange(0, K)
        f = load(f_ptr, f_rows, columns, f_column, keep, d).to(tl.float32)
        g = tl.sum(f * p[:, None], 0)
        if N == R:
            tl.store(pooled_ptr + image * d + columns, g.to(pooled_ptr.dtype.element_ty), mask=columns < d)
        else:
            tl.atomic_add(pooled_ptr + image * d + columns, g, mask=columns < d, sem="relaxed")
