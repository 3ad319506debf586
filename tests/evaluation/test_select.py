"""Choosing the smallest values of rows, against a plain sort."""

import pytest
import torch

from winnow.evaluation.select import ascending, by_value_then_place, merged, smallest


def rows(seed, columns, kind):
    values = torch.randn(7, columns, generator=torch.Generator().manual_seed(seed))
    if kind == "ties":
        values = (3 * values).round()
    if kind == "together":  # the smallest stand side by side, as a class does in a sorted set
        values = values.sort(dim=1).values.roll(columns // 3, dims=1)
    return values


@pytest.mark.parametrize("kind", ["plain", "ties", "together"])
@pytest.mark.parametrize(("columns", "width"), [(1, 1), (20, 20), (20, 7), (103, 5), (1000, 16), (1000, 1), (999, 200)])
def test_smallest_are_those_of_a_sort(columns, width, kind):
    values = rows(columns, columns, kind)
    found, at = smallest(values, width)
    assert torch.equal(values.gather(1, at), found)
    assert torch.equal(found.sort(dim=1).values, values.sort(dim=1).values[:, :width])
    assert all(len(set(row)) == width for row in at.tolist())


@pytest.mark.parametrize("kind", ["plain", "ties", "together"])
@pytest.mark.parametrize(("block", "width"), [(40, 3), (100, 20), (64, 64), (333, 16)])
def test_blocks_merge_into_the_smallest_of_all(block, width, kind):
    values = rows(block, 1000, kind)
    best = smallest(values[:, :block], width)
    for start in range(block, 1000, block):
        best = merged(best, values[:, start : start + block].contiguous(), start)
    found, at = best
    assert torch.equal(values.gather(1, at), found)
    assert torch.equal(found.sort(dim=1).values, values.sort(dim=1).values[:, :width])
    assert all(len(set(row)) == width for row in at.tolist())


def test_a_block_without_anything_smaller_changes_nothing():
    best = smallest(torch.zeros(2, 50), 4)
    found, at = merged(best, torch.ones(2, 320), 50)
    assert torch.equal(found, torch.zeros(2, 4))
    assert int(at.max()) < 50


def test_rows_are_sorted_and_equal_values_by_place():
    values, places = torch.tensor([[2.0, 1.0, 2.0, 0.0]]), torch.tensor([[5, 9, 3, 7]])
    assert [part.tolist() for part in by_value_then_place(values, places)] == [[[0, 1, 2, 2]], [[7, 9, 3, 5]]]
    ordered, order = ascending(values)
    assert ordered.tolist() == [[0, 1, 2, 2]]
    assert torch.equal(values.gather(1, order), ordered)
