# mypy: ignore-errors
"""Backward kernels of the fused GSP; `gsp_tiles` states the math."""

from __future__ import annotations

import triton
import triton.language as tl

from winnow.kernels.gsp_tiles import (
    NEAR,
    STEP,
    affinity,
    distances,
    load,
    load_parts,
    multiply,
    number,
    pair_sum,
    rows_of,
    split,
)


@triton.jit
def _mean_over_u(x, q, keep, mu):
    """Return sum_j u_j q_j with u = v / sum v and v = s (1 - s).

    Where mu is 1, u has the limit softmax(-l).
    """
    # In the log domain, because every v may underflow although their ratios do not.
    log_v = tl.where(mu < 1.0, -tl.abs(x) - 2.0 * tl.log(1.0 + tl.exp(-tl.abs(x))), -x)
    log_v = tl.where(keep, log_v, float("-inf"))
    u = tl.exp(log_v - tl.max(log_v, 0))
    total, weighted = tl.reduce((u, u * q), 0, pair_sum)
    return weighted / total


@triton.jit
def _own_gradient(
    e, total, q, dp_ptr, dz_ptr, at, image, keep, valid, m,
    M: tl.constexpr, HAS_DP: tl.constexpr, HAS_DZ: tl.constexpr,
):  # fmt: skip
    """Return q = dL/dp of each row of a tile, and dL/dz minus its mean h.

    If one prototype receives nearly all of a feature, its dL/dz and the mean h are nearly equal. Subtracting that dL/dz
    from all others first keeps the digits of the difference. On input, q is f . dg.
    """
    shifted = e
    if HAS_DP:
        q += tl.load(dp_ptr + at, mask=keep, other=0.0)
    if HAS_DZ:
        dz = tl.load(dz_ptr + image * m + tl.arange(0, M), mask=valid, other=0.0)
        nearest = tl.max(tl.where(e == 1.0, dz[None, :], float("-inf")), 1)
        nearest = tl.where(keep, nearest, 0.0)
        shifted = dz[None, :] - nearest[:, None]
        h = tl.sum(e * shifted, 1) / total
        q += h + nearest
        shifted = shifted - h[:, None]
    return q, shifted


@triton.jit
def weights_gradient_kernel(
    f_ptr, w_ptr, parts_ptr, w2_ptr, long_w2_ptr, near_ptr, long_f2_ptr, mask_ptr, eps_ptr, q_ptr,
    dg_ptr, dp_ptr, dz_ptr, eps_value, f_image, f_row, f_column, n, d, m,
    R: tl.constexpr, N: tl.constexpr, M: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr,
    MASKED: tl.constexpr, EPS_TENSOR: tl.constexpr,
    HAS_DG: tl.constexpr, HAS_DP: tl.constexpr, HAS_DZ: tl.constexpr,
):  # fmt: skip
    """Write q = dL/dp of every feature; used for images of several tiles."""
    image, feature, exists, keep = rows_of(tl.program_id(0), mask_ptr, n, R, N, MASKED)
    eps = number(eps_ptr, 0, eps_value, image, EPS_TENSOR)
    valid = tl.arange(0, M) < m
    f_rows = image.to(tl.int64) * f_image + feature * f_row
    at = image * n + feature
    c, _, _, _, _, _, q = distances(
        f_ptr, w_ptr, parts_ptr, w2_ptr, long_w2_ptr, near_ptr, long_f2_ptr, dg_ptr + image * d, f_rows, f_column, at,
        exists, keep, valid, eps, m, d, R, M, K, PARTS, True, HAS_DG,
    )  # fmt: skip
    e, total, _ = affinity(c, valid, eps)
    q, _ = _own_gradient(e, total, q, dp_ptr, dz_ptr, at, image, keep, valid, m, M, HAS_DP, HAS_DZ)
    tl.store(q_ptr + at, q, mask=exists)


@triton.jit
def _add_near(
    f_ptr, w_ptr, long_w2_ptr, long_f2_ptr, df_ptr, dw_ptr, f_rows, f_column, at, index, near, found, f_scale, d
):  # fmt: skip
    """Add the terms P (f - w) of the nearest prototypes to df and dw.

    They are computed from differences in float64.
    """
    f_wide = 1.0 / tl.sqrt(tl.maximum(tl.load(long_f2_ptr + at, mask=found, other=1.0), 1.0))
    w_wide = 1.0 / tl.sqrt(tl.maximum(tl.load(long_w2_ptr + index, mask=found, other=1.0), 1.0))
    for start in range(0, d, STEP):
        columns = start + tl.arange(0, STEP)
        f = load(f_ptr, f_rows, columns, f_column, found, d).to(tl.float64)
        w = load(w_ptr, index * d, columns, 1, found, d).to(tl.float64)
        gap = (f * f_wide[:, None] - w * w_wide[:, None]).to(tl.float32) * near[:, None]
        spots = df_ptr + f_rows[:, None] + columns[None, :] * f_column
        inside = found[:, None] & (columns < d)[None, :]
        df = tl.load(spots, mask=inside, other=0.0).to(tl.float32) + gap
        tl.store(spots, df.to(df_ptr.dtype.element_ty), mask=inside)
        tl.atomic_add(
            dw_ptr + index[:, None] * d + columns[None, :], -gap / f_scale[:, None], mask=inside, sem="relaxed"
        )  # fmt: skip


