"""What makes the search exact: distances that depend on the two vectors alone, and on nothing around them.

A matrix product is fast, but the rounding of one of its entries may depend on where in the matrix it stands, so that
two equal vectors can get different distances. It is therefore used to find candidates only; what decides an order is
recomputed here, pair by pair.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def pair_distances(left: Tensor, right: Tensor, unit: float = 1.0) -> Tensor:
    r"""Squared Euclidean distances of paired rows, in float64.

    $$d_p = \sum_{i=1}^{D} \big(u\,(x_{pi} - y_{pi})\big)^2$$

    The sum is a fixed tree of element-wise additions, hence the same for the same two rows wherever they stand, and
    the same when they are swapped.

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


def error_bound(lengths: Tensor, reach: Tensor, dimension: int, dtype: torch.dtype, *, at_once: bool) -> Tensor:
    r"""How far a squared distance that comes from a matrix product may be from the true one.

    The standard bound of a dot product of D terms; and the rounding of the points, of their norms, and of adding these,
    which a matrix library may do anew after every 64 terms or more. Where norms and product are added `at_once`, it
    is the bound of a dot product of D + 2 terms, $\lVert x \rVert^2 + \lVert y \rVert^2 - 2\, x^\top y$.

    Args:
        lengths: Squared norms of the queries, float64.
        reach: The largest squared norm of a reference, float64.
        dimension: D.
        dtype: In which the product is computed.
        at_once: The norms are terms of the product.

    Returns:
        Of the shape of `lengths`, float64.
    """
    info = torch.finfo(dtype)
    lengths, reach = lengths.sqrt(), reach.sqrt()
    product = 0 if at_once else (2 * dimension + 8) * lengths * reach
    rest = ((dimension if at_once else dimension // 64) + 18) * (lengths + reach).square()
    return info.eps / 2 * (product + rest) + (dimension + 8) * info.tiny


def repeat_ranks(rows: Tensor) -> Tensor:
    """How many equal rows stand before each row.

    Equal rows are brought together by sorting a random projection and then compared in full. Should two different rows
    share a projection, the count may come out too small, never too large.

    Args:
        rows: Shape (N, D).

    Returns:
        Shape (N,), int64; all zero where no row is repeated.
    """
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(rows.shape[1], dtype=torch.float64, generator=generator).to(rows.device)
    keys = torch.cat([(part.double() * direction).sum(dim=1) for part in parts(rows)])
    keys, order = keys.sort(stable=True)
    same = keys[1:] == keys[:-1]
    at = same.nonzero().flatten()
    for part in parts(at):
        same[part] = (rows[order[part]] == rows[order[part + 1]]).all(dim=1)
    place = torch.arange(len(rows), device=rows.device)
    first = torch.cat([torch.zeros_like(place[:1]), place[1:].masked_fill(same, 0)]).cummax(dim=0).values
    return torch.empty_like(place).scatter_(0, order, place - first)


def parts(*arrays: Tensor, size: int = 4096) -> Iterator[Tensor]:
    """The rows of the arrays, at most `size` at a time."""
    for array in arrays:
        for start in range(0, len(array), size):
            yield array[start : start + size]


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Matrix products in full precision inside the block: no TF32, no bfloat16, no autocast; and no gradients."""
    with torch.no_grad(), torch.autocast(device.type, enabled=False), _full_float32():
        yield


@contextmanager
def _full_float32() -> Iterator[None]:
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # set by backend (torch >= 2.9), of which torch then speaks only by backend
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
