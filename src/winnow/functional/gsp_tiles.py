# mypy: ignore-errors
r"""Generalized Sum Pooling in Triton: tiles of R features, and as few kernels as the sizes allow.

Forward, with $\bar u = u / \max(1, \lVert u \rVert_2)$:

$$c_{ij} = \lVert \bar w_i - \bar f_j \rVert_2, \quad l_j = \log\textstyle\sum_i e^{-\varepsilon c_{ij}}, \quad
  x_j = \tau + l_j, \quad p_j = \tfrac{\sigma(x_j)}{n\mu}, \quad g = \sum_j p_j f_j, \quad z_i = \sum_j p_j a_{ij}$$

Backward computes $c$ and $a = \operatorname{softmax}_i(-\varepsilon c)$ again instead of keeping (B, n, m) tensors.
With $h_j = \sum_i a_{ij}\, \partial L/\partial z_i$ and
$q_j = \partial L/\partial p_j + f_j^\top \partial L/\partial g + h_j$,

$$\frac{\partial L}{\partial l_j} = p_j (1 - s_j)\Big(q_j - \sum_k u_k q_k\Big), \qquad
  \frac{\partial L}{\partial c_{ij}} = -\varepsilon\, a_{ij} \Big(\frac{\partial L}{\partial l_j}
  + p_j \big(\tfrac{\partial L}{\partial z_i} - h_j\big)\Big) =: c_{ij} P_{ij},$$

$$\frac{\partial L}{\partial \bar f_j} = \sum_i P_{ij} (\bar f_j - \bar w_i), \qquad
  \frac{\partial L}{\partial \bar w_i} = \sum_{b, j} P_{ij} (\bar w_i - \bar f_j).$$

An image of at most R features is one tile; a larger one is several: a first kernel finds what all of them must know
of each other (scores forward, $q$ backward), a second does the rest.

Matrix products run on the tensor cores over numbers split into PARTS bfloat16 parts: 1 for bfloat16 features, 2
(16 bits) or 3 (24 bits) for float32. Squared distances from a product lose the digits of a small one; where that would
show (features near a prototype, or a large $\varepsilon$) the two nearest pairs of a feature are measured again in
float64.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

# Triton's interpreter multiplies the bits of bfloat16 instead of its numbers; there the parts travel as float32.
PART: tl.constexpr = tl.constexpr(tl.float32 if os.environ.get("TRITON_INTERPRET", "0") == "1" else tl.bfloat16)

# Below this distance the directions (f - w) / c of the gradient are taken from differences too.
NEAR: tl.constexpr = tl.constexpr(0.1)
# The largest error of a score that is let pass.
SHOWN: tl.constexpr = tl.constexpr(3e-6)
# Near pairs are few: small steps keep their float64 out of the registers.
STEP: tl.constexpr = tl.constexpr(16)
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def load(pointer, rows, columns, column_stride, keep, width):
    """Load the tile at row offsets `rows`; zero where a row is not kept or a column is beyond the width."""
    places = rows[:, None] + columns[None, :] * column_stride
    return tl.load(pointer + places, mask=keep[:, None] & (columns < width)[None, :], other=0.0)


@triton.jit
def split(values):
    """Split float32 numbers into three bfloat16 parts that add up to them."""
    first = values.to(tl.bfloat16).to(PART)
    rest = values - first.to(tl.float32)
    second = rest.to(tl.bfloat16).to(PART)
    return first, second, (rest - second.to(tl.float32)).to(tl.bfloat16).to(PART)


@triton.jit
def multiply(a0, a1, a2, b0, b1, b2, out, PARTS: tl.constexpr):
    """Add the product of two matrices in parts to `out`, leaving out what is below the last part; small terms first."""
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
    """Load the parts of clipped prototypes; those beyond PARTS are the first again, and unused."""
    w0 = load(parts_ptr, rows, columns, 1, valid, d).to(PART)
    w1, w2 = w0, w0
    if PARTS >= 2:
        w1 = load(parts_ptr + m * d, rows, columns, 1, valid, d).to(PART)
    if PARTS == 3:
        w2 = load(parts_ptr + 2 * m * d, rows, columns, 1, valid, d).to(PART)
    return w0, w1, w2


@triton.jit
def wide_products(f_ptr, w_ptr, f_rows, f_column, place, found, d, R: tl.constexpr):
    """Return |f_j|^2, |w_k|^2 and f_j . w_k with k = place[j], in float64; these have the digits of a difference."""
    f2, w2, fw = tl.zeros([R], tl.float64), tl.zeros([R], tl.float64), tl.zeros([R], tl.float64)
    for start in range(0, d, STEP):
        columns = start + tl.arange(0, STEP)
        f = load(f_ptr, f_rows, columns, f_column, found, d).to(tl.float64)
        w = load(w_ptr, place * d, columns, 1, found, d).to(tl.float64)
        f2 += tl.sum(f * f, 1)
        w2 += tl.sum(w * w, 1)
        fw += tl.sum(f * w, 1)
    return f2, w2, fw


@triton.jit
def measure(f_ptr, w_ptr, f_rows, f_column, place, found, base, d, R: tl.constexpr):
    """Return the distance of each feature to the prototype at `place`, less `base`, by way of float64."""
    f2, w2, fw = wide_products(f_ptr, w_ptr, f_rows, f_column, place, found, d, R)
    f_length, w_length = tl.sqrt(tl.maximum(f2, 1.0)), tl.sqrt(tl.maximum(w2, 1.0))
    square = tl.minimum(f2, 1.0) + tl.minimum(w2, 1.0) - 2.0 * fw / (f_length * w_length)
    return (tl.sqrt(tl.maximum(square, 0.0)) - base).to(tl.float32)


@triton.jit
def measure_near(c, reach, f_ptr, w_ptr, f_rows, f_column, d, R: tl.constexpr, M: tl.constexpr):
    """Measure the two smallest distances of each feature again if they are below `reach`.

    Returns `base` (R,), just below the smallest, and for each of the two its place (-1: not measured) and c - base.
    Those differences have digits that a distance rounded to float32 has not, and a large eps shows them.
    """
    places = tl.arange(0, M)
    least, first = tl.min(c, 1), tl.argmin(c, 1)
    base = tl.sqrt(tl.maximum(least * least - 4e-5, 0.0))  # below all, since squares are wrong by less
    others = tl.where(places[None, :] == first[:, None], float("inf"), c)
    next_least, second = tl.min(others, 1), tl.argmin(others, 1)
    near, next_near = least < reach, next_least < reach
    first_c = measure(f_ptr, w_ptr, f_rows, f_column, first, near, base, d, R)
    second_c = measure(f_ptr, w_ptr, f_rows, f_column, second, next_near, base, d, R)
    return base, tl.where(near, first, -1), first_c, tl.where(next_near, second, -1), second_c


@triton.jit
def from_products(
    dots, f2, w2, f_ptr, w_ptr, f_rows, f_column, keep, valid, eps, d,
    R: tl.constexpr, M: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Return c - base (R, M), infinite for padding, base (R,), the place of a near prototype (R,) or -1, and of f
    1 / max(1, |f|) and min(1, |f|^2).
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
        # A score shows eps / (2 c) times the error of a squared distance.
        slack: tl.constexpr = 6e-7 if PARTS == 2 else 2e-7
        reach = tl.maximum(eps * (slack / (2 * SHOWN)), NEAR)
        least = tl.min(tl.where(keep, tl.min(c, 1), float("inf")), 0)
        second = tl.full([R], -1, tl.int32)
        first_c, second_c = tl.zeros([R], tl.float32), tl.zeros([R], tl.float32)
        if least < reach:
            base, first, first_c, second, second_c = measure_near(
                c, reach, f_ptr, w_ptr, f_rows, f_column, d, R, M
            )  # fmt: skip
        places = tl.arange(0, M)[None, :]
        c = tl.where(places == first[:, None], first_c[:, None], c - base[:, None])
        c = tl.where(places == second[:, None], second_c[:, None], c)
    return c, base, first, f_scale, f2


@triton.jit
def distances(
    f_ptr, w_ptr, parts_ptr, w2_ptr, g_ptr, f_rows, f_column, keep, valid, eps, m, d,
    R: tl.constexpr, M: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr, ALONG: tl.constexpr,
):  # fmt: skip
    """Return what `from_products` does, |w|^2 and, if asked, f . g, in one pass over the features."""
    w_rows = tl.arange(0, M) * d
    dots = tl.zeros([R, M], tl.float32)
    f2, along = tl.zeros([R], tl.float32), tl.zeros([R], tl.float32)
    for start in range(0, d, K):
        columns = start + tl.arange(0, K)
        f = load(f_ptr, f_rows, columns, f_column, keep, d).to(tl.float32)
        w0, w1, w2 = load_parts(parts_ptr, w_rows, columns, valid, m, d, PARTS)
        f0, f1, f_third = split(f)
        # Tensor cores cut off what falls below a running sum, so a long sum is not left to them.
        some = multiply(f0, f1, f_third, tl.trans(w0), tl.trans(w1), tl.trans(w2), tl.zeros([R, M], tl.float32), PARTS)
        dots += some
        f2 += tl.sum(f * f, 1)
        if ALONG:
            g = tl.load(g_ptr + columns, mask=columns < d, other=0.0).to(tl.float32)
            along += tl.sum(f * g[None, :], 1)
    w2 = tl.load(w2_ptr + tl.arange(0, M), mask=valid, other=0.0)
    c, base, near, f_scale, f2 = from_products(
        dots, f2, w2, f_ptr, w_ptr, f_rows, f_column, keep, valid, eps, d, R, M, PARTS
    )  # fmt: skip
    return c, base, near, f_scale, f2, w2, along


@triton.jit
def affinity(c, valid, eps):
    """Return the softmax over prototypes before its division (R, M), its sums (R,), and the smallest c (R,)."""
    closest = tl.min(c, 1)
    # Differences of distances first: scaled by a large eps they would have no digits left.
    e = tl.where(valid[None, :], tl.exp2((closest[:, None] - c) * (eps * LOG2E)), 0.0)
    return e, tl.sum(e, 1), closest


@triton.jit
def pair_sum(a0, b0, a1, b1):
    """Add pairs, for two sums in one reduction."""
    return a0 + a1, b0 + b1


@triton.jit
def number(pointer, stride, value, image, IS_TENSOR: tl.constexpr):
    """Return mu or eps, which comes as a tensor or as a number."""
    if IS_TENSOR:
        return tl.load(pointer + image * stride).to(tl.float32)
    else:
        return value


@triton.jit
def rows_of(tile, mask_ptr, n, R: tl.constexpr, N: tl.constexpr, MASKED: tl.constexpr):
    """Return the image of a tile, the features of its rows, which of those exist, and which of those count."""
    image, feature = (tile * R) // N, (tile * R) % N + tl.arange(0, R)
    exists = feature < n
    keep = exists
    if MASKED:
        keep = keep & (tl.load(mask_ptr + image * n + feature, mask=exists, other=0) != 0)
    return image, feature, exists, keep