@triton.jit
def _selection_gradient(
    x_ptr, q_ptr, weights_ptr, mask_ptr, x, q, p, keep, image, mu, n,
    ONE: tl.constexpr, ALL: tl.constexpr, MASKED: tl.constexpr, SCALARS: tl.constexpr,
):  # fmt: skip
    """Return dL/dl of the scores of a tile and dL/dmu of its image.

    ONE marks images of a single tile.
    """
    mean_pq = 0.0
    if ONE:
        mean_q = _mean_over_u(x, q, keep, mu)
        if SCALARS:
            mean_pq = tl.sum(p * q, 0)
    else:
        every = tl.arange(0, ALL)
        counts = every < n
        if MASKED:
            counts = counts & (tl.load(mask_ptr + image * n + every, mask=counts, other=0) != 0)
        all_q = tl.load(q_ptr + image * n + every, mask=counts, other=0.0)
        mean_q = _mean_over_u(tl.load(x_ptr + image * n + every, mask=counts, other=0.0), all_q, counts, mu)
        if SCALARS:
            mean_pq = tl.sum(all_q * tl.load(weights_ptr + image * n + every, mask=counts, other=0.0), 0)
    dl = p * tl.where(mu < 1.0, tl.sigmoid(-x), 0.0) * (q - mean_q)
    return dl, (mean_q - mean_pq) / mu


@triton.jit
def _pull(
    a, c, dl, p, shifted, f_scale, f2, w2, valid, eps, PARTS: tl.constexpr, HAS_DZ: tl.constexpr
):  # fmt: skip
    """Return P_ij / max(1, |f_j|) (R, M), df along f (R,), and dL/d(-eps c)."""
    inner = dl[:, None]
    if HAS_DZ:
        inner = inner + p[:, None] * shifted
    da = a * inner
    if PARTS == 1:
        # Rounded once, so all uses agree; the lower bound on c limits the error of rounded differences.
        pull = (-eps * da / tl.maximum(c, 4e-3) * f_scale[:, None]).to(tl.bfloat16).to(tl.float32)
    else:
        pull = tl.where(c > 1e-29, -eps * da / c * f_scale[:, None], 0.0)
    pull = tl.where(valid[None, :], pull, 0.0)
    # Clipping passes only the component orthogonal to f: subtract f (f . df) / |f|^2. f . df needs no product.
    along_f = tl.sum(pull * tl.where(valid[None, :], (c * c + f2[:, None]) - w2[None, :], 0.0), 1) * 0.5
    return pull, tl.where(f_scale < 1.0, along_f, 0.0), da


