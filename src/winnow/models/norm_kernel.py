# mypy: ignore-errors
"""Triton kernels of `norm_relu`: a frozen norm, a shortcut and ReLU in one pass over (rows, channels)."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _affine(weight, bias, mean, var, eps, columns, inside):
    """Return scale and shift of a norm with fixed statistics: y = scale x + shift."""
    scale = tl.load(weight + columns, mask=inside, other=0.0) / tl.sqrt_rn(
        tl.load(var + columns, mask=inside, other=1.0) + eps
    )
    return scale, tl.load(bias + columns, mask=inside, other=0.0) - tl.load(
        mean + columns, mask=inside, other=0.0
    ) * scale


@triton.jit
def forward_kernel(
    x, shortcut, out, weight, bias, mean, var, eps, weight2, bias2, mean2, var2, eps2, count, width,
    ADDED: tl.constexpr, NORMED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out = relu(norm(x) + shortcut), the shortcut with a norm of its own or none, or no shortcut."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    places = rows[:, None].to(tl.int64) * width + columns[None, :]
    inside = (rows < count)[:, None] & (columns < width)[None, :]
    scale, shift = _affine(weight, bias, mean, var, eps, columns, columns < width)
    y = tl.load(x + places, mask=inside, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
    if ADDED:
        side = tl.load(shortcut + places, mask=inside, other=0.0).to(tl.float32)
        if NORMED:
            scale2, shift2 = _affine(weight2, bias2, mean2, var2, eps2, columns, columns < width)
            side = side * scale2[None, :] + shift2[None, :]
        y += side
    # Written so that NaN stays NaN, as torch's ReLU has it.
    tl.store(out + places, tl.where(y <= 0.0, 0.0, y).to(out.dtype.element_ty), mask=inside)


@triton.jit
def backward_kernel(
    grad, out, grad_x, grad_shortcut, weight, var, eps, weight2, var2, eps2, count, width,
    ADDED: tl.constexpr, NORMED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradients in x and in the shortcut; the norms are constants."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    places = rows[:, None].to(tl.int64) * width + columns[None, :]
    inside = (rows < count)[:, None] & (columns < width)[None, :]
    kept = tl.load(out + places, mask=inside, other=0.0).to(tl.float32)
    g = tl.where(kept <= 0.0, 0.0, tl.load(grad + places, mask=inside, other=0.0).to(tl.float32))
    scale = tl.load(weight + columns, mask=columns < width, other=0.0) / tl.sqrt_rn(
        tl.load(var + columns, mask=columns < width, other=1.0) + eps
    )
    tl.store(grad_x + places, (g * scale[None, :]).to(grad_x.dtype.element_ty), mask=inside)
    if ADDED:
        if NORMED:
            scale2 = tl.load(weight2 + columns, mask=columns < width, other=0.0) / tl.sqrt_rn(
                tl.load(var2 + columns, mask=columns < width, other=1.0) + eps2
            )
            g = g * scale2[None, :]
        tl.store(grad_shortcut + places, g.to(grad_shortcut.dtype.element_ty), mask=inside)
