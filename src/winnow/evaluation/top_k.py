"""Smallest values of each row, and exact distances of vector pairs.

A matrix product is fast, but the rounding of an entry may depend on its position in the matrix. Two equal vectors can
then get different distances. Search therefore uses products to propose candidates only. `pair_distances` recomputes
all distances that decide an order, pair by pair.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

_GROUP = 32


def smallest(values: Tensor, width: int) -> tuple[Tensor, Tensor]:
    r"""Return the `width` smallest values of every row and their columns, unordered.

    Columns are dealt into groups of size $s \approx \sqrt{C/w}$. The groups with the $w$ smallest minima contain $w$
    smallest values: every other value is at least the minimum of its group, which is at least each of those $w$ minima.
    One pass over the row finds the minima. The selection is then among $C/s$ minima and $w s$ values instead of $C$.

    Args:
        values: Shape (B, C).
        width: $w$, at most C.

    Returns:
        Values and columns, each of shape (B, width).
    """
    columns = values.shape[1]
    size = math.isqrt(columns // width)
    if size < 2:
        return values.topk(width, dim=1, largest=False, sorted=False)
    groups = columns // size
    dealt = values[:, : groups * size].view(len(values), size, groups)
    best = dealt.amin(dim=1).topk(width, dim=1, largest=False, sorted=False).indices
    held = dealt.gather(2, best[:, None].expand(-1, size, -1)).flatten(1)
    rest = values[:, groups * size :]  # fewer columns than one group
    found, at = torch.cat([held, rest], dim=1).topk(width, dim=1, largest=False, sorted=False)
    inside = best.gather(1, at % width) + torch.div(at, width, rounding_mode="floor") * groups
    return found, torch.where(at < size * width, inside, at + (groups * size - size * width))


def merge_smallest(best: tuple[Tensor, Tensor], values: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """Merge the smallest values so far with a further block of columns, unordered.

    Args:
        best: Values and columns so far, each of shape (B, width).
        values: Next block, shape (B, C).
        start: Column at which the block starts.

    Returns:
        Values and columns, each of shape (B, width).
    """
    found, at = best
    width = found.shape[1]
    if values.device.type == "cpu" and 4 * width < values.shape[1]:
        more, columns = _below(values, found.amax(dim=1, keepdim=True))
    else:  # `_below` would synchronize the GPU; on the CPU most groups contain a smaller value here
        more, columns = smallest(values, min(width, values.shape[1]))
    found, chosen = torch.cat([found, more], dim=1).topk(width, dim=1, largest=False, sorted=False)
    return found, torch.cat([at, columns + start], dim=1).gather(1, chosen)


def _below(values: Tensor, limits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the values below each row's limit, and their columns.

    Rows are padded with infinity.

    After the first blocks few values are below the limit. One pass finds the minima of column groups, and only groups
    with a minimum below the limit are scanned.

    Args:
        values: Shape (B, C), or the transpose of a block.
        limits: Shape (B, 1).
    """
    whole = values.shape[1] // _GROUP * _GROUP
    grouped = values[:, :whole].unflatten(1, (-1, _GROUP))  # type: ignore[no-untyped-call]
    # A transposed block is reduced in its memory order: over its rows.
    minima = grouped.amin(dim=2) if values.stride(1) == 1 else grouped.permute(1, 2, 0).amin(dim=1).T
    row, group = (minima < limits).nonzero().unbind(dim=1)
    held = grouped[row, group]
    pair, member = (held < limits[row]).nonzero().unbind(dim=1)
    row = row[pair]
    counts = row.bincount(minlength=len(values))
    rank = torch.arange(len(row)) - (counts.cumsum(dim=0) - counts)[row]
    more = values.new_full((len(values), int(counts.max())), math.inf)
    columns = torch.zeros_like(more, dtype=torch.int64)
    more[row, rank], columns[row, rank] = held[pair, member], group[pair] * _GROUP + member
    rest = torch.arange(whole, values.shape[1]).expand(len(values), -1)  # fewer columns than one group: all are taken
    return torch.cat([more, values[:, whole:]], dim=1), torch.cat([columns, rest], dim=1)


def sort_rows(values: Tensor) -> tuple[Tensor, Tensor]:
    """Sort each row in ascending order; equal values come in any order.

    Returns:
        Sorted values, and their columns before sorting.
    """
    if values.device.type != "cpu":
        return values.sort(dim=1)
    order = torch.from_numpy(np.argsort(values.numpy(), axis=1))  # vectorized, unlike torch on the CPU
    return values.gather(1, order), order


