"""Retrieval metrics against a plain loop, pytorch-metric-learning, and properties that always hold."""

import brute_retrieval as brute
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

from winnow.errors import ConfigError, DataError
from winnow.evaluation import evaluate_retrieval, query_metrics, retrieval_metrics


def data(seed, count=60, dimension=5, classes=9, grid=False):
    """Unequal classes, single-sample classes among them, some rows repeated; on a grid distances tie as well."""
    rng = np.random.default_rng(seed)
    labels = np.minimum(rng.geometric(0.2, count), classes)
    labels[:2] = [50, 51]
    rows = rng.normal(size=(count, dimension)) + 0.5 * rng.normal(size=(60, dimension))[labels]
    rows = rng.integers(-1, 2, size=rows.shape).astype(float) if grid else rows
    rows[10:14] = rows[9]
    rows[20:23] = rows[0]
    return rows.astype(np.float32), labels


@pytest.mark.parametrize("grid", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_self_retrieval_equals_the_plain_loop(seed, grid):
    rows, labels = data(seed, grid=grid)
    wanted, excluded = brute.metrics(rows, labels)
    result = evaluate_retrieval(rows, labels)
    assert result.metrics() == pytest.approx(wanted, abs=1e-12)
    assert list(result.metrics()) == ["P@1", "R@1", "R@2", "R@4", "R@8", "P@R", "MAP@R"]
    assert result.num_without_relevant == excluded >= 2


@pytest.mark.parametrize("grid", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_query_and_gallery_equal_the_plain_loop(seed, grid):
    rows, labels = data(seed, count=90, grid=grid)
    parts = rows[:30], labels[:30], rows[30:], labels[30:]
    wanted, excluded = brute.metrics(*parts, ks=(1, 3, 10))
    result = evaluate_retrieval(parts[0], parts[1], gallery=parts[2], gallery_labels=parts[3], ks=(1, 3, 10))
    assert result.metrics() == pytest.approx(wanted, abs=1e-12)
    assert result.num_without_relevant == excluded >= 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_float_type(dtype):
    rows, labels = data(7)
    rows = torch.from_numpy(rows).to(dtype)
    wanted, _ = brute.metrics(rows.double().numpy(), labels)
    assert retrieval_metrics(rows, torch.from_numpy(labels)) == pytest.approx(wanted, abs=1e-12)


def test_float64_is_not_rounded_to_float32():
    rows, labels = np.array([[0.0], [1.0 + 2e-12], [-1.0 - 1e-12], [5.0]]), np.array([0, 1, 0, 1])
    assert evaluate_retrieval(rows, labels).neighbors[0].tolist() == [2, 1, 3]
    assert evaluate_retrieval(rows.astype(np.float32), labels).neighbors[0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("count", [12, 200])
def test_collapsed_embeddings_are_ranked_by_index(count):
    labels = np.random.default_rng(0).integers(0, 5, count)
    rows = np.full((count, 3), 0.1, dtype=np.float32)
    assert retrieval_metrics(rows, labels) == pytest.approx(brute.metrics(rows, labels)[0], abs=1e-12)
    assert evaluate_retrieval(rows, labels, keep=3).neighbors[:4].tolist() == [
        [1, 2, 3],
        [0, 2, 3],
        [0, 1, 3],
        [0, 1, 2],
    ]


def test_large_labels_stay_apart():
    rows = torch.tensor([[0.0], [0.1], [1.0], [1.1]])
    labels = torch.tensor([2**53, 2**53 + 1, 2**53, 2**53 + 1])
    assert retrieval_metrics(rows, labels, ks=(1, 3)) == {
        "P@1": 0.0,
        "R@1": 0.0,
        "R@3": 1.0,
        "P@R": 0.0,
        "MAP@R": 0.0,
    }


def test_ranks_deeper_than_the_first_search():
    rng = np.random.default_rng(3)
    rows, labels = rng.normal(size=(150, 2)).astype(np.float32), rng.integers(0, 60, 150)
    ks = (1, 40, 70, 149, 1000)
    wanted, _ = brute.metrics(rows, labels, ks=ks)
    assert 0 < wanted["R@40"] < wanted["R@70"] < wanted["R@149"] == wanted["R@1000"] == 1
    assert retrieval_metrics(rows, labels, ks=ks) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("grid", [False, True])
@pytest.mark.parametrize("chunk_bytes", [1, 500, 5000])
def test_results_do_not_depend_on_the_chunks(chunk_bytes, grid):
    rows, labels = data(11, count=120, grid=grid)
    small = evaluate_retrieval(rows, labels, ks=(1, 50), chunk_bytes=chunk_bytes)
    large = evaluate_retrieval(rows, labels, ks=(1, 50))
    assert torch.equal(small.neighbors, large.neighbors)
    assert torch.equal(small.distances, large.distances)
    for name, values in large.per_query.items():
        assert torch.equal(small.per_query[name].nan_to_num(-1), values.nan_to_num(-1)), name


@pytest.mark.parametrize("own", [True, False])
def test_agrees_with_pytorch_metric_learning(own):
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 30, 400)
    rows = (rng.normal(size=(30, 16))[labels] + rng.normal(size=(400, 16))).astype(np.float32)
    calculator = AccuracyCalculator(
        include=("precision_at_1", "r_precision", "mean_average_precision_at_r"),
        k="max_bin_count",
        device=torch.device("cpu"),
    )
    if own:
        theirs = calculator.get_accuracy(rows, labels)
        ours = retrieval_metrics(rows, labels)
    else:
        theirs = calculator.get_accuracy(rows[:150], labels[:150], rows[150:], labels[150:])
        ours = retrieval_metrics(rows[:150], labels[:150], gallery=rows[150:], gallery_labels=labels[150:])
    assert ours["P@1"] == pytest.approx(theirs["precision_at_1"], abs=1e-6)
    assert ours["P@R"] == pytest.approx(theirs["r_precision"], abs=1e-6)
    assert ours["MAP@R"] == pytest.approx(theirs["mean_average_precision_at_r"], abs=1e-6)


def test_map_at_r_by_hand():
    hits = torch.tensor([[True, False, True, True], [False, True, False, False], [False, False, False, False]])
    values = query_metrics(hits, torch.tensor([3, 1, 0]), ks=(2,))
    assert values["MAP@R"][:2].tolist() == pytest.approx([(1 + 2 / 3) / 3, 0])
    assert values["P@R"][:2].tolist() == pytest.approx([2 / 3, 0])
    assert values["R@2"][:2].tolist() == [1, 1]
    assert all(bool(value[2].isnan()) for value in values.values())


@st.composite
def drawn(draw):
    seed, count = draw(st.integers(0, 2**32 - 1)), draw(st.integers(4, 40))
    classes, dimension = draw(st.integers(1, count // 2)), draw(st.integers(1, 6))
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.concatenate([np.arange(classes), rng.integers(0, classes, count - classes)]))
    return rng, rng.normal(size=(count, dimension)).astype(np.float32), labels


@settings(max_examples=40, deadline=None)
@given(drawn())
def test_metrics_are_bounded_and_ordered(drawing):
    _, rows, labels = drawing
    found = retrieval_metrics(rows, labels, ks=(1, 2, 3, 5, 100))
    assert all(0 <= value <= 1 for value in found.values())
    assert found["P@1"] == found["R@1"] <= found["R@2"] <= found["R@3"] <= found["R@5"] <= found["R@100"] == 1
    assert found["MAP@R"] <= found["P@R"] + 1e-12


@settings(max_examples=40, deadline=None)
@given(drawn())
def test_the_order_of_the_references_does_not_matter(drawing):
    rng, rows, labels = drawing
    queries = rng.normal(size=(7, rows.shape[1])).astype(np.float32)
    query_labels, order = labels[:7], rng.permutation(len(rows))
    query_labels = np.resize(query_labels, 7)
    before = retrieval_metrics(queries, query_labels, gallery=rows, gallery_labels=labels)
    after = retrieval_metrics(queries, query_labels, gallery=rows[order], gallery_labels=labels[order])
    assert before == pytest.approx(after, abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(drawn())
def test_perfect_clusters_give_one(drawing):
    rng, rows, labels = drawing
    labels = np.concatenate([labels, labels])
    rows = np.concatenate([rows, rng.permutation(rows)])[:, :1] * 0.01 + 10.0 * labels[:, None]
    assert set(retrieval_metrics(rows.astype(np.float32), labels).values()) == {1.0}


ROWS, LABELS = np.zeros((4, 2), dtype=np.float32), np.array([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("rows", "labels", "more", "message"),
    [
        (ROWS[:, 0], LABELS, {}, r"^embeddings: .* \(4,\)"),
        (ROWS[:0], LABELS[:0], {}, "^embeddings: array is empty"),
        (ROWS.astype(int), LABELS, {}, r"\.float\(\)"),
        (ROWS.tolist(), LABELS, {}, "list"),
        (ROWS, LABELS[:3], {}, r"^labels: .* \(3,\)"),
        (ROWS, LABELS[:, None], {}, r"^labels: .* \(4, 1\)"),
        (ROWS, LABELS.astype(float), {}, r"\.long\(\)"),
        (ROWS, LABELS.astype(np.uint64) + np.uint64(2**63), {}, "int64"),
        (np.where([[0, 1]], np.nan, ROWS), LABELS, {}, "4 of 4 rows"),
        (np.where(LABELS[:, None], np.inf, ROWS), LABELS, {}, "first: row 2"),
        (ROWS, np.arange(4), {}, "none of the 4 queries"),
        (ROWS[:1], LABELS[:1], {}, "none of the 1 queries"),
        (ROWS, LABELS, {"gallery": ROWS}, "^gallery_labels: missing"),
        (ROWS, LABELS, {"gallery": ROWS[:, :1], "gallery_labels": LABELS}, "^gallery: expected 2 dimensions .* got 1"),
        (ROWS, LABELS, {"gallery": ROWS, "gallery_labels": LABELS + 2}, "none of the 4 queries"),
        (ROWS, LABELS, {"gallery": ROWS, "gallery_labels": LABELS[:1]}, "^gallery_labels: "),
    ],
)
def test_unusable_data_raises(rows, labels, more, message):
    with pytest.raises(DataError, match=message):
        retrieval_metrics(rows, labels, **more)


@pytest.mark.parametrize("ks", [(0,), (1, -2), (1.5,), (True,)])
def test_unusable_ranks_raise(ks):
    with pytest.raises(ConfigError, match="whole number of at least 1"):
        retrieval_metrics(ROWS, LABELS, ks=ks)
