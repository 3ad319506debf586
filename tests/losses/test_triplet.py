"""The triplet loss against a loop over all triplets: ties, gradients, and large batches."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from winnow.losses import TripletMarginLoss


def cubic(queries, labels, margin):
    """Return the mean of the terms above zero, query by query; queries are unit vectors."""
    total, count = 0.0, 0
    for q in range(len(queries)):
        distance = (queries - queries[q]).square().sum(dim=1).sqrt()
        same = labels == labels[q]
        other = ~same
        same[q] = False
        terms = distance[same][:, None] - distance[other][None, :] + margin
        total += float(terms.clamp(min=0).sum())
        count += int((terms > 0).sum())
    return total / max(count, 1)


@settings(max_examples=60, deadline=None)
@given(
    samples=st.lists(st.tuples(st.integers(0, 2), st.sampled_from([-1.0, 1.0]), st.integers(0, 2)), max_size=10),
    margin=st.sampled_from([0.0, 0.1, 2.0]),
)
def test_ties_equal_the_loop_over_triplets(samples, margin):
    # Signed unit axes have distances of exactly 0, sqrt(2), and 2, so many terms are exactly zero.
    queries = torch.zeros(len(samples), 3, dtype=torch.float64)
    for row, (axis, sign, _) in enumerate(samples):
        queries[row, axis] = sign
    labels = torch.tensor([label for *_, label in samples], dtype=torch.int64)
    value = float(TripletMarginLoss(margin=margin)(queries, labels))
    assert value == pytest.approx(cubic(queries, labels, margin), rel=1e-12, abs=1e-15)


def test_gradient_with_ties_equals_the_loop_over_triplets():
    unit = torch.eye(3, dtype=torch.float64)[[0, 1, 2, 0, 1, 2, 0]]
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 1])
    ours = unit.clone().requires_grad_()
    TripletMarginLoss(margin=0.1)(ours, labels).backward()

    slow = unit.clone().requires_grad_()
    rows = slow / slow.norm(dim=1, keepdim=True)
    terms = []
    for q in range(7):
        for p in range(7):
            for n in range(7):
                if p != q and labels[p] == labels[q] and labels[n] != labels[q]:
                    d_qp, d_qn = (torch.linalg.vector_norm(rows[q] - rows[x]) for x in (p, n))
                    terms.append(d_qp - d_qn + 0.1)
    above = [t for t in terms if t > 0]
    (sum(above) / len(above)).backward()
    torch.testing.assert_close(ours.grad, slow.grad)


def test_large_batch_equals_the_loop_over_queries():
    generator = torch.Generator().manual_seed(0)
    queries = torch.nn.functional.normalize(torch.randn(1500, 8, generator=generator), dim=1)
    labels = torch.arange(1500) % 300
    value = float(TripletMarginLoss()(queries, labels))
    assert value == pytest.approx(cubic(queries.double(), labels, 0.1), rel=1e-4)


def test_no_tensor_is_larger_than_the_distance_matrix():
    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(tensor, torch.Tensor):
                    self.elements = max(self.elements, tensor.numel())
            return result

    queries = torch.randn(40, 4, requires_grad=True)
    with Largest() as largest:
        TripletMarginLoss()(queries, torch.arange(40) % 8).backward()
    assert 40 * 40 <= largest.elements <= 40 * 41
