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
float64, once: the first kernel writes them down for the others.
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
SHOWN: tl.constexpr = tl.constexpr(1e-5)
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
def distance(f2, w2, fw):
    """Return the distance of clipped vectors from their products before they were clipped, in float64."""
    lengths = tl.sqrt(tl.maximum(f2, 1.0)) * tl.sqrt(tl.maximum(w2, 1.0))
    return tl.sqrt(tl.maximum(tl.minimum(f2, 1.0) + tl.minimum(w2, 1.0) - 2.0 * fw / lengths, 0.0))


@triton.jit
def measure_near(
    c, reach, f_ptr, w_ptr, long_w2_ptr, f_rows, f_column, d, R: tl.constexpr, M: tl.constexpr
):  # fmt: skip
    """Measure the two smallest distances of each feature again, in float64, if they are below `reach`.

    Returns `base` (R,), just below the smallest, for each of the two its place (-1: not measured) and c - base, and
    |f|^2 in float64. Those differences have digits that a distance rounded to float32 has not, and a large eps shows
    them.
    """
    places = tl.arange(0, M)
    least, first = tl.min(c, 1), tl.argmin(c, 1)
    base = tl.sqrt(tl.maximum(least * least - 4e-5, 0.0))  # below all, since squares are wrong by less
    others = tl.where(places[None, :] == first[:, None], float("inf"), c)
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
    """Return c - base (R, M), infinite for padding, base (R,), the place of a near prototype (R,) or -1, and of f
    1 / max(1, |f|) and min(1, |f|^2).

    What is measured of near pairs is written down for the kernels that come after, where it is MEASURED already.
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
            # A score shows eps / (2 c) times the error of a squared distance.
            slack: tl.constexpr = 6e-7 if PARTS == 2 else 2e-7
            reach = tl.maximum(eps * (slack / (2 * SHOWN)), NEAR)
            least = tl.min(tl.where(keep, tl.min(c, 1), float("inf")), 0)
            if least < reach:
                base, first, first_c, second, second_c, long_f2 = measure_near(
                    c, reach, f_ptr, w_ptr, long_w2_ptr, f_rows, f_column, d, R, M
                )  # fmt: skip
                tl.store(long_f2_ptr + at, long_f2, mask=exists)
            # Both places as one number, which is exact: there are at most 128.
            tl.store(near_ptr + at * 4, ((first + 1) * 256 + second + 1).to(tl.float32), mask=exists)
            tl.store(near_ptr + at * 4 + 1, base, mask=exists)
            tl.store(near_ptr + at * 4 + 2, first_c, mask=exists)
            tl.store(near_ptr + at * 4 + 3, second_c, mask=exists)
        places = tl.arange(0, M)[None, :]
        c = tl.where(places == first[:, None], first_c[:, None], c - base[:, None])
        c = tl.where(places == second[:, None], second_c[:, None], c)
    return c, base, first, f_scale, f2


@triton.jit
def distances(
    f_ptr, w_ptr, parts_ptr, w2_ptr, long_w2_ptr, near_ptr, long_f2_ptr, g_ptr, f_rows, f_column, at, exists, keep,
    valid, eps, m, d,
    R: tl.constexpr, M: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr, MEASURED: tl.constexpr,
    ALONG: tl.constexpr,
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
        dots, f2, w2, f_ptr, w_ptr, long_w2_ptr, near_ptr, long_f2_ptr, f_rows, f_column, at, exists, keep, valid,
        eps, d, R, M, PARTS, MEASURED,
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
