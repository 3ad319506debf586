"""The index benchmark: its rows are complete, and what it compares finds the same neighbors or nearly."""

import numpy as np
import pytest
import torch

from benchmarks.index import jitter, run_index
from tests.conftest import MakeFolder
from winnow import Embedder, Index


@pytest.mark.slow
def test_rows_and_recall(make_folder: MakeFolder, tmp_path):
    pytest.importorskip("faiss")
    torch.manual_seed(0)
    settings = {"backbone": {"name": "resnet20", "weights": "random"}, "image": {"resize": 32, "crop": 32}}
    with pytest.warns(UserWarning, match="random weights"):
        model = Embedder.create({**settings, "pooling": "gap", "dim": 8})
    Index.build(model, make_folder(classes=3, images=4), tmp_path / "index")
    benchmark = run_index(tmp_path / "index", count=10_000, queries=20, images=5, repeats=1)
    assert benchmark.name == "index-index-10000-cpu"
    assert [row.method for row in benchmark.rows] == ["exact", "loop of model calls", "exact", "hnsw", "ivfpq"]
    recall = {row.method: row.facts["recall@10"] for row in benchmark.rows[2:]}
    assert recall["exact"] == 1.0
    assert 0.7 < recall["hnsw"] <= 1.0
    assert 0.5 < recall["ivfpq"] <= 1.0


def test_jitter_is_small_and_of_unit_length():
    vectors = np.eye(4, 16, dtype=np.float32)
    made = jitter(vectors, 200, seed=0)
    assert np.allclose(np.linalg.norm(made, axis=1), 1, atol=1e-6)
    nearest = np.sqrt(((made[:, None] - vectors) ** 2).sum(2)).min(axis=1)
    assert 0.2 < nearest.mean() < 0.4
