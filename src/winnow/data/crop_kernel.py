# mypy: ignore-errors
"""The Triton kernel of `crop_fused`: bilinear crops of ragged images, one program per block of output pixels."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _lerp(start, end, weight):
    # As torch.lerp: from the nearer end, so that a weight of 1 gives the end exactly.
    return tl.where(weight < 0.5, start + weight * (end - start), end - (end - start) * (1.0 - weight))


@triton.jit
def crop_kernel(out, pixels, table, numbers, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Write crops (B, HEIGHT, WIDTH, 3) of interleaved RGB bytes; `table` and `numbers` are one buffer seen twice."""
    image = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < HEIGHT * WIDTH
    start = tl.load(table + 6 * image)
    height = tl.load(table + 6 * image + 1).to(tl.int32)  # within an image 32 bits do, and are faster
    width = tl.load(table + 6 * image + 2).to(tl.int32)
    flip = tl.load(table + 6 * image + 3)
    top = tl.load(numbers + 12 * image + 8)
    left = tl.load(numbers + 12 * image + 9)
    scale_y = tl.load(numbers + 12 * image + 10)
    scale_x = tl.load(numbers + 12 * image + 11)

    row, column = place // WIDTH, place % WIDTH
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
    for colour in tl.static_range(3):
        source = pixels + (3 * start + colour)
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
        tl.store(target + (3 * place + colour), value, mask=inside)
