# mypy: ignore-errors
"""Triton kernels of `ops`: crops, frozen norm with shortcut and ReLU, SPD inverse."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _lerp(start, end, weight):
    # Like torch.lerp, interpolate from the nearer end; a weight of 1 then gives the end exactly.
    return tl.where(weight < 0.5, start + weight * (end - start), end - (end - start) * (1.0 - weight))


@triton.jit
def crop_kernel(out, pixels, table, numbers, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Write crops (B, HEIGHT, WIDTH, 3) of interleaved RGB bytes.

    `table` and `numbers` are two views of one buffer.
    """
    image = tl.program_id(0).to(tl.int64)
    position = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = position < HEIGHT * WIDTH
    start = tl.load(table + 6 * image)
    height = tl.load(table + 6 * image + 1).to(tl.int32)  # 32 bits suffice within an image and are faster
    width = tl.load(table + 6 * image + 2).to(tl.int32)
    flip = tl.load(table + 6 * image + 3)
    top = tl.load(numbers + 12 * image + 8)
    left = tl.load(numbers + 12 * image + 9)
    scale_y = tl.load(numbers + 12 * image + 10)
    scale_x = tl.load(numbers + 12 * image + 11)

    row, column = position // WIDTH, position % WIDTH
    column = tl.where(flip != 0, WIDTH - 1 - column, column)
    y = (row.to(tl.float32) + 0.5) * scale_y - 0.5 + top
    x = (column.to(tl.float32) + 0.5) * scale_x - 0.5 + left
    y0, x0 = tl.floor(y), tl.floor(x)
    down, right = y - y0, x - x0
    above = tl.minimum(tl.maximum(y0.to(tl.int32), 0), height - 1) * width
    below = tl.minimum(tl.maximum(y0.to(tl.int32) + 1, 0), height - 1) * width
    before = tl.minimum(tl.maximum(x0.to(tl.int32), 0), width - 1)
    after = tl.minimum(tl.maximum(x0.to(tl.int32) + 1, 0), width - 1)
    target = out + 3 * image * (HEIGHT * WIDTH)
    for color in tl.static_range(3):
        source = pixels + (3 * start + color)
        upper = _lerp(
            tl.load(source + 3 * (above + before), mask=inside, other=0).to(tl.float32),
            tl.load(source + 3 * (above + after), mask=inside, other=0).to(tl.float32),
            right,
        )
        lower = _lerp(
            tl.load(source + 3 * (below + before), mask=inside, other=0).to(tl.float32),
            tl.load(source + 3 * (below + after), mask=inside, other=0).to(tl.float32),
            right,
        )
        value = tl.div_rn(_lerp(upper, lower, down), 255.0)
        tl.store(target + (3 * position + color), value, mask=inside)


@triton.jit
def _affine(weight, bias, mean, var, eps, columns, inside):
    """Return scale and shift of a norm with frozen statistics: y = scale x + shift."""
    scale = tl.load(weight + columns, mask=inside, other=0.0) / tl.sqrt_rn(
        tl.load(var + columns, mask=inside, other=1.0) + eps
    )
    return scale, tl.load(bias + columns, mask=inside, other=0.0) - tl.load(
        mean + columns, mask=inside, other=0.0
    ) * scale


@triton.jit
def norm_forward_kernel(
    x, shortcut, out, weight, bias, mean, var, eps, weight2, bias2, mean2, var2, eps2, count, channels,
    ADDED: tl.constexpr, NORMED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write relu(norm(x) + shortcut); the shortcut and its norm are optional."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    offsets = rows[:, None].to(tl.int64) * channels + columns[None, :]
    inside = (rows < count)[:, None] & (columns < channels)[None, :]
    scale, shift = _affine(weight, bias, mean, var, eps, columns, columns < channels)
    y = tl.load(x + offsets, mask=inside, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
    if ADDED:
        side = tl.load(shortcut + offsets, mask=inside, other=0.0).to(tl.float32)
        if NORMED:
            scale2, shift2 = _affine(weight2, bias2, mean2, var2, eps2, columns, columns < channels)
            side = side * scale2[None, :] + shift2[None, :]
        y += side
    # This form keeps NaN, like the ReLU of torch.
    tl.store(out + offsets, tl.where(y <= 0.0, 0.0, y).to(out.dtype.element_ty), mask=inside)


@triton.jit
def norm_backward_kernel(
    grad, out, grad_x, grad_shortcut, weight, var, eps, weight2, var2, eps2, count, channels,
    ADDED: tl.constexpr, NORMED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write the gradients of x and of the shortcut; the norms are constants."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    offsets = rows[:, None].to(tl.int64) * channels + columns[None, :]
    inside = (rows < count)[:, None] & (columns < channels)[None, :]
    y = tl.load(out + offsets, mask=inside, other=0.0).to(tl.float32)
    g = tl.where(y <= 0.0, 0.0, tl.load(grad + offsets, mask=inside, other=0.0).to(tl.float32))
    scale = tl.load(weight + columns, mask=columns < channels, other=0.0) / tl.sqrt_rn(
        tl.load(var + columns, mask=columns < channels, other=1.0) + eps
    )
    tl.store(grad_x + offsets, (g * scale[None, :]).to(grad_x.dtype.element_ty), mask=inside)
    if ADDED:
        if NORMED:
            scale2 = tl.load(weight2 + columns, mask=columns < channels, other=0.0) / tl.sqrt_rn(
                tl.load(var2 + columns, mask=columns < channels, other=1.0) + eps2
            )
            g = g * scale2[None, :]
        tl.store(grad_shortcut + offsets, g.to(grad_shortcut.dtype.element_ty), mask=inside)


# Gauss-Jordan elimination in registers, one program per matrix.
@triton.jit
def inverse_kernel(matrices, inverses, n, N: tl.constexpr):
    """Invert symmetric positive definite (n, n) matrices without pivoting.

    They are padded to N by ones on the diagonal.
    """
    start = tl.program_id(0) * n * n
    rows, columns = tl.arange(0, N), tl.arange(0, N)
    offsets = start + rows[:, None] * n + columns[None, :]
    inside = (rows < n)[:, None] & (columns < n)[None, :]
    matrix = tl.load(matrices + offsets, mask=inside, other=0.0)
    matrix = tl.where(rows[:, None] == tl.where(columns < n, N, columns)[None, :], 1.0, matrix)
    for k in range(n):
        in_row, in_column = (rows == k)[:, None], (columns == k)[None, :]
        row = tl.sum(tl.where(in_row, matrix, 0.0), 0)
        column = tl.sum(tl.where(in_column, matrix, 0.0), 1)
        pivot = tl.sum(tl.where(columns == k, row, 0.0), 0)
        row = tl.where(columns == k, 1.0, row) / pivot
        matrix = tl.where(in_row, row[None, :], tl.where(in_column, 0.0, matrix) - column[:, None] * row[None, :])
    tl.store(inverses + offsets, matrix, mask=inside)
