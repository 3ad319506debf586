import subprocess
import sys

import brute_retrieval as brute
import numpy as np
import pytest
import torch

from winnow.errors import ConfigError, DataError
from winnow.evaluation import search
from winnow.evaluation.exact import full_precision, pair_distances, repeat_ranks


def rows_with_ties(seed, count, dimension=4):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, dimension)).astype(np.float32)
    return rows[rng.integers(0, count // 3, count)]


@pytest.mark.parametrize("k", [1, 5, 39, 500])
@pytest.mark.parametrize("seed", range(3))
def test_repeated_rows_tie_and_the_lower_index_comes_first(seed, k):
    rows = rows_with_ties(seed, 40)
    distances, indices = search(rows, rows, k, exclude_self=True)
    for q, found in enumerate(indices.tolist()):
        assert found == brute.ranking(rows[q], rows, own=q)[:k]
    wanted = np.linalg.norm(rows[:, None].astype(float) - rows[indices.numpy()].astype(float), axis=2)
    np.testing.assert_allclose(distances.numpy(), wanted, rtol=1e-6)
    assert ((distances == 0).numpy() == (wanted == 0)).all()


@pytest.mark.parametrize("chunk_bytes", [1, 700, 2**26])
def test_ties_at_the_boundary(chunk_bytes):
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 7)  # 128 references, at 8 different distances
    _, indices = search(corners, corners, 12, exclude_self=True, chunk_bytes=chunk_bytes)
    for q, found in enumerate(indices.tolist()):
        assert found == brute.ranking(corners[q].tolist(), corners.tolist(), own=q)[:12]


@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize("scale", [2.0**-100, 1.0, 2.0**100])
def test_vectors_that_a_matrix_product_cannot_tell_apart(scale, offset):
    rng = np.random.default_rng(2)
    rows = (scale * (offset + rng.normal(size=(50, 3)) * 1e-3)).astype(np.float32)
    _, indices = search(rows, rows, 6, exclude_self=True)
    for q, found in enumerate(indices.tolist()):
        assert found == brute.ranking(rows[q].astype(float) / scale, rows.astype(float) / scale, own=q)[:6]


def test_clusters_far_apart_are_ordered_within():
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(4, 8))[np.arange(80) % 4] + 1e-5 * rng.normal(size=(80, 8))
    rows = rows.astype(np.float32)
    _, indices = search(rows[:20], rows, 8)
    for q, found in enumerate(indices.tolist()):
        assert found == brute.ranking(rows[q], rows)[:8]


def test_k_is_cut_to_what_there_is():
    rows = torch.arange(3.0)[:, None]
    assert search(rows, rows, 9)[1].tolist() == [[0, 1, 2], [1, 0, 2], [2, 1, 0]]
    assert search(rows, rows, 9, exclude_self=True)[1].tolist() == [[1, 2], [0, 2], [1, 0]]
    assert search(rows[:1], rows[:1], 9, exclude_self=True)[1].shape == (1, 0)


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_matrix_products_are_in_full_precision_and_the_setting_comes_back(precision):
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


def test_precision_that_was_set_by_backend_comes_back():
    code = """
import torch
from winnow.evaluation.exact import full_precision
backend = getattr(torch.backends.mkldnn, "matmul", None)
if backend is not None:  # torch >= 2.9
    torch.backends.fp32_precision = "tf32"
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    with full_precision(torch.device("cpu")):
        assert backend.fp32_precision == torch.backends.cuda.matmul.fp32_precision == "ieee"
    assert backend.fp32_precision == torch.backends.cuda.matmul.fp32_precision == "tf32"
"""
    subprocess.run([sys.executable, "-c", code], check=True)  # for torch keeps traces of the setting


def test_read_only_and_strided_arrays():
    rows = np.random.default_rng(8).normal(size=(12, 6)).astype(np.float32)
    view = rows[::-1, ::2]
    view.setflags(write=False)
    assert torch.equal(search(view, view, 3)[1], search(view.copy(), view.copy(), 3)[1])


@pytest.mark.parametrize(
    ("k", "more", "error", "message"),
    [
        (0, {}, ConfigError, "k must be a whole number"),
        (2, {"chunk_bytes": 0}, ConfigError, "chunk_bytes"),
        (2, {"exclude_self": True}, DataError, "3 queries and 5 references"),
    ],
)
def test_unusable_settings_are_told(k, more, error, message):
    with pytest.raises(error, match=message):
        search(torch.zeros(3, 2), torch.zeros(5, 2), k, **more)


@pytest.mark.parametrize("dimension", [1, 2, 3, 7, 100, 128])
def test_a_pair_has_one_distance_wherever_it_stands(dimension):
    rng = torch.Generator().manual_seed(dimension)
    left, right = torch.randn(2, 50, dimension, generator=rng)
    values = pair_distances(left, right)
    torch.testing.assert_close(values, (left.double() - right.double()).square().sum(dim=1))
    assert torch.equal(values, pair_distances(right, left))
    assert torch.equal(values, torch.cat([pair_distances(left[i : i + 1], right[i : i + 1]) for i in range(50)]))


def test_repeat_ranks_counts_equal_rows_before():
    rows = torch.tensor([[1.0, 2.0], [0.0, 0.0], [1.0, 2.0], [2.0, 1.0], [-0.0, 0.0], [1.0, 2.0]])
    assert repeat_ranks(rows).tolist() == [0, 0, 1, 0, 1, 2]
