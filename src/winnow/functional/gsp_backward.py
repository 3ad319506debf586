# mypy: ignore-errors
"""The backward kernels of the fused GSP; the maths is in `gsp_tiles`."""

from __future__ import annotations

import triton
import triton.language as tl

from winnow.functional.gsp_tiles import (
    NEAR,
    STEP,
    affinity,
    distances,
    load,
    load_image,
    load_parts,
    multiply,
    number,
    pair_sum,
    rows_of,
    split,
    wide_products,
)


@triton.jit
def _mean_over_u(x, q, keep, mu):
    """Return sum_j u_j q_j of each row, with u = v / sum v and v = s (1 - s); softmax(-l) where mu is 1."""
    # In the log domain, because every v may underflow while their ratios do not.
    log_v = tl.where(mu < 1.0, -tl.abs(x) - 2.0 * tl.log(1.0 + tl.exp(-tl.abs(x))), -x)
    log_v = tl.where(keep, log_v, float("-inf"))
    u = tl.where(keep, tl.exp(log_v - tl.max(log_v, 1)[:, None]), 0.0)
    total, weighted = tl.reduce((u, u * q), 1, pair_sum)
    return weighted / tl.maximum(total, 0.5)  # the greatest u is 1; the bound is for rows without an image


@triton.jit
def _own_gradient(
    a, q, dp_ptr, dz_ptr, at, image, keep, m,
    M: tl.constexpr, HAS_DP: tl.constexpr, HAS_DZ: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Return q = dL/dp of each row of a tile, given f . dg; and h, the part of it that comes by the attributes."""
    h = tl.zeros_like(q)
    if HAS_DP:
        q += tl.load(dp_ptr + at, mask=keep, other=0.0)
    if HAS_DZ:
        h = tl.sum(a * load_image(dz_ptr, image, tl.arange(0, M), keep, m, SHARED), 1)
    return q + h, h


@triton.jit
def weights_gradient_kernel(
    f_ptr, w_ptr, parts_ptr, w2_ptr, mask_ptr, eps_ptr, q_ptr, dg_ptr, dp_ptr, dz_ptr,
    eps_value, f_image, f_row, f_column, n, d, m,
    R: tl.constexpr, N: tl.constexpr, M: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr,
    MASKED: tl.constexpr, EPS_TENSOR: tl.constexpr,
    HAS_DG: tl.constexpr, HAS_DP: tl.constexpr, HAS_DZ: tl.constexpr,
):  # fmt: skip
    """Write q = dL/dp of every feature, for images of several tiles."""
    image, feature, exists, keep = rows_of(tl.program_id(0), mask_ptr, 0, n, R, N, MASKED)
    eps = number(eps_ptr, 0, eps_value, image, EPS_TENSOR)
    valid = tl.arange(0, M) < m
    f_rows = image.to(tl.int64) * f_image + feature * f_row
    c, _, _, _, _, _, q = distances(
        f_ptr, w_ptr, parts_ptr, w2_ptr, dg_ptr, image, f_rows, f_column, keep, valid, eps, m, d,
        R, M, K, PARTS, HAS_DG, False,
    )  # fmt: skip
    e, total, _ = affinity(c, valid, eps)
    at = image * n + feature
    q, _ = _own_gradient(e / total[:, None], q, dp_ptr, dz_ptr, at, image, keep, m, M, HAS_DP, HAS_DZ, False)
    tl.store(q_ptr + at, q, mask=exists)


@triton.jit
def _add_near(
    f_ptr, w_ptr, df_ptr, dw_ptr, f_rows, f_column, place, near, found, f_scale, d, R: tl.constexpr
):  # fmt: skip
    """Add the terms P (f - w) of each row's nearest prototype to df and dw, from differences in float64."""
    f2, w2, _ = wide_products(f_ptr, w_ptr, f_rows, f_column, place, found, d, R)
    f_wide, w_wide = 1.0 / tl.sqrt(tl.maximum(f2, 1.0)), 1.0 / tl.sqrt(tl.maximum(w2, 1.0))
    for start in range(0, d, STEP):
        columns = start + tl.arange(0, STEP)
        f = load(f_ptr, f_rows, columns, f_column, found, d).to(tl.float64)
        w = load(w_ptr, place * d, columns, 1, found, d).to(tl.float64)
        gap = (f * f_wide[:, None] - w * w_wide[:, None]).to(tl.float32) * near[:, None]
        spots = df_ptr + f_rows[:, None] + columns[None, :] * f_column
        inside = found[:, None] & (columns < d)[None, :]
        df = tl.load(spots, mask=inside, other=0.0).to(tl.float32) + gap
        tl.store(spots, df.to(df_ptr.dtype.element_ty), mask=inside)
        tl.atomic_add(
            dw_ptr + place[:, None] * d + columns[None, :], -gap / f_scale[:, None], mask=inside, sem="relaxed"
        )  # fmt: skip


@triton.jit
def _selection_gradient(
    x_ptr, q_ptr, weights_ptr, mask_ptr, x, q, p, keep, image, mu, n,
    R: tl.constexpr, N: tl.constexpr, ALL: tl.constexpr, MASKED: tl.constexpr, SCALARS: tl.constexpr,
):  # fmt: skip
    """Return dL/dl of a tile's scores, and dL/dmu of the image of each row."""
    mean_pq = tl.zeros([R], tl.float32)
    if N <= R:
        shape: tl.constexpr = [R // N, N]
        the_mu = tl.reshape(tl.zeros([R], tl.float32) + mu, shape)
        mean_q = _mean_over_u(tl.reshape(x, shape), tl.reshape(q, shape), tl.reshape(keep, shape), the_mu)
        mean_q = tl.reshape(tl.broadcast_to(mean_q[:, None], shape), [R])
        if SCALARS:
            mean_pq = tl.sum(tl.reshape(p * q, shape), 1)
            mean_pq = tl.reshape(tl.broadcast_to(mean_pq[:, None], shape), [R])
    else:
        every = tl.arange(0, ALL)
        counts = every < n
        if MASKED:
            counts = counts & (tl.load(mask_ptr + image * n + every, mask=counts, other=0) != 0)
        all_q = tl.load(q_ptr + image * n + every, mask=counts, other=0.0)
        all_x = tl.load(x_ptr + image * n + every, mask=counts, other=0.0)
        mean_q = tl.sum(_mean_over_u(all_x[None, :], all_q[None, :], counts[None, :], mu), 0)
        if SCALARS:
            mean_pq += tl.sum(all_q * tl.load(weights_ptr + image * n + every, mask=counts, other=0.0), 0)
    dl = p * tl.where(mu < 1.0, tl.sigmoid(-x), 0.0) * (q - mean_q)
    return dl, (mean_q - mean_pq) / mu


@triton.jit
def _pull(
    a, c, dl, p, h, dz_ptr, image, f_scale, f2, w2, keep, valid, eps, m,
    M: tl.constexpr, PARTS: tl.constexpr, HAS_DZ: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Return P_ij / max(1, |f_j|) (R, M), the part of df along f (R,), and dL/d(-eps c)."""
    inner = dl[:, None]
    if HAS_DZ:
        dz = load_image(dz_ptr, image, tl.arange(0, M), keep, m, SHARED)
        inner = inner + p[:, None] * (dz - h[:, None])
    da = a * inner
    if PARTS == 1:
        # Rounded once and used so throughout, and not above what rounded differences can bear.
        pull = (-eps * da / tl.maximum(c, 4e-3) * f_scale[:, None]).to(tl.bfloat16).to(tl.float32)
    else:
        pull = tl.where(c > 1e-29, -eps * da / c * f_scale[:, None], 0.0)
    pull = tl.where(valid[None, :], pull, 0.0)
    # Clipping lets only the part through that is across f: minus f (f . df) / |f|^2; f . df needs no product.
    along_f = tl.sum(pull * tl.where(valid[None, :], (c * c + f2[:, None]) - w2[None, :], 0.0), 1) * 0.5
    return pull, tl.where(f_scale < 1.0, along_f, 0.0), da


@triton.jit(do_not_specialize=["first", "images"])
def gradient_kernel(
    f_ptr, w_ptr, parts_ptr, w2_ptr, mask_ptr, mu_ptr, eps_ptr, weights_ptr, x_ptr, q_ptr, dg_ptr, dp_ptr, dz_ptr,
    df_ptr, dw_ptr, sums_ptr, pull_ptr, dmu_ptr, deps_ptr,
    mu_value, eps_value, mu_stride, f_image, f_row, f_column, first, images, n, d, m,
    R: tl.constexpr, N: tl.constexpr, ALL: tl.constexpr, M: tl.constexpr, K: tl.constexpr,
    PARTS: tl.constexpr, MASKED: tl.constexpr, MU_TENSOR: tl.constexpr, EPS_TENSOR: tl.constexpr,
    HAS_DG: tl.constexpr, HAS_DP: tl.constexpr, HAS_DZ: tl.constexpr, SCALARS: tl.constexpr,
    SPREAD: tl.constexpr,
):  # fmt: skip
    """Write the gradient of a tile's features, and add to those of clipped prototypes, mu and eps.

    Of the prototypes' gradient, sum_j P_ij goes to `sums`. Of -sum_j P_ij f_j either each tile adds its own to `dw`,
    or, with SPREAD, P is written to `pull`, in parts, for another kernel to multiply.
    """
    turn = tl.program_id(0)
    tile = first + turn
    places = tl.arange(0, M)
    valid = places < m
    image, feature, exists, keep = rows_of(tile, mask_ptr, images, n, R, N, MASKED)
    mu = number(mu_ptr, mu_stride, mu_value, tl.minimum(image, images - 1), MU_TENSOR)
    eps = number(eps_ptr, 0, eps_value, 0, EPS_TENSOR)
    at = image * n + feature
    f_rows = image.to(tl.int64) * f_image + feature * f_row
    p = tl.load(weights_ptr + at, mask=keep, other=0.0)
    x = tl.load(x_ptr + at, mask=keep, other=0.0)
    c, base, place, f_scale, f2, w2, q = distances(
        f_ptr, w_ptr, parts_ptr, w2_ptr, dg_ptr, image, f_rows, f_column, keep, valid, eps, m, d,
        R, M, K, PARTS, HAS_DG, N < R,
    )  # fmt: skip
    e, total, _ = affinity(c, valid, eps)
    a = e / total[:, None]
    c += base[:, None]
    q, h = _own_gradient(a, q, dp_ptr, dz_ptr, at, image, keep, m, M, HAS_DP, HAS_DZ, N < R)
    dl, dmu = _selection_gradient(
        x_ptr, q_ptr, weights_ptr, mask_ptr, x, q, p, keep, image, mu, n, R, N, ALL, MASKED, SCALARS
    )  # fmt: skip
    pull, along_f, da = _pull(
        a, c, dl, p, h, dz_ptr, image, f_scale, f2, w2, keep, valid, eps, m, M, PARTS, HAS_DZ, N < R
    )  # fmt: skip
    if SCALARS:
        tl.atomic_add(deps_ptr, -tl.sum(tl.sum(tl.where(a > 0, c * da, 0.0), 1), 0), sem="relaxed")
        tl.atomic_add(dmu_ptr + (image + 0 * feature) * mu_stride, dmu, mask=exists & (feature == 0), sem="relaxed")
    if PARTS > 1:
        # Pairs so near that their terms of sum P (f - w) would cancel are left out here and added below.
        chosen = (places[None, :] == place[:, None]) & (c < NEAR)
        near = tl.sum(tl.where(chosen, pull, 0.0), 1)
        pull = tl.where(chosen, 0.0, pull)
    from_rows = (tl.sum(pull, 1) - along_f) * f_scale
    tl.atomic_add(sums_ptr + places, tl.sum(pull / f_scale[:, None], 0), mask=valid, sem="relaxed")
    pull_first, pull_second, pull_third = split(pull)
    if SPREAD:
        spots = (turn * R + tl.arange(0, R))[:, None].to(tl.int64) * (M * PARTS) + places[None, :]
        tl.store(pull_ptr + spots, pull_first)
        if PARTS >= 2:
            tl.store(pull_ptr + spots + M, pull_second)
        if PARTS == 3:
            tl.store(pull_ptr + spots + 2 * M, pull_third)
    for start in range(0, d, K):
        columns = start + tl.arange(0, K)
        f = load(f_ptr, f_rows, columns, f_column, keep, d).to(tl.float32)
        if not SPREAD:
            f_first, f_second, f_third = split(f)
            pushed = multiply(
                tl.trans(pull_first), tl.trans(pull_second), tl.trans(pull_third), f_first, f_second, f_third,
                tl.zeros([M, K], tl.float32), PARTS,
            )  # fmt: skip
            tl.atomic_add(
                dw_ptr + places[:, None] * d + columns[None, :], -pushed,
                mask=valid[:, None] & (columns < d)[None, :], sem="relaxed",
            )  # fmt: skip
        w_first, w_second, w_third = load_parts(parts_ptr, places * d, columns, valid, m, d, PARTS)
        moved = multiply(
            pull_first, pull_second, pull_third, w_first, w_second, w_third, tl.zeros([R, K], tl.float32), PARTS
        )  # fmt: skip
        _store_gradient(
            from_rows[:, None] * f - moved, p, dg_ptr, image, df_ptr, f_rows, f_column, columns,
            exists, keep, d, HAS_DG, N < R,
        )  # fmt: skip
    if PARTS > 1:  # noqa: SIM102 (the outer one is decided at compile time)
        if tl.max(place, 0) >= 0:
            tl.debug_barrier()  # what other threads of this program wrote to df is read back
            found = keep & (near != 0)
            _add_near(f_ptr, w_ptr, df_ptr, dw_ptr, f_rows, f_column, place, near, found, f_scale, d, R)


@triton.jit
def _store_gradient(
    df, p, dg_ptr, image, df_ptr, f_rows, f_column, columns, exists, keep, d,
    HAS_DG: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Add p dL/dg to a tile's gradient and write it; zero for features that do not count."""
    if HAS_DG:
        df += p[:, None] * load_image(dg_ptr, image, columns, keep, d, SHARED)
    df = tl.where(keep[:, None], df, 0.0)
    tl.store(
        df_ptr + f_rows[:, None] + columns[None, :] * f_column, df.to(df_ptr.dtype.element_ty),
        mask=exists[:, None] & (columns < d)[None, :],
    )  # fmt: skip
