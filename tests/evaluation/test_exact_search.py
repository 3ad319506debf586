"""Exact search against slow loops: ties, duplicates, precision, selection, and a set searched in itself."""

import subprocess
import sys

import brute_retrieval as brute
import numpy as np
import pytest
import torch

import winnow.evaluation.search as search_module
from winnow.errors import ConfigError, DataError
from winnow.evaluation import evaluate_retrieval, nearest_neighbors
from winnow.evaluation.top_k import (
    duplicate_ranks,
    full_precision,
    merge_smallest,
    pair_distances,
    smallest,
    sort_rows,
    sort_rows_with_ties,
)


def rows_with_ties(seed, count, dimension=4):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, dimension)).astype(np.float32)
    return rows[rng.integers(0, count // 3, count)]


@pytest.mark.parametrize("k", [1, 5, 39, 500])
@pytest.mark.parametrize("seed", range(3))
def test_repeated_rows_are_ordered_by_index(seed, k):
    rows = rows_with_ties(seed, 40)
    distances, indices = nearest_neighbors(rows, rows, k, exclude_self=True)
    for q, found in enumerate(indices.tolist()):
        assert found == brute.ranking(rows[q], rows, own=q)[:k]
    wanted = np.linalg.norm(rows[:, None].astype(float) - rows[indices.numpy()].astype(float), axis=2)
    np.testing.assert_allclose(distances.numpy(), wanted, rtol=1e-6)
    assert ((distances == 0).numpy() == (wanted == 0)).all()


@pytest.mark.parametrize("chunk_bytes", [1, 700, 2**26])
def test_ties_at_the_boundary(chunk_bytes):
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 7)  # 128 references, at 8 different distances
    _, indices = nearest_neighbors(corners, corners, 12, exclude_self=True, chunk_bytes=chunk_bytes)
    for q, found in enumerate(indices.tolist()):
        assert found == brute.ranking(corners[q].tolist(), corners.tolist(), own=q)[:12]


@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize("scale", [2.0**-100, 1.0, 2.0**100])
def test_vectors_that_a_matrix_product_cannot_distinguish(scale, offset):
    rng = np.random.default_rng(2)
    rows = (scale * (offset + rng.normal(size=(50, 3)) * 1e-3)).astype(np.float32)
    _, indices = nearest_neighbors(rows, rows, 6, exclude_self=True)
    for q, found in enumerate(indices.tolist()):
        assert found == brute.ranking(rows[q].astype(float) / scale, rows.astype(float) / scale, own=q)[:6]


def test_distant_clusters_are_ordered_exactly():
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(4, 8))[np.arange(80) % 4] + 1e-5 * rng.normal(size=(80, 8))
    rows = rows.astype(np.float32)
    _, indices = nearest_neighbors(rows[:20], rows, 8)
    for q, found in enumerate(indices.tolist()):
        assert found == brute.ranking(rows[q], rows)[:8]


def test_k_is_limited_to_the_number_of_references():
    rows = torch.arange(3.0)[:, None]
    assert nearest_neighbors(rows, rows, 9)[1].tolist() == [[0, 1, 2], [1, 0, 2], [2, 1, 0]]
    assert nearest_neighbors(rows, rows, 9, exclude_self=True)[1].tolist() == [[1, 2], [0, 2], [1, 0]]
    assert nearest_neighbors(rows[:1], rows[:1], 9, exclude_self=True)[1].shape == (1, 0)


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_full_precision_restores_the_setting(precision):
    rows, before = torch.ones(2, 2, requires_grad=True), torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with full_precision(rows.device):
                product = rows @ rows
                assert torch.get_float32_matmul_precision() == "highest"
            assert (rows @ rows).dtype == torch.bfloat16
        assert product.dtype == torch.float32
        assert not product.requires_grad
        assert torch.get_float32_matmul_precision() == precision
        with pytest.raises(KeyError), full_precision(rows.device):
            raise KeyError
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.slow
def test_full_precision_restores_a_setting_per_backend():
    code = """
import torch
from winnow.evaluation.top_k import full_precision
backend = getattr(torch.backends.mkldnn, "matmul", None)
if backend is not None:  # torch >= 2.9
    torch.backends.fp32_precision = "tf32"
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    with full_precision(torch.device("cpu")):
        assert backend.fp32_precision == torch.backends.cuda.matmul.fp32_precision == "ieee"
    assert backend.fp32_precision == torch.backends.cuda.matmul.fp32_precision == "tf32"
"""
    subprocess.run(
        [sys.executable, "-c", code], check=True
    )  # a separate process, because torch keeps traces of the setting


def test_read_only_and_strided_arrays():
    rows = np.random.default_rng(8).normal(size=(12, 6)).astype(np.float32)
    view = rows[::-1, ::2]
    view.setflags(write=False)
    assert torch.equal(nearest_neighbors(view, view, 3)[1], nearest_neighbors(view.copy(), view.copy(), 3)[1])


@pytest.mark.parametrize(
    ("k", "more", "error", "message"),
    [
        (0, {}, ConfigError, "^k: expected a whole number"),
        (2, {"chunk_bytes": 0}, ConfigError, "^chunk_bytes: "),
        (2, {"exclude_self": True}, DataError, "exclude_self: .* 3 queries and 5 references"),
    ],
)
def test_unusable_settings_raise(k, more, error, message):
    with pytest.raises(error, match=message):
        nearest_neighbors(torch.zeros(3, 2), torch.zeros(5, 2), k, **more)


