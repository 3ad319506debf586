# mypy: ignore-errors
"""Kernels of the fused GSP that work on prototypes: clipped and split before, their gradient put together after."""

from __future__ import annotations

import triton
import triton.language as tl

from winnow.functional.gsp_tiles import split


@triton.jit
def prototypes_kernel(w_ptr, parts_ptr, w2_ptr, long_w2_ptr, m, d, D: tl.constexpr, PARTS: tl.constexpr):
    """Clip a prototype, split it into parts, and square what the parts add up to; also itself, in float64."""
    row, columns = tl.program_id(0), tl.arange(0, D)
    inside = columns < d
    w = tl.load(w_ptr + row * d + columns, mask=inside, other=0.0).to(tl.float32)
    # In float64: where features lie near prototypes, 1 - |w|^2 counts.
    square = tl.sum(w.to(tl.float64) * w.to(tl.float64), 0)
    tl.store(long_w2_ptr + row, square)
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
