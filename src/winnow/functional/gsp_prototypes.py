# mypy: ignore-errors
"""Kernels of the fused GSP that work on prototypes: clipped and split before, their gradient put together after."""

from __future__ import annotations

import triton
import triton.language as tl

from winnow.functional.gsp_tiles import PART, load, multiply, rows_of, split


@triton.jit
def prototypes_kernel(w_ptr, parts_ptr, w2_ptr, m, d, D: tl.constexpr, PARTS: tl.constexpr):
    """Clip a prototype, split it into parts, and square what the parts add up to."""
    row, columns = tl.program_id(0), tl.arange(0, D)
    inside = columns < d
    w = tl.load(w_ptr + row * d + columns, mask=inside, other=0.0).to(tl.float32)
    # In float64: where features lie near prototypes, 1 - |w|^2 counts.
    square = tl.sum(w.to(tl.float64) * w.to(tl.float64), 0)
    w = (w / tl.sqrt(tl.maximum(square, 1.0))).to(tl.float32)
    square = tl.minimum(square, 1.0).to(tl.float32)
    w0, w1, w2 = split(w)
    tl.store(parts_ptr + row * d + columns, w0, mask=inside)
    if PARTS == 1:
        w = w0.to(tl.float32)
        square = tl.sum(w * w, 0)
    if PARTS >= 2:
        tl.store(parts_ptr + (m + row) * d + columns, w1, mask=inside)
    if PARTS == 3:
        tl.store(parts_ptr + (2 * m + row) * d + columns, w2, mask=inside)
    tl.store(w2_ptr + row, square)


@triton.jit(do_not_specialize=["first", "tiles", "images"])
def multiply_kernel(
    f_ptr, mask_ptr, pull_ptr, dw_ptr, f_image, f_row, f_column, first, tiles, images, n, d, m,
    R: tl.constexpr, N: tl.constexpr, M: tl.constexpr, WIDE: tl.constexpr, PARTS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add -sum_j P_ij f_j of some tiles to `dw`, for WIDE columns."""
    columns, places = tl.program_id(0) * WIDE + tl.arange(0, WIDE), tl.arange(0, M)
    held = tl.zeros([M, WIDE], tl.float32)
    for turn in range(tl.program_id(1), tiles, tl.num_programs(1)):
        image, feature, _, keep = rows_of(first + turn, mask_ptr, images, n, R, N, MASKED)
        f_rows = image.to(tl.int64) * f_image + feature * f_row
        f_first, f_second, f_third = split(load(f_ptr, f_rows, columns, f_column, keep, d).to(tl.float32))
        spots = (turn * R + tl.arange(0, R))[None, :].to(tl.int64) * (M * PARTS) + places[:, None]
        pull_first = tl.load(pull_ptr + spots).to(PART)
        pull_second, pull_third = pull_first, pull_first
        if PARTS >= 2:
            pull_second = tl.load(pull_ptr + spots + M).to(PART)
        if PARTS == 3:
            pull_third = tl.load(pull_ptr + spots + 2 * M).to(PART)
        held = multiply(pull_first, pull_second, pull_third, f_first, f_second, f_third, held, PARTS)
    tl.atomic_add(
        dw_ptr + places[:, None] * d + columns[None, :], -held,
        mask=(places < m)[:, None] & (columns < d)[None, :], sem="relaxed",
    )  # fmt: skip


@triton.jit
def unclip_kernel(w_ptr, parts_ptr, dw_ptr, sums_ptr, m, d, D: tl.constexpr, PARTS: tl.constexpr):
    """Turn the gradient of a clipped prototype into that of the prototype, in place: (dw - w (w . dw)) / |w|."""
    row, columns = tl.program_id(0), tl.arange(0, D)
    inside = columns < d
    w = tl.load(w_ptr + row * d + columns, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.maximum(tl.sum(w * w, 0), 1.0))
    w = w * scale
    if PARTS == 1:
        w = tl.load(parts_ptr + row * d + columns, mask=inside, other=0.0).to(tl.float32)
    dw = tl.load(dw_ptr + row * d + columns, mask=inside, other=0.0) + tl.load(sums_ptr + row) * w
    along = tl.where(scale < 1.0, tl.sum(w * dw, 0), 0.0)
    tl.store(dw_ptr + row * d + columns, (dw - w * along) * scale, mask=inside)
