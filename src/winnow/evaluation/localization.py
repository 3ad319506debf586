"""Localization by pooling weights: weight inside a bounding box, and the pointing game."""

from __future__ import annotations

import torch
from torch import Tensor


def box_coverage(boxes: Tensor, rows: int, columns: int) -> Tensor:
    r"""Return the fraction of the cell of each location that lies inside a box.

    A map of `rows` x `columns` locations divides the network input into cells of equal size. Location (r, c) covers
    $[c, c + 1] / \text{columns}$ times $[r, r + 1] / \text{rows}$.

    Args:
        boxes: Boxes (N, 4): left, top, right, and bottom, as fractions of the network input.
        rows: Rows of the feature map.
        columns: Columns of the feature map.

    Returns:
        Coverage (N, rows * columns) in [0, 1], in row-major order.
    """
    left, top, right, bottom = boxes.unbind(1)
    across, down = _overlap(left, right, columns), _overlap(top, bottom, rows)
    return (down[:, :, None] * across[:, None, :]).flatten(1)


def weight_in_box(weights: Tensor, boxes: Tensor, rows: int, columns: int) -> Tensor:
    r"""Return the fraction of the pooling weight inside a box.

    $$s = \sum_j p_j c_j \Big/ \sum_j p_j$$

    $c_j$ is the [`box_coverage`][winnow.evaluation.box_coverage] of location j. Uniform weights give the fraction of
    the network input that the box covers, which is the level of chance.

    Args:
        weights: Weights (N, rows * columns), at least 0.
        boxes: Boxes (N, 4): left, top, right, and bottom, as fractions of the network input.
        rows: Rows of the feature map.
        columns: Columns of the feature map.

    Returns:
        Fractions (N,).
    """
    covered = box_coverage(boxes.to(weights.dtype), rows, columns)
    return (weights * covered).sum(dim=1) / weights.sum(dim=1)


def pointing_game(weights: Tensor, boxes: Tensor, rows: int, columns: int) -> Tensor:
    """Return whether the location with the largest weight has its center inside a box.

    If several locations share the largest weight, the result is the fraction of them inside. Uniform weights therefore
    give the level of chance. Locations are counted without the tolerance in pixels of the reference.

    Reference: Zhang et al., "Top-down Neural Attention by Excitation Backprop", ECCV 2016.

    Args:
        weights: Weights (N, rows * columns).
        boxes: Boxes (N, 4): left, top, right, and bottom, as fractions of the network input.
        rows: Rows of the feature map.
        columns: Columns of the feature map.

    Returns:
        Hits (N,): 1 or 0, or a fraction between them for ties.
    """
    left, top, right, bottom = boxes[:, :, None].unbind(1)
    x, y = _centers(columns, boxes), _centers(rows, boxes)
    across, down = (left <= x) & (x <= right), (top <= y) & (y <= bottom)
    inside = (down[:, :, None] & across[:, None, :]).flatten(1)
    largest = weights == weights.amax(dim=1, keepdim=True)
    return (largest & inside).sum(dim=1) / largest.sum(dim=1)


def _overlap(start: Tensor, end: Tensor, count: int) -> Tensor:
    """Return the fraction (N, count) of each of `count` equal parts of [0, 1] that lies in [start, end]."""
    edges = torch.arange(count + 1, dtype=start.dtype, device=start.device) / count
    inside = torch.minimum(end[:, None], edges[1:]) - torch.maximum(start[:, None], edges[:-1])
    return inside.clamp(min=0) * count


def _centers(count: int, like: Tensor) -> Tensor:
    """Return the centers (count,) of equal parts of [0, 1]."""
    return (torch.arange(count, dtype=like.dtype, device=like.device) + 0.5) / count
