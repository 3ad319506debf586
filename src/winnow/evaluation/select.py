"""Picking the smallest values of every row, and sorting rows, with as few passes as a device allows."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

_GROUP = 32


def smallest(values: Tensor, width: int) -> tuple[Tensor, Tensor]:
    r"""The `width` smallest values of every row and their columns, unordered.

    The columns are dealt to groups. The groups with the `width` smallest minima hold `width` of the smallest values:
    every other value is at least its own group's minimum, hence at least as large as each of those `width` minima. One
    pass over the row finds the minima; what remains is a choice among $C/s$ minima and $w s$ values instead of $C$
    values, for a group size $s \approx \sqrt{C/w}$.

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
    rest = values[:, groups * size :]  # fewer than a group
    found, at = torch.cat([held, rest], dim=1).topk(width, dim=1, largest=False, sorted=False)
    inside = best.gather(1, at % width) + torch.div(at, width, rounding_mode="floor") * groups
    return found, torch.where(at < size * width, inside, at + (groups * size - size * width))


def merged(best: tuple[Tensor, Tensor], values: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """The smallest so far and those of a further block of columns, joined; as many as there were, unordered.

    Args:
        best: Values and columns, each of shape (B, width).
        values: The block, shape (B, C).
        start: The column at which it begins.

    Returns:
        Values and columns, each of shape (B, width).
    """
    found, at = best
    width = found.shape[1]
    if values.device.type == "cpu" and 4 * width < values.shape[1]:
        more, places = _below(values, found.amax(dim=1, keepdim=True))
    else:  # without a host synchronisation; or so many that most groups hold some
        more, places = smallest(values, min(width, values.shape[1]))
    found, chosen = torch.cat([found, more], dim=1).topk(width, dim=1, largest=False, sorted=False)
    return found, torch.cat([at, places + start], dim=1).gather(1, chosen)


def _below(values: Tensor, limits: Tensor) -> tuple[Tensor, Tensor]:
    """The values of every row below its limit and their columns, filled up with infinity to the longest row.

    Few are, once the first blocks have been seen: one pass finds the minima of groups of columns, and only groups
    whose minimum is below the limit are looked into.

    Args:
        values: Shape (B, C), or the transpose of a block.
        limits: Shape (B, 1).
    """
    whole = values.shape[1] // _GROUP * _GROUP
    grouped = values[:, :whole].unflatten(1, (-1, _GROUP))  # type: ignore[no-untyped-call]
    # A transposed block is reduced as it lies in memory: over its rows.
    minima = grouped.amin(dim=2) if values.stride(1) == 1 else grouped.permute(1, 2, 0).amin(dim=1).T
    row, group = (minima < limits).nonzero().unbind(dim=1)
    held = grouped[row, group]
    pair, member = (held < limits[row]).nonzero().unbind(dim=1)
    row = row[pair]
    counts = row.bincount(minlength=len(values))
    rank = torch.arange(len(row)) - (counts.cumsum(dim=0) - counts)[row]
    more = values.new_full((len(values), int(counts.max())), math.inf)
    places = torch.zeros_like(more, dtype=torch.int64)
    more[row, rank], places[row, rank] = held[pair, member], group[pair] * _GROUP + member
    rest = torch.arange(whole, values.shape[1]).expand(len(values), -1)  # fewer than a group: taken as they are
    return torch.cat([more, values[:, whole:]], dim=1), torch.cat([places, rest], dim=1)


def ascending(values: Tensor) -> tuple[Tensor, Tensor]:
    """Every row sorted, and where its values stood; equal values in any order."""
    if values.device.type != "cpu":
        return values.sort(dim=1)
    order = torch.from_numpy(np.argsort(values.numpy(), axis=1))  # vectorised, unlike torch's
    return values.gather(1, order), order


def by_value_then_place(values: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Every row sorted by value, equal values by place."""
    places, order = places.sort(dim=1)
    values, by_value = values.gather(1, order).sort(dim=1, stable=True)
    return values, places.gather(1, by_value)
