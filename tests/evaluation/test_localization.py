"""Localization by pooling weights, compared with loops over locations and pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from winnow.evaluation import box_coverage, pointing_game, weight_in_box

SIDE = 24
"""Pixels of the slow input, a multiple of all grids below."""
GRIDS = [(1, 1), (3, 4), (8, 8), (2, 12)]


def slow_coverage(box: tuple[int, int, int, int], rows: int, columns: int) -> np.ndarray:
    """Count the pixels of each cell that lie in a box of whole pixels."""
    left, top, right, bottom = box
    covered = np.zeros((rows, columns))
    for y in range(top, bottom):
        for x in range(left, right):
            covered[y * rows // SIDE, x * columns // SIDE] += 1
    return covered.ravel() / (SIDE // rows * (SIDE // columns))


def fractions(boxes: list[tuple[int, int, int, int]]) -> torch.Tensor:
    return torch.tensor(boxes, dtype=torch.float64) / SIDE


def draw_box(data: st.DataObject) -> tuple[int, int, int, int]:
    edge = st.integers(0, SIDE)
    left, right = sorted((data.draw(edge), data.draw(edge)))
    top, bottom = sorted((data.draw(edge), data.draw(edge)))
    return left, top, right, bottom


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_coverage_and_weight_equal_counted_pixels(data: st.DataObject) -> None:
    rows, columns = data.draw(st.sampled_from(GRIDS))
    boxes = [draw_box(data) for _ in range(3)]
    expected = np.stack([slow_coverage(box, rows, columns) for box in boxes])
    np.testing.assert_allclose(box_coverage(fractions(boxes), rows, columns), expected, atol=1e-12)

    weights = np.random.default_rng(data.draw(st.integers(0, 99))).random((3, rows * columns)) + 0.01
    share = [
        sum(p * c for p, c in zip(own, box, strict=True)) / own.sum()
        for own, box in zip(weights, expected, strict=True)
    ]
    np.testing.assert_allclose(weight_in_box(torch.tensor(weights), fractions(boxes), rows, columns), share, atol=1e-12)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_pointing_game_equals_a_loop(data: st.DataObject) -> None:
    rows, columns = data.draw(st.sampled_from(GRIDS))
    left, top, right, bottom = box = draw_box(data)
    weights = data.draw(st.lists(st.integers(0, 3), min_size=rows * columns, max_size=rows * columns))
    hits = []
    for row in range(rows):
        for column in range(columns):
            if weights[row * columns + column] == max(weights):
                x, y = (column + 0.5) * SIDE / columns, (row + 0.5) * SIDE / rows
                hits.append(left <= x <= right and top <= y <= bottom)
    found = pointing_game(torch.tensor([weights]).double(), fractions([box]), rows, columns)
    assert found.tolist() == [pytest.approx(sum(hits) / len(hits))]


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_uniform_weights_are_the_level_of_chance(data: st.DataObject) -> None:
    rows, columns = data.draw(st.sampled_from(GRIDS))
    left, top, right, bottom = box = draw_box(data)
    uniform = torch.full((1, rows * columns), 1 / (rows * columns), dtype=torch.float64)
    area = (right - left) * (bottom - top) / SIDE**2
    assert weight_in_box(uniform, fractions([box]), rows, columns).item() == pytest.approx(area)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_boxes_and_weights(dtype: torch.dtype) -> None:
    boxes = torch.tensor([[0.0, 0, 1, 1], [0.3, 0.3, 0.3, 0.9], [0.5, 0.5, 1, 1], [0.0, 0, 0.5, 0.5]])
    weights = torch.eye(4, dtype=dtype)[[3, 3, 3, 3]]  # all of the weight in the lower right of 2 x 2 locations
    share = weight_in_box(weights, boxes, 2, 2)
    assert share.dtype == dtype
    assert share.tolist() == [1, 0, 1, 0]
    assert pointing_game(weights, boxes, 2, 2).tolist() == [1, 0, 1, 0]
    assert weight_in_box(weights[:0], boxes[:0], 2, 2).shape == (0,)
    assert pointing_game(weights[:0], boxes[:0], 2, 2).shape == (0,)