def sort_rows_with_ties(values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Sort each row by value, and equal values by index."""
    indices, order = indices.sort(dim=1)
    values, by_value = values.gather(1, order).sort(dim=1, stable=True)
    return values, indices.gather(1, by_value)


def pair_distances(left: Tensor, right: Tensor, unit: float = 1.0) -> Tensor:
    r"""Compute squared Euclidean distances of paired rows in float64.

    $$d_p = \sum_{i=1}^{D} \big(u\,(x_{pi} - y_{pi})\big)^2$$

    The sum is a fixed tree of element-wise additions. Two rows therefore always have the same distance, wherever they
    are in the arrays and in either order.

    Args:
        left: $x$, shape (P, D).
        right: $y$, shape (P, D).
        unit: $u$, a power of two that keeps the squares in range.

    Returns:
        Shape (P,), float64.
    """
    terms = (left.double() - right.double()).mul_(unit).square_()
    while (width := terms.shape[1]) > 1:
        half = (width + 1) // 2
        terms[:, : width - half] += terms[:, half:]
        terms = terms[:, :half]
    return terms[:, 0]


def error_bound(lengths: Tensor, reach: Tensor, dimension: int, dtype: torch.dtype, *, one_product: bool) -> Tensor:
    r"""Return the largest error of a squared distance that comes from a matrix product.

    The bound adds the standard bound of a dot product of D terms and the rounding of points, norms, and their sum. A
    matrix library may round these again after every 64 terms or more. With `one_product` it is the bound of a dot
    product of D + 2 terms, $\lVert x \rVert^2 + \lVert y \rVert^2 - 2\, x^\top y$.

    Args:
        lengths: Squared norms of the queries, float64.
        reach: Largest squared norm of a reference, float64.
        dimension: D.
        dtype: Type of the product.
        one_product: The norms are terms of the product.

    Returns:
        Same shape as `lengths`, float64.
    """
    info = torch.finfo(dtype)
    lengths, reach = lengths.sqrt(), reach.sqrt()
    product = 0 if one_product else (2 * dimension + 8) * lengths * reach
    rest = ((dimension if one_product else dimension // 64) + 18) * (lengths + reach).square()
    return info.eps / 2 * (product + rest) + (dimension + 8) * info.tiny


def duplicate_ranks(rows: Tensor) -> Tensor:
    """Count the equal rows in front of each row.

    Rows are sorted by a random projection, and neighbors with equal projections are compared value by value. If two
    different rows share a projection, the count may be too small, never too large.

    Args:
        rows: Shape (N, D).

    Returns:
        Shape (N,), int64; all zero if no row is repeated.
    """
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(rows.shape[1], dtype=torch.float64, generator=generator).to(rows.device)
    keys = torch.cat([(chunk.double() * direction).sum(dim=1) for chunk in chunks(rows)])
    keys, order = keys.sort(stable=True)
    same = keys[1:] == keys[:-1]
    at = same.nonzero().flatten()
    for chunk in chunks(at):
        same[chunk] = (rows[order[chunk]] == rows[order[chunk + 1]]).all(dim=1)
    index = torch.arange(len(rows), device=rows.device)
    first = torch.cat([torch.zeros_like(index[:1]), index[1:].masked_fill(same, 0)]).cummax(dim=0).values
    return torch.empty_like(index).scatter_(0, order, index - first)


def chunks(*arrays: Tensor, size: int = 4096) -> Iterator[Tensor]:
    """Yield the rows of the arrays, at most `size` at a time."""
    for array in arrays:
        for start in range(0, len(array), size):
            yield array[start : start + size]


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Compute matrix products in full precision inside the block.

    TF32, bfloat16, autocast, and gradients are off.
    """
    with torch.no_grad(), torch.autocast(device.type, enabled=False), _full_float32():
        yield


@contextmanager
def _full_float32() -> Iterator[None]:
    """Set the highest precision of float32 products, and restore it at the end."""
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # the precision was set per backend (torch >= 2.9), which disables the global setting
        holders: Any = (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul"))  # noqa: B009
        before = [holder.fp32_precision for holder in holders]
        try:
            for holder in holders:
                holder.fp32_precision = "ieee"
            yield
        finally:
            for holder, value in zip(holders, before, strict=True):
                holder.fp32_precision = value
        return
    if precision == "highest":
        yield
        return
    try:
        torch.set_float32_matmul_precision("highest")
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