@pytest.mark.parametrize("dimension", [1, 2, 3, 7, 100, 128])
def test_pair_distance_does_not_depend_on_the_position(dimension):
    rng = torch.Generator().manual_seed(dimension)
    left, right = torch.randn(2, 50, dimension, generator=rng)
    values = pair_distances(left, right)
    torch.testing.assert_close(values, (left.double() - right.double()).square().sum(dim=1))
    assert torch.equal(values, pair_distances(right, left))
    assert torch.equal(values, torch.cat([pair_distances(left[i : i + 1], right[i : i + 1]) for i in range(50)]))


def test_duplicate_ranks_counts_equal_rows_in_front():
    rows = torch.tensor([[1.0, 2.0], [0.0, 0.0], [1.0, 2.0], [2.0, 1.0], [-0.0, 0.0], [1.0, 2.0]])
    assert duplicate_ranks(rows).tolist() == [0, 0, 1, 0, 1, 2]
    # Next to 1e30 the second number vanishes in a projection, so different rows share one.
    assert duplicate_ranks(torch.tensor([[1e30, 0.0], [1e30, 1.0], [1e30, 2.0]])).tolist() == [0, 0, 0]


@pytest.mark.parametrize(("count", "width"), [(64, 3), (150, 9), (129, 16)])
def test_self_candidates_are_the_nearest_of_all_pairs(count, width, monkeypatch):
    monkeypatch.setattr(search_module, "TILE", 64)
    points = torch.randn(count, 5, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    squares, positions = search_module.self_candidates(points, points.square().sum(dim=1), width)
    wanted = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()
    torch.testing.assert_close(squares, wanted.gather(1, positions), rtol=0, atol=1e-12)
    torch.testing.assert_close(squares.sort().values, wanted.sort().values[:, :width], rtol=0, atol=1e-12)
    assert all(len(set(row)) == width for row in positions.tolist())


@pytest.mark.parametrize("grid", [False, True])
@pytest.mark.parametrize("classes", [40, 2])
def test_self_search_equals_search_of_queries_in_references(grid, classes, monkeypatch):
    used = []

    def recorded(points, norms, width):
        used.append(width)
        return original(points, norms, width)

    original = search_module.self_candidates
    monkeypatch.setattr(search_module, "self_candidates", recorded)
    generator = torch.Generator().manual_seed(classes)
    labels = torch.randint(classes, (300,), generator=generator)
    labels[:3] = 77  # shallow and deep queries
    rows = torch.randn(300, 4, generator=generator) + torch.randn(80, 4, generator=generator)[labels]
    if grid:
        rows = rows.round() + 2.0**-10 * torch.randn(300, 4, generator=generator).sign()  # nearly all distances tie
    apart = evaluate_retrieval(rows, labels, keep=6, ks=(1, 2, 30))
    assert not used  # the set is smaller than a tile
    monkeypatch.setattr(search_module, "TILE", 64)
    together = evaluate_retrieval(rows, labels, keep=6, ks=(1, 2, 30))
    assert bool(used) == (classes == 40)
    assert torch.equal(together.neighbors, apart.neighbors)
    assert torch.equal(together.distances, apart.distances)
    for name, values in apart.per_query.items():
        assert torch.equal(together.per_query[name], values), name
    wanted, _ = brute.metrics(rows.numpy(), labels.numpy(), ks=(1, 2, 30))
    assert together.metrics() == pytest.approx(wanted, abs=1e-12)


def rows(seed, columns, kind):
    values = torch.randn(7, columns, generator=torch.Generator().manual_seed(seed))
    if kind == "ties":
        values = (3 * values).round()
    if kind == "together":  # the smallest are adjacent, as a class is in a sorted set
        values = values.sort(dim=1).values.roll(columns // 3, dims=1)
    return values


@pytest.mark.parametrize("kind", ["plain", "ties", "together"])
@pytest.mark.parametrize(("columns", "width"), [(1, 1), (20, 20), (20, 7), (103, 5), (1000, 16), (1000, 1), (999, 200)])
def test_smallest_equals_a_sort(columns, width, kind):
    values = rows(columns, columns, kind)
    found, at = smallest(values, width)
    assert torch.equal(values.gather(1, at), found)
    assert torch.equal(found.sort(dim=1).values, values.sort(dim=1).values[:, :width])
    assert all(len(set(row)) == width for row in at.tolist())


@pytest.mark.parametrize("kind", ["plain", "ties", "together"])
@pytest.mark.parametrize(("block", "width"), [(40, 3), (100, 20), (64, 64), (333, 16)])
def test_merged_blocks_give_the_smallest_of_all(block, width, kind):
    values = rows(block, 1000, kind)
    best = smallest(values[:, :block], width)
    for start in range(block, 1000, block):
        best = merge_smallest(best, values[:, start : start + block].contiguous(), start)
    found, at = best
    assert torch.equal(values.gather(1, at), found)
    assert torch.equal(found.sort(dim=1).values, values.sort(dim=1).values[:, :width])
    assert all(len(set(row)) == width for row in at.tolist())


def test_a_block_without_smaller_values_changes_nothing():
    best = smallest(torch.zeros(2, 50), 4)
    found, at = merge_smallest(best, torch.ones(2, 320), 50)
    assert torch.equal(found, torch.zeros(2, 4))
    assert int(at.max()) < 50


def test_rows_are_sorted_and_equal_values_by_index():
    values, indices = torch.tensor([[2.0, 1.0, 2.0, 0.0]]), torch.tensor([[5, 9, 3, 7]])
    assert [part.tolist() for part in sort_rows_with_ties(values, indices)] == [[[0, 1, 2, 2]], [[7, 9, 3, 5]]]
    ordered, order = sort_rows(values)
    assert ordered.tolist() == [[0, 1, 2, 2]]
    assert torch.equal(values.gather(1, order), ordered)
