"""The result object: neighbors, hits, averages, order of queries, and validation."""

import dataclasses

import numpy as np
import pytest
import torch

from winnow.errors import ConfigError, DataError
from winnow.evaluation import RetrievalResult, evaluate_retrieval


@pytest.fixture
def result():
    rows = np.array([[0.0], [0.1], [5.0], [5.2], [0.3], [9.0]], dtype=np.float32)
    return evaluate_retrieval(rows, np.array([0, 0, 1, 1, 1, 2]), keep=3)


def test_neighbors_distances_and_hits(result):
    assert result.neighbors[0].tolist() == [1, 4, 2]
    assert result.distances[0].tolist() == pytest.approx([0.1, 0.3, 5.0])
    assert result.hits[0].tolist() == [True, False, False]
    assert result.neighbors[4].tolist() == [1, 0, 2]
    assert result.hits[4].tolist() == [False, False, True]


def test_queries_without_relevant_references_are_counted(result):
    assert result.relevant.tolist() == [1, 1, 2, 2, 2, 0]
    assert result.num_without_relevant == 1
    assert result.neighbors[5].tolist() == [3, 2, 4]
    assert result.per_query["MAP@R"].isnan().tolist() == [False] * 5 + [True]


def test_metrics_are_means_over_queries_with_relevant_references(result):
    assert result.per_query["MAP@R"][:5].tolist() == pytest.approx([1, 1, 0.5, 0.5, 0])
    assert result.metrics()["MAP@R"] == pytest.approx(0.6)
    assert result.metrics()["P@1"] == pytest.approx(0.8)


def test_best_and_worst_queries(result):
    assert result.best_queries(3).tolist() == [0, 1, 2]
    assert result.worst_queries(2).tolist() == [4, 2]
    assert result.worst_queries(100).tolist() == [4, 2, 3, 0, 1]
    assert result.best_queries(0).tolist() == []
    with pytest.raises(ConfigError, match=r"^n: "):
        result.best_queries(-1)


def test_keep_is_limited_to_the_number_of_references():
    rows, labels = torch.randn(4, 2), torch.tensor([0, 0, 1, 1])
    assert evaluate_retrieval(rows, labels, keep=100).neighbors.shape == (4, 3)
    assert evaluate_retrieval(rows, labels, keep=0).hits.shape == (4, 0)
    with pytest.raises(ConfigError, match="keep"):
        evaluate_retrieval(rows, labels, keep=-1)


def test_is_frozen(result):
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.relevant = result.relevant + 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"neighbors": torch.zeros(5, 3, dtype=torch.int64)}, "^neighbors: expected shape"),
        ({"distances": torch.zeros(6, 2)}, "^distances: expected shape"),
        ({"relevant": torch.ones(5, dtype=torch.int64)}, "^relevant: expected shape"),
        ({"neighbors": torch.zeros(6, 3)}, "^neighbors: expected torch.int64"),
        ({"neighbors": torch.full((6, 3), 6)}, "indices of the 6"),
        ({"neighbors": torch.full((6, 3), -1)}, "indices of the 6"),
        ({"per_query": {"P@1": torch.zeros(6)}}, "^per_query: MAP@R"),
        ({"per_query": {"MAP@R": torch.zeros(4)}}, "^MAP@R: expected shape"),
        ({"relevant": torch.zeros(6, dtype=torch.int64)}, "none of the 6 queries"),
    ],
)
def test_is_validated(result, change, message):
    with pytest.raises(DataError, match=message):
        dataclasses.replace(result, **change)
    assert isinstance(dataclasses.replace(result), RetrievalResult)
