"""Invariants of GSP for every input."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import numpy as np
import pytest
import torch
from gsp_oracles import PROPERTY, random_problem
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from winnow.functional import GSPOutput, gsp, gsp_weights, soft_selection

# Distances of coincident vectors carry rounding of about 1e-8 in float64, times eps up to 50.
TOLERANCE = 1e-6


class Problem(NamedTuple):
    features: Tensor  # (n, d)
    prototypes: Tensor  # (m, d)
    mu: float
    eps: float

    def pool(self, features: Tensor | None = None, prototypes: Tensor | None = None) -> GSPOutput:
        features = self.features if features is None else features
        prototypes = self.prototypes if prototypes is None else prototypes
        return GSPOutput(*(x[0] for x in gsp(features[None], prototypes, self.mu, self.eps)))


def matrices(rows: int, columns: int) -> st.SearchStrategy[Tensor]:
    """Values from a grid, so equal, zero, and coincident vectors are frequent."""
    elements = st.integers(-8, 8).map(lambda i: i / 4)
    return hnp.arrays(np.float64, (rows, columns), elements=elements).map(torch.from_numpy)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    n, m, d = draw(st.integers(1, 7)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    mu = draw(st.one_of(st.floats(0.01, 1), st.integers(1, n).map(lambda k: k / n)))
    return Problem(draw(matrices(n, d)), draw(matrices(m, d)), mu, draw(st.floats(0, 50)))


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)


@PROPERTY
@given(problems())
def test_weights_and_attributes_sum_to_one(problem: Problem) -> None:
    for fractions in problem.pool()[1:]:
        assert (fractions >= 0).all()
        assert abs(fractions.sum() - 1) < 1e-12


@PROPERTY
@given(problems())
def test_no_feature_gives_more_mass_than_it_has(problem: Problem) -> None:
    """p_j <= 1 / (n mu), so the residual 1/n - mu p_j lies between 0 and 1/n."""
    n = len(problem.features)
    residual = 1 / n - problem.mu * problem.pool().weights
    assert (residual >= -1e-12).all()
    assert (residual <= 1 / n).all()
    assert abs(residual.sum() - (1 - problem.mu)) < 1e-12


@PROPERTY
@given(problems())
def test_the_vector_is_the_weighted_sum_of_unclipped_features(problem: Problem) -> None:
    out = problem.pool()
    close(out.vector, sum(p * f for p, f in zip(out.weights, problem.features, strict=True)))


@PROPERTY
@given(problems(), st.randoms(use_true_random=False))
def test_order_of_features_does_not_matter(problem: Problem, random: Random) -> None:
    order = torch.tensor(random.sample(range(len(problem.features)), len(problem.features)))
    before, after = problem.pool(), problem.pool(features=problem.features[order])
    close(after.weights, before.weights[order])
    close(after.vector, before.vector)
    close(after.attributes, before.attributes)


@PROPERTY
@given(problems(), st.randoms(use_true_random=False))
def test_order_of_prototypes_orders_the_attributes(problem: Problem, random: Random) -> None:
    order = torch.tensor(random.sample(range(len(problem.prototypes)), len(problem.prototypes)))
    before, after = problem.pool(), problem.pool(prototypes=problem.prototypes[order])
    close(after.attributes, before.attributes[order])
    close(after.weights, before.weights)
    close(after.vector, before.vector)


@PROPERTY
@given(problems())
def test_doubling_every_feature_halves_the_weights(problem: Problem) -> None:
    before, after = problem.pool(), problem.pool(features=problem.features.repeat(2, 1))
    close(after.weights, before.weights.repeat(2) / 2)
    close(after.vector, before.vector)
    close(after.attributes, before.attributes)


@PROPERTY
@given(problems())
def test_doubling_every_prototype_halves_the_attributes(problem: Problem) -> None:
    """A common factor in all kernels only moves the threshold."""
    before, after = problem.pool(), problem.pool(prototypes=problem.prototypes.repeat(2, 1))
    close(after.attributes, before.attributes.repeat(2) / 2)
    close(after.weights, before.weights)


@PROPERTY
@given(problems(), st.data(), st.sampled_from([torch.nan, torch.inf, -torch.inf, 1e30, 0.0]))
def test_masking_equals_deleting(problem: Problem, data: st.DataObject, junk: float) -> None:
    """Values and gradients are equal; masked features are not read and have no gradient."""
    n, m = len(problem.features), len(problem.prototypes)
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n).filter(any)))
    slope = torch.linspace(-1, 1, m, dtype=torch.float64)

    def run(features: Tensor, mask: Tensor | None) -> list[Tensor]:
        f, w = features[None].clone().requires_grad_(), problem.prototypes.clone().requires_grad_()
        out = gsp(f, w, problem.mu, problem.eps, mask)
        (out.vector.square().sum() + out.attributes[0] @ slope).backward()
        return [out.vector[0], out.weights[0], out.attributes[0], f.grad[0], w.grad]

    deleted = run(problem.features[mask], None)
    masked = run(torch.where(mask[:, None], problem.features, junk), mask[None])
    assert not masked[1][~mask].any()
    assert not masked[3][~mask].any()
    masked[1], masked[3] = masked[1][mask], masked[3][mask]
    for actual, expected in zip(masked, deleted, strict=True):
        # The direction between coincident vectors is pure rounding: bounded, not equal.
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("junk", [torch.nan, torch.inf, -torch.inf])
def test_masked_costs_and_scores_are_not_read(junk: float) -> None:
    generator = torch.Generator().manual_seed(0)
    mask = torch.tensor([[True, False, True, True]])
    costs = torch.rand(1, 3, 4, generator=generator, dtype=torch.float64)
    spoiled = torch.where(mask[:, None], costs, junk).requires_grad_()
    eps = torch.tensor(5.0, dtype=torch.float64, requires_grad=True)
    out = gsp_weights(spoiled, 0.4, eps, mask)
    expected = gsp_weights(costs[:, :, mask[0]], 0.4, 5.0)
    torch.testing.assert_close(out.weights[mask], expected.weights[0])
    torch.testing.assert_close(out.attributes, expected.attributes)
    out.attributes.square().sum().backward()
    assert spoiled.grad.isfinite().all()
    assert eps.grad.isfinite()

    scores = torch.where(mask, costs[:, 0], junk).requires_grad_()
    soft_selection(scores, 0.4, mask).square().sum().backward()
    assert scores.grad.isfinite().all()
    assert scores.grad[mask].any()


def test_images_are_independent() -> None:
    """A batch with its own mu and mask per image equals the images one by one."""
    features, prototypes = random_problem(1, batch=4, n=8)
    mu = torch.tensor([0.1, 0.5, 0.93, 1.0], dtype=torch.float64)
    mask = torch.rand(4, 8, generator=torch.Generator().manual_seed(2)) < 0.7
    together = gsp(features, prototypes, mu, 7.0, mask)
    for b in range(4):
        alone = gsp(features[b : b + 1], prototypes, float(mu[b]), 7.0, mask[b : b + 1])
        for batch, single in zip(together, alone, strict=True):
            torch.testing.assert_close(batch[b], single[0], rtol=1e-10, atol=1e-12)


def test_mu_may_be_a_number_scalar_column_or_row() -> None:
    features, prototypes = random_problem(3)
    expected = gsp(features, prototypes, 0.3, 5.0).vector
    for shape in [(), (1,), (2,), (2, 1)]:
        mu = torch.full(shape, 0.3, dtype=torch.float64)
        torch.testing.assert_close(gsp(features, prototypes, mu, 5.0).vector, expected)


@PROPERTY
@given(st.data(), st.floats(0.01, 1), st.floats(0, 50))
def test_a_feature_nearer_to_all_prototypes_has_at_least_the_weight(data: st.DataObject, mu: float, eps: float) -> None:
    costs = data.draw(hnp.arrays(np.float64, (3, 6), elements=st.floats(0, 2)))
    costs[:, 4] = costs[:, 1] + data.draw(hnp.arrays(np.float64, 3, elements=st.floats(0, 1)))
    weights = gsp_weights(torch.from_numpy(costs)[None], mu, eps).weights[0].numpy()
    for near in range(6):
        for far in range(6):
            if (costs[:, near] <= costs[:, far]).all():
                assert weights[near] >= weights[far] - 1e-14


def test_a_nearer_feature_has_more_weight() -> None:
    costs = torch.tensor([[[0.1, 0.4, 0.7], [0.2, 0.5, 0.9]]], dtype=torch.float64)
    weights = gsp_weights(costs, 0.5, 5.0).weights[0]
    assert weights[0] > weights[1] + 0.1 > weights[2] + 0.2


@PROPERTY
@given(hnp.arrays(np.float64, 6, elements=st.floats(-50, 50)), st.floats(0.01, 0.99), st.floats(-30, 30))
def test_soft_selection_ignores_a_common_shift(scores: np.ndarray, mu: float, shift: float) -> None:
    rows = torch.from_numpy(np.stack([scores, scores + shift]))
    weights = soft_selection(rows, mu)
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-9, atol=1e-11)


@PROPERTY
@given(hnp.arrays(np.float64, 6, elements=st.floats(-50, 50)), st.floats(0.01, 0.99))
def test_keeping_and_dropping_are_symmetric(scores: np.ndarray, mu: float) -> None:
    """The dropped mass is the soft selection of the fraction 1 - mu by negated scores."""
    row = torch.from_numpy(scores)[None]
    kept, dropped = 6 * mu * soft_selection(row, mu), 6 * (1 - mu) * soft_selection(-row, 1 - mu)
    torch.testing.assert_close(kept + dropped, torch.ones_like(row), rtol=0, atol=1e-9)
