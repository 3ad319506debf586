# mypy: ignore-errors
r"""Triton building blocks of the fused GSP on tiles of R features.

Forward, with $\bar u = u / \max(1, \lVert u \rVert_2)$:

$$c_{ij} = \lVert \bar w_i - \bar f_j \rVert_2, \quad l_j = \log\textstyle\sum_i e^{-\varepsilon c_{ij}}, \quad
  x_j = \tau + l_j, \quad p_j = \tfrac{\sigma(x_j)}{n\mu}, \quad g = \sum_j p_j f_j, \quad z_i = \sum_j p_j a_{ij}$$

Backward recomputes $c$ and $a = \operatorname{softmax}_i(-\varepsilon c)$ instead of storing (B, n, m) tensors.
With $h_j = \sum_i a_{ij}\, \partial L/\partial z_i$ and
$q_j = \partial L/\partial p_j + f_j^\top \partial L/\partial g + h_j$,

$$\frac{\partial L}{\partial l_j} = p_j (1 - s_j)\Big(q_j - \sum_k u_k q_k\Big), \qquad
  \frac{\partial L}{\partial c_{ij}} = -\varepsilon\, a_{ij} \Big(\frac{\partial L}{\partial l_j}
  + p_j \big(\tfrac{\partial L}{\partial z_i} - h_j\big)\Big) =: c_{ij} P_{ij},$$

$$\frac{\partial L}{\partial \bar f_j} = \sum_i P_{ij} (\bar f_j - \bar w_i), \qquad
  \frac{\partial L}{\partial \bar w_i} = \sum_{b, j} P_{ij} (\bar w_i - \bar f_j).$$

An image of at most R features is one tile. For a larger image of several tiles, a first kernel computes the numbers
that all tiles need (scores forward, $q$ backward). A second kernel does the rest.

Matrix products run on the tensor cores over numbers split into PARTS bfloat16 parts: 1 for bfloat16 features, 2
(16 bits) or 3 (24 bits) for float32. Small distances from a product lose digits. Where that would affect a score
(features near a prototype, or a large $\varepsilon$), the two nearest pairs of a feature are measured again in float64.
The first kernel measures them and stores them for later kernels.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

# Triton's interpreter multiplies the bit patterns of bfloat16, so its parts are stored as float32.
PART: tl.constexpr = tl.constexpr(tl.float32 if os.environ.get("TRITON_INTERPRET", "0") == "1" else tl.bfloat16)

# Below this distance, gradient directions (f - w) / c are also computed from differences.
NEAR: tl.constexpr = tl.constexpr(0.1)
# Largest accepted error of a score.
SHOWN: tl.constexpr = tl.constexpr(1e-5)
# Near pairs are few. Small steps limit the registers that their float64 values need.
STEP: tl.constexpr = tl.constexpr(16)
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def load(pointer, rows, columns, column_stride, keep, width):
    """Load the tile at row offsets `rows`.

    It is zero where `keep` is false or a column is beyond the width.
    """
    offsets = rows[:, None] + columns[None, :] * column_stride
    return tl.load(pointer + offsets, mask=keep[:, None] & (columns < width)[None, :], other=0.0)


@triton.jit
def split(values):
    """Split float32 numbers into three bfloat16 parts with the same sum."""
    first = values.to(tl.bfloat16).to(PART)
    rest = values - first.to(tl.float32)
    second = rest.to(tl.bfloat16).to(PART)
    return first, second, (rest - second.to(tl.float32)).to(tl.bfloat16).to(PART)


@triton.jit
def multiply(a0, a1, a2, b0, b1, b2, out, PARTS: tl.constexpr):
    """Add the product of two matrices in parts to `out`, smallest terms first.

    Terms below the last part are dropped.
    """
    if PARTS == 3:
        out = tl.dot(a0, b2, out, input_precision="ieee")
        out = tl.dot(a2, b0, out, input_precision="ieee")
        out = tl.dot(a1, b1, out, input_precision="ieee")
    if PARTS >= 2:
        out = tl.dot(a0, b1, out, input_precision="ieee")
        out = tl.dot(a1, b0, out, input_precision="ieee")
    return tl.dot(a0, b0, out, input_precision="ieee")


@triton.jit
def load_parts(parts_ptr, rows, columns, valid, m, d, PARTS: tl.constexpr):
    """Load the parts of clipped prototypes.

    Parts beyond PARTS repeat the first and are unused.
    """
    w0 = load(parts_ptr, rows, columns, 1, valid, d).to(PART)
    w1, w2 = w0, w0
    if PARTS >= 2:
        w1 = load(parts_ptr + m * d, rows, columns, 1, valid, d).to(PART)
    if PARTS == 3:
        w2 = load(parts_ptr + 2 * m * d, rows, columns, 1, valid, d).to(PART)
    return w0, w1, w2


@triton.jit
def distance(f2, w2, fw):
    """Compute the distance of clipped vectors in float64.

    The arguments are squared norms and products before clipping.
    """
    lengths = tl.sqrt(tl.maximum(f2, 1.0)) * tl.sqrt(tl.maximum(w2, 1.0))
    return tl.sqrt(tl.maximum(tl.minimum(f2, 1.0) + tl.minimum(w2, 1.0) - 2.0 * fw / lengths, 0.0))


@triton.jit
def measure_near(
    c, reach, f_ptr, w_ptr, long_w2_ptr, f_rows, f_column, d, R: tl.constexpr, M: tl.constexpr
):  # fmt: skip
    """Remeasure the two smallest distances of each feature in float64.

    Only distances below `reach` are measured. Returns `base` (R,), slightly below the smallest distance; for each of
    the two, its index (-1: not measured) and c - base; and |f|^2 in float64. The differences keep digits that a
    distance rounded to float32 loses. They matter for a large eps.
    """
    indices = tl.arange(0, M)
    least, first = tl.min(c, 1), tl.argmin(c, 1)
    base = tl.sqrt(tl.maximum(least * least - 4e-5, 0.0))  # below all distances, because squares have smaller errors
    others = tl.where(indices[None, :] == first[:, None], float("inf"), c)
    next_least, second = tl.min(others, 1), tl.argmin(others, 1)
    near, next_near = least < reach, next_least < reach
    f2 = tl.zeros([R], tl.float64)
    first_fw, second_fw = tl.zeros([R], tl.float64), tl.zeros([R], tl.float64)
    for start in range(0, d, STEP):
        columns = start + tl.arange(0, STEP)
        f = load(f_ptr, f_rows, columns, f_column, near, d).to(tl.float64)
        f2 += tl.sum(f * f, 1)
        first_fw += tl.sum(f * load(w_ptr, first * d, columns, 1, near, d).to(tl.float64), 1)
        second_fw += tl.sum(f * load(w_ptr, second * d, columns, 1, next_near, d).to(tl.float64), 1)
    first_c = distance(f2, tl.load(long_w2_ptr + first, mask=near, other=0.0), first_fw) - base
    second_c = distance(f2, tl.load(long_w2_ptr + second, mask=next_near, other=0.0), second_fw) - base
    first, second = tl.where(near, first, -1), tl.where(next_near, second, -1)
    return base, first, first_c.to(tl.float32), second, second_c.to(tl.float32), f2


@triton.jit
def from_products(
    dots, f2, w2, f_ptr, w_ptr, long_w2_ptr, near_ptr, long_f2_ptr, f_rows, f_column, at, exists, keep, valid, eps, d,
    R: tl.constexpr, M: tl.constexpr, PARTS: tl.constexpr, MEASURED: tl.constexpr,
):  # fmt: skip
    """Return distances from matrix products.

    The outputs are c - base (R, M), infinite for padding; base (R,); the index of a near prototype (R,) or -1; and
    1 / max(1, |f|) and min(1, |f|^2). Measurements of near pairs are stored for later kernels, which set MEASURED.
    """
    f_scale = 1.0 / tl.sqrt_rn(tl.maximum(f2, 1.0))
    f2 = tl.minimum(f2, 1.0)
    square = tl.maximum((f2[:, None] + w2[None, :]) - 2.0 * (dots * f_scale[:, None]), 1e-12)
    base = tl.zeros([R], tl.float32)
    first = tl.full([R], -1, tl.int32)
    if PARTS == 1:
        c = tl.where(valid[None, :], tl.sqrt(square), float("inf"))
    else:
        c = tl.where(valid[None, :], tl.sqrt_rn(square), float("inf"))
        second = tl.full([R], -1, tl.int32)
        first_c, second_c = tl.zeros([R], tl.float32), tl.zeros([R], tl.float32)
        if MEASURED:
            two = tl.load(near_ptr + at * 4, mask=keep, other=0.0).to(tl.int32)
            first, second = (two >> 8) - 1, (two & 255) - 1
            base = tl.load(near_ptr + at * 4 + 1, mask=keep, other=0.0)
            first_c = tl.load(near_ptr + at * 4 + 2, mask=keep, other=0.0)
            second_c = tl.load(near_ptr + at * 4 + 3, mask=keep, other=0.0)
        else:
            # The error of a score is eps / (2 c) times the error of a squared distance.
            slack: tl.constexpr = 6e-7 if PARTS == 2 else 2e-7
            reach = tl.maximum(eps * (slack / (2 * SHOWN)), NEAR)
            least = tl.min(tl.where(keep, tl.min(c, 1), float("inf")), 0)
            if least < reach:
                base, first, first_c, second, second_c, long_f2 = measure_near(
                    c, reach, f_ptr, w_ptr, long_w2_ptr, f_rows, f_column, d, R, M
                )  # fmt: skip
                tl.store(long_f2_ptr + at, long_f2, mask=exists)
            # Both indices in one float32, which is exact for at most 128 prototypes.
            tl.store(near_ptr + at * 4, ((first + 1) * 256 + second + 1).to(tl.float32), mask=exists)
            tl.store(near_ptr + at * 4 + 1, base, mask=exists)
            tl.store(near_ptr + at * 4 + 2, first_c, mask=exists)
            tl.store(near_ptr + at * 4 + 3, second_c, mask=exists)
        indices = tl.arange(0, M)[None, :]
        c = tl.where(indices == first[:, None], first_c[:, None], c - base[:, None])
        c = tl.where(indices == second[:, None], second_c[:, None], c)
    return c, base, first, f_scale, f2


@triton.jit
def distances(
    f_ptr, w_ptr, parts_ptr, w2_ptr, long_w2_ptr, near_ptr, long_f2_ptr, g_ptr, f_rows, f_column, at, exists, keep,
    valid, eps, m, d,
    R: tl.constexpr, M: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr, MEASURED: tl.constexpr,
    ALONG: tl.constexpr,
):  # fmt: skip
    """Return the outputs of `from_products`, |w|^2, and with ALONG also f . g.

    All are computed in one pass over the features.
    """
    w_rows = tl.arange(0, M) * d
    dots = tl.zeros([R, M], tl.float32)
    f2, along = tl.zeros([R], tl.float32), tl.zeros([R], tl.float32)
    for start in range(0, d, K):
        columns = start + tl.arange(0, K)
        f = load(f_ptr, f_rows, columns, f_column, keep, d).to(tl.float32)
        w0, w1, w2 = load_parts(parts_ptr, w_rows, columns, valid, m, d, PARTS)
        f0, f1, f_third = split(f)
        # Tensor cores truncate terms that are small relative to a running sum, so the long sum is done outside.
        part = multiply(f0, f1, f_third, tl.trans(w0), tl.trans(w1), tl.trans(w2), tl.zeros([R, M], tl.float32), PARTS)
        dots += part
        f2 += tl.sum(f * f, 1)
        if ALONG:
            g = tl.load(g_ptr + columns, mask=columns < d, other=0.0).to(tl.float32)
            along += tl.sum(f * g[None, :], 1)
    w2 = tl.load(w2_ptr + tl.arange(0, M), mask=valid, other=0.0)
    c, base, near, f_scale, f2 = from_products(
        dots, f2, w2, f_ptr, w_ptr, long_w2_ptr, near_ptr, long_f2_ptr, f_rows, f_column, at, exists, keep, valid,
        eps, d, R, M, PARTS, MEASURED,
    )  # fmt: skip
    return c, base, near, f_scale, f2, w2, along


@triton.jit
def affinity(c, valid, eps):
    """Return the unnormalized softmax (R, M), its sums (R,), and the smallest c (R,)."""
    closest = tl.min(c, 1)
    # Subtract before scaling: products with a large eps would have no digits left for the difference.
    e = tl.where(valid[None, :], tl.exp2((closest[:, None] - c) * (eps * LOG2E)), 0.0)
    return e, tl.sum(e, 1), closest


@triton.jit
def pair_sum(a0, b0, a1, b1):
    """Add two pairs elementwise, for two sums in one reduction."""
    return a0 + a1, b0 + b1


@triton.jit
def number(pointer, stride, value, image, IS_TENSOR: tl.constexpr):
    """Return mu or eps, given as a tensor or as a number."""
    if IS_TENSOR:
        return tl.load(pointer + image * stride).to(tl.float32)
    else:
        return value


@triton.jit
def rows_of(tile, mask_ptr, n, R: tl.constexpr, N: tl.constexpr, MASKED: tl.constexpr):
    """Return the image of a tile, its features, and two masks.

    The masks mark the features that exist and the features that count.
    """
    image, feature = (tile * R) // N, (tile * R) % N + tl.arange(0, R)
    exists = feature < n
    keep = exists
    if MASKED:
        keep = keep & (tl.load(mask_ptr + image * n + feature, mask=exists, other=0) != 0)
    return image, feature, exists, keep


@triton.jit
def prototypes_kernel(w_ptr, parts_ptr, w2_ptr, long_w2_ptr, m, d, D: tl.constexpr, PARTS: tl.constexpr):
    """Write the parts of a clipped prototype and their squared norm.

    The squared norm of the prototype before clipping is written in float64.
    """
    row, columns = tl.program_id(0), tl.arange(0, D)
    inside = columns < d
    w = tl.load(w_ptr + row * d + columns, mask=inside, other=0.0).to(tl.float32)
    # In float64, because 1 - |w|^2 needs its digits where features lie near prototypes.
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
    """Apply the gradient of clipping to the gradient of a prototype, in place.

    The result is (dw - w (w . dw)) / |w|.
    """
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