@triton.jit
def gradient_kernel(
    f_ptr, w_ptr, parts_ptr, w2_ptr, long_w2_ptr, near_ptr, long_f2_ptr, mask_ptr, mu_ptr, eps_ptr, weights_ptr, x_ptr,
    q_ptr, dg_ptr, dp_ptr, dz_ptr, df_ptr, dw_ptr, sums_ptr, dmu_ptr, deps_ptr,
    mu_value, eps_value, mu_stride, f_image, f_row, f_column, n, d, m,
    R: tl.constexpr, N: tl.constexpr, ALL: tl.constexpr, M: tl.constexpr, K: tl.constexpr,
    PARTS: tl.constexpr, MASKED: tl.constexpr, MU_TENSOR: tl.constexpr, EPS_TENSOR: tl.constexpr,
    HAS_DG: tl.constexpr, HAS_DP: tl.constexpr, HAS_DZ: tl.constexpr, SCALARS: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the features of a tile, and add the other gradients.

    The others are the gradients of clipped prototypes, mu, and eps. For the prototypes, sum_j P_ij is added to `sums`
    and -sum_j P_ij f_j to `dw`.
    """
    tile = tl.program_id(0)
    indices = tl.arange(0, M)
    valid = indices < m
    image, feature, exists, keep = rows_of(tile, mask_ptr, n, R, N, MASKED)
    mu = number(mu_ptr, mu_stride, mu_value, image, MU_TENSOR)
    eps = number(eps_ptr, 0, eps_value, image, EPS_TENSOR)
    at = image * n + feature
    f_rows = image.to(tl.int64) * f_image + feature * f_row
    p = tl.load(weights_ptr + at, mask=keep, other=0.0)
    x = tl.load(x_ptr + at, mask=keep, other=0.0)
    c, base, index, f_scale, f2, w2, q = distances(
        f_ptr, w_ptr, parts_ptr, w2_ptr, long_w2_ptr, near_ptr, long_f2_ptr, dg_ptr + image * d, f_rows, f_column, at,
        exists, keep, valid, eps, m, d, R, M, K, PARTS, True, HAS_DG,
    )  # fmt: skip
    e, total, _ = affinity(c, valid, eps)
    q, shifted = _own_gradient(e, total, q, dp_ptr, dz_ptr, at, image, keep, valid, m, M, HAS_DP, HAS_DZ)
    a = e / total[:, None]
    c += base[:, None]
    dl, dmu = _selection_gradient(
        x_ptr, q_ptr, weights_ptr, mask_ptr, x, q, p, keep, image, mu, n, N == R, ALL, MASKED, SCALARS
    )  # fmt: skip
    pull, along_f, da = _pull(a, c, dl, p, shifted, f_scale, f2, w2, valid, eps, PARTS, HAS_DZ)
    if SCALARS:
        tl.atomic_add(deps_ptr, -tl.sum(tl.sum(tl.where(a > 0, c * da, 0.0), 1), 0), sem="relaxed")
        if (tile * R) % N == 0:
            tl.atomic_add(dmu_ptr + image * mu_stride, dmu, sem="relaxed")
    if PARTS > 1:
        # Near pairs are skipped here, because their terms of sum P (f - w) would cancel, and added below.
        chosen = (indices[None, :] == index[:, None]) & (c < NEAR)
        near = tl.sum(tl.where(chosen, pull, 0.0), 1)
        pull = tl.where(chosen, 0.0, pull)
    from_rows = (tl.sum(pull, 1) - along_f) * f_scale
    tl.atomic_add(sums_ptr + indices, tl.sum(pull / f_scale[:, None], 0), mask=valid, sem="relaxed")
    pull_first, pull_second, pull_third = split(pull)
    for start in range(0, d, K):
        columns = start + tl.arange(0, K)
        f = load(f_ptr, f_rows, columns, f_column, keep, d).to(tl.float32)
        f_first, f_second, f_third = split(f)
        pushed = multiply(
            tl.trans(pull_first), tl.trans(pull_second), tl.trans(pull_third), f_first, f_second, f_third,
            tl.zeros([M, K], tl.float32), PARTS,
        )  # fmt: skip
        tl.atomic_add(
            dw_ptr + indices[:, None] * d + columns[None, :], -pushed,
            mask=valid[:, None] & (columns < d)[None, :], sem="relaxed",
        )  # fmt: skip
        w_first, w_second, w_third = load_parts(parts_ptr, indices * d, columns, valid, m, d, PARTS)
        moved = multiply(
            pull_first, pull_second, pull_third, w_first, w_second, w_third, tl.zeros([R, K], tl.float32), PARTS
        )  # fmt: skip
        _store_gradient(
            from_rows[:, None] * f - moved, p, dg_ptr + image * d, df_ptr, f_rows, f_column, columns,
            exists, keep, d, HAS_DG,
        )  # fmt: skip
    if PARTS > 1:  # noqa: SIM102 (the outer condition is a compile-time constant)
        if tl.max(index, 0) >= 0:
            tl.debug_barrier()  # other threads of this program wrote the df that is read back
            found = keep & (near != 0)
            _add_near(
                f_ptr, w_ptr, long_w2_ptr, long_f2_ptr, df_ptr, dw_ptr, f_rows, f_column, at, index, near, found,
                f_scale, d,
            )  # fmt: skip


@triton.jit
def _store_gradient(
    df, p, dg_ptr, df_ptr, f_rows, f_column, columns, exists, keep, d, HAS_DG: tl.constexpr
):  # fmt: skip
    """Add p dL/dg to the gradient of a tile and write it.

    It is zero for features that do not count.
    """
    if HAS_DG:
        g = tl.load(dg_ptr + columns, mask=columns < d, other=0.0).to(tl.float32)
        df += p[:, None] * g[None, :]
    df = tl.where(keep[:, None], df, 0.0)
    tl.store(
        df_ptr + f_rows[:, None] + columns[None, :] * f_column, df.to(df_ptr.dtype.element_ty),
        mask=exists[:, None] & (columns < d)[None, :],
    )  # fmt: skip
