"""Greedy k-center selection and the covering radius against slow loops over all pairs."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from gsp_oracles import PROPERTY
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from winnow.functional import covering_radius, greedy_k_center


def points(most: int, least: int = 1) -> st.SearchStrategy[np.ndarray]:
    """Small integers: ties and duplicates are frequent, and squared distances are exact."""
    shape = st.tuples(st.integers(least, most), st.integers(1, 2))
    return hnp.arrays(np.float64, shape, elements=st.integers(-6, 6).map(float))


def slow_greedy(points: np.ndarray, k: int, centers: np.ndarray | None) -> list[int]:
    """Gonzalez' algorithm that recomputes every distance; ties go to the lower index, no point is picked twice."""
    picks: list[int] = []
    for _ in range(k):
        chosen = [*([] if centers is None else centers), *points[picks]] or [np.zeros(points.shape[1])]
        gaps = [-1.0 if i in picks else min(((x - c) ** 2).sum() for c in chosen) for i, x in enumerate(points)]
        picks.append(int(np.argmax(gaps)))
    return picks


def slow_radius(points: np.ndarray, centers: np.ndarray) -> float:
    return max(min(np.sqrt(((x - c) ** 2).sum()) for c in centers) for x in points)


@PROPERTY
@given(points(9), st.data())
def test_greedy_equals_the_slow_loop(cloud: np.ndarray, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(cloud)))
    elements = st.integers(-6, 6).map(float)
    shape = st.tuples(st.integers(1, 3), st.just(cloud.shape[1]))
    centers = data.draw(st.none() | hnp.arrays(np.float64, shape, elements=elements))
    given_centers = None if centers is None else torch.from_numpy(centers)
    picks = greedy_k_center(torch.from_numpy(cloud), k, given_centers)
    assert picks.dtype == torch.int64
    assert picks.tolist() == slow_greedy(cloud, k, centers)


@PROPERTY
@given(points(9), st.data())
def test_greedy_covers_at_most_twice_as_far_as_the_best(cloud: np.ndarray, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, min(4, len(cloud))))
    best = min(slow_radius(cloud, cloud[list(subset)]) for subset in combinations(range(len(cloud)), k))
    picks = greedy_k_center(torch.from_numpy(cloud), k)
    assert slow_radius(cloud, cloud[picks.numpy()]) <= 2 * best + 1e-12


def test_points_near_the_origin_are_covered_too() -> None:
    """The origin decides the first pick only. As a lasting center, it would leave the first point uncovered."""
    cloud = torch.tensor([[0.0, 0.0], [10.0, 0.0], [10.0, 0.1]])
    assert greedy_k_center(cloud, 2).tolist() == [2, 0]


@PROPERTY
@given(points(6), st.integers(1, 3))
def test_greedy_never_picks_twice(cloud: np.ndarray, copies: int) -> None:
    cloud = np.tile(cloud, (copies, 1))
    picks = greedy_k_center(torch.from_numpy(cloud), len(cloud))
    assert sorted(picks.tolist()) == list(range(len(cloud)))


def test_the_first_pick_is_farthest_from_the_origin() -> None:
    cloud = torch.tensor([[1.0, 0.0], [0.0, -3.0], [2.0, 2.0]])
    assert greedy_k_center(cloud, 1).tolist() == [1]
    assert greedy_k_center(cloud, 1, centers=torch.empty(0, 2)).tolist() == [1]


def test_given_centers_repel() -> None:
    cloud = torch.tensor([[0.0], [4.0], [9.0]])
    assert greedy_k_center(cloud, 2).tolist() == [2, 0]
    assert greedy_k_center(cloud, 2, centers=torch.tensor([[8.0]])).tolist() == [0, 1]
    assert greedy_k_center(cloud, 2, centers=torch.tensor([[0.0], [8.5]])).tolist() == [1, 2]


