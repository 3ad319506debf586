"""Candidates of a set that is searched in itself: the distance from a to b is the one from b to a."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.evaluation.select import merged, smallest

TILE = 2048
"""Rows and columns of a block; two of them stay in the caches of a CPU."""


def mutual_candidates(points: Tensor, norms: Tensor, width: int) -> tuple[Tensor, Tensor]:
    r"""The `width` smallest squared distances of every point to all points, itself included, and their places.

    Only the blocks on and above the diagonal are computed, each by one matrix product,

    $$\lVert x \rVert^2 + \lVert y \rVert^2 - 2\, x^\top y
      = (-2x,\ 1,\ \lVert x \rVert^2)^\top (y,\ \lVert y \rVert^2,\ 1),$$

    and each serves its rows and its columns: half the products of a search of queries in references.

    Args:
        points: Shape (N, D), on the CPU; N is at least `TILE`.
        norms: Their squared norms, shape (N,).
        width: At most `TILE`.

    Returns:
        Values and places, each of shape (N, width), unordered.
    """
    ones = torch.ones_like(norms)
    found, at = points.new_empty(len(points), width), torch.empty(len(points), width, dtype=torch.int64)

    def take(rows: slice, values: Tensor, start: int) -> None:
        """Let some rows choose among further columns."""
        if start == 0:
            found[rows], at[rows] = smallest(values.contiguous(), width)
        else:
            found[rows], at[rows] = merged((found[rows], at[rows]), values, start)

    tiles = [slice(start, start + TILE) for start in range(0, len(points), TILE)]
    for number, rows in enumerate(tiles):
        left = torch.cat([points[rows] * -2, torch.stack([ones[rows], norms[rows]], dim=1)], dim=1)
        for columns in tiles[number:]:
            right = torch.cat([points[columns], torch.stack([norms[columns], ones[columns]], dim=1)], dim=1)
            values = left @ right.T
            take(rows, values, columns.start)
            if columns is not rows:
                take(columns, values.T, rows.start)
    return found, at