def ragged(data: st.DataObject, least: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sets of up to 6 points in the plane, their masks, and 3 centers for each."""
    whole = st.integers(-6, 6).map(float)
    sets = data.draw(st.integers(1, 3))
    clouds = data.draw(hnp.arrays(np.float64, (sets, 6, 2), elements=whole))
    centers = data.draw(hnp.arrays(np.float64, (sets, 3, 2), elements=whole))
    counts = data.draw(st.lists(st.integers(least, 6), min_size=sets, max_size=sets))
    return clouds, np.stack([data.draw(st.permutations(range(6)).map(np.array)) < n for n in counts]), centers


@PROPERTY
@given(st.data(), st.integers(1, 6), st.booleans())
def test_sets_are_covered_each_by_itself(data: st.DataObject, k: int, free: bool) -> None:
    """Each set with a mask as the set of its present points alone; picks beyond those repeat the first of them."""
    clouds, masks, centers = ragged(data)
    chosen = None if free else torch.from_numpy(centers)
    picks = greedy_k_center(torch.from_numpy(clouds), k, chosen, torch.from_numpy(masks))
    for cloud, mask, repelling, found in zip(clouds, masks, centers, picks.tolist(), strict=True):
        present = np.flatnonzero(mask)
        count = min(k, len(present))
        expected = present[slow_greedy(cloud[mask], count, None if free else repelling)] if count else []
        rest = present[0] if len(present) else 0
        assert found == [*expected, *[rest] * (k - count)]


@PROPERTY
@given(st.data(), st.sampled_from([1, 4, 4096]))
def test_the_radius_of_a_set_is_that_of_its_present_points(data: st.DataObject, chunk: int) -> None:
    clouds, masks, centers = ragged(data)
    found = covering_radius(*map(torch.from_numpy, (clouds, centers, masks)), chunk=chunk)
    expected = [slow_radius(x[m], c) if m.any() else 0.0 for x, m, c in zip(clouds, masks, centers, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sets_compile_to_one_graph(dtype: torch.dtype) -> None:
    cloud = torch.randn(3, 9, 4, dtype=dtype, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(9) < torch.tensor([9, 5, 2])[:, None]
    compiled = torch.compile(greedy_k_center, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(cloud, 4, cloud[:, :2], mask), greedy_k_center(cloud, 4, cloud[:, :2], mask))


@pytest.mark.parametrize("k", [0, -1, 4])
def test_a_k_out_of_range_raises(k: int) -> None:
    with pytest.raises(ValueError, match=rf"k: expected a number in 1\.\.3, the number of points, got {k}"):
        greedy_k_center(torch.zeros(3, 2), k)


@PROPERTY
@given(points(9), st.data())
def test_covering_radius_equals_the_slow_loop(cloud: np.ndarray, data: st.DataObject) -> None:
    """Also when the points come in chunks, the last of them smaller."""
    rows = data.draw(st.lists(st.integers(0, len(cloud) - 1), min_size=1, max_size=3))
    centers = cloud[rows] + data.draw(st.sampled_from([0.0, 0.25]))
    for chunk in (1, 2, 4096):
        radius = covering_radius(torch.from_numpy(cloud), torch.from_numpy(centers), chunk=chunk)
        assert radius.shape == ()
        np.testing.assert_allclose(radius, slow_radius(cloud, centers), rtol=1e-12, atol=1e-7)


def test_covering_radius_keeps_small_radii_in_float32() -> None:
    """Many points, where a distance by one float32 matrix product would be off by several times the radius."""
    cloud = torch.randn(200, 64, generator=torch.Generator().manual_seed(0))
    assert covering_radius(cloud, cloud) < 1e-5
    moved = cloud + 1e-4
    exact = (moved.double() - cloud.double()).norm(dim=1).max()
    torch.testing.assert_close(covering_radius(cloud, moved).double(), exact, rtol=1e-5, atol=0)


@pytest.mark.parametrize(("n", "c"), [(0, 3), (3, 0)])
def test_covering_radius_needs_points_and_centers(n: int, c: int) -> None:
    with pytest.raises(ValueError, match=r"(points|centers): expected at least one row"):
        covering_radius(torch.zeros(n, 2), torch.zeros(c, 2))
