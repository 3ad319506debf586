"""Weights and attributes of GSP against other solvers of the same problem."""

from __future__ import annotations

import numpy as np
import ot
import pytest
import torch
from gsp_oracles import (
    alternating_iteration,
    distinct_costs,
    linear_program,
    plain_costs,
    random_problem,
    smoothed_dual,
    smoothed_primal,
)
from torch import Tensor

from winnow.functional import gsp, gsp_weights, threshold

EPS = (0.1, 0.5, 5.0, 20.0)
MU = (0.05, 0.3, 0.7, 0.95)


def solve(costs: np.ndarray, mu: float, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """Residual masses rho and prototype masses sum_j pi_ij, in the units of [GSP]."""
    weights, attributes = gsp_weights(torch.from_numpy(costs)[None], mu, eps)
    return 1 / costs.shape[1] - mu * weights[0].numpy(), mu * attributes[0].numpy()


@pytest.mark.parametrize("mu", MU)
@pytest.mark.parametrize("eps", EPS)
def test_equals_the_alternating_iteration(mu: float, eps: float) -> None:
    costs = 2 * np.random.default_rng(1).random((6, 20))
    rho, pi = alternating_iteration(costs, mu, eps)
    residual, masses = solve(costs, mu, eps)
    np.testing.assert_allclose(residual, rho, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(masses, pi.sum(1), rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("mu", MU)
@pytest.mark.parametrize("eps", EPS)
def test_gsp_from_features_to_pooled_vector(mu: float, eps: float) -> None:
    """The whole path: clipped vectors give the costs, but the pooled features are not clipped."""
    features, prototypes = random_problem(2, n=9, m=4, d=5)
    out = gsp(features, prototypes, mu, eps)
    for b in range(len(features)):
        rho, pi = alternating_iteration(plain_costs(features[b], prototypes), mu, eps)
        weights = (1 / 9 - rho) / mu
        np.testing.assert_allclose(out.weights[b], weights, rtol=1e-9, atol=1e-13)
        np.testing.assert_allclose(out.attributes[b], pi.sum(1) / mu, rtol=1e-9, atol=1e-13)
        np.testing.assert_allclose(out.vector[b], weights @ features[b].numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mu", [0.25, 0.5, 0.05, 0.37, 0.9])
def test_large_eps_solves_the_linear_program(mu: float) -> None:
    """n mu = 12 mu is an integer for the first two; otherwise one feature is kept in part."""
    costs = distinct_costs(3, m=4, n=12)
    rho, pi = linear_program(costs, mu)
    residual, masses = solve(costs, mu, 1e4)
    np.testing.assert_allclose(residual, rho, atol=1e-12)
    np.testing.assert_allclose(masses, pi.sum(1), atol=1e-12)
    fractional = (rho > 1e-9) & (rho < 1 / 12 - 1e-9)
    assert fractional.sum() == (0 if mu in (0.25, 0.5) else 1)


@pytest.mark.parametrize("mu", [0.25, 0.37])
def test_large_eps_is_partial_transport_without_capacities(mu: float) -> None:
    """POT's exact partial transport, each prototype able to take all of the mass."""
    costs = distinct_costs(4, m=3, n=8)
    plan = ot.partial.partial_wasserstein(np.full(8, 1 / 8), np.full(3, mu), costs.T, m=mu)
    residual, masses = solve(costs, mu, 1e4)
    np.testing.assert_allclose(residual, 1 / 8 - plan.sum(1), atol=1e-10)
    np.testing.assert_allclose(masses, plan.sum(0), atol=1e-10)


@pytest.mark.parametrize("mu", MU)
@pytest.mark.parametrize("eps", EPS)
def test_equals_the_dual_optimum_of_the_smoothed_problem(mu: float, eps: float) -> None:
    costs = np.random.default_rng(5).random((3, 7))
    rho, pi = smoothed_dual(costs, mu, eps)
    residual, masses = solve(costs, mu, eps)
    np.testing.assert_allclose(residual, rho, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(masses, pi.sum(1), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(("mu", "eps"), [(0.3, 0.5), (0.3, 5.0), (0.7, 5.0), (0.5, 10.0)])
def test_equals_the_primal_optimum_of_the_smoothed_problem(mu: float, eps: float) -> None:
    costs = np.random.default_rng(6).random((2, 3))
    rho, pi = smoothed_primal(costs, mu, eps)
    residual, masses = solve(costs, mu, eps)
    np.testing.assert_allclose(residual, rho, atol=2e-6)
    np.testing.assert_allclose(masses, pi.sum(1), atol=2e-6)


@pytest.mark.parametrize("mu", MU)
@pytest.mark.parametrize("eps", EPS)
def test_weights_equal_sinkhorn_between_keep_and_drop(mu: float, eps: float) -> None:
    """By the chain rule of entropy, (P2) is a transport to two targets: 'keep' with capacity mu at the soft minimum of
    the costs, and 'drop' with capacity 1 - mu at no cost."""
    costs = np.random.default_rng(7).random((4, 10))
    keep = -np.log(np.exp(-eps * costs).sum(0)) / eps
    plan = ot.sinkhorn(
        [mu, 1 - mu],
        np.full(10, 0.1),
        np.stack([keep, np.zeros(10)]),
        1 / eps,
        method="sinkhorn_log",
        stopThr=1e-14,
        numItermax=100_000,
    )
    np.testing.assert_allclose(solve(costs, mu, eps)[0], plan[1], rtol=1e-7, atol=1e-11)


@pytest.mark.parametrize("mu", [0.3, 0.7])
@pytest.mark.parametrize("eps", [0.5, 5.0, 20.0])
def test_attributes_are_the_marginal_of_a_sinkhorn_plan(mu: float, eps: float) -> None:
    """Given the prototype masses, the transport of POT with a free 'drop' prototype has the residual masses rho."""
    costs = np.random.default_rng(8).random((4, 10))
    residual, masses = solve(costs, mu, eps)
    plan = ot.sinkhorn(
        np.append(masses, 1 - mu),
        np.full(10, 0.1),
        np.vstack([costs, np.zeros(10)]),
        1 / eps,
        method="sinkhorn_log",
        stopThr=1e-14,
        numItermax=100_000,
    )
    np.testing.assert_allclose(plan[-1], residual, atol=1e-10)
    # The free marginal is optimal: all prototypes and the residue have one scaling of exp(-eps c).
    scaling = plan[:-1] / (plan[-1] * np.exp(-eps * costs))
    np.testing.assert_allclose(scaling, scaling.mean(), rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [5, 49, 196])
def test_few_steps_find_the_root_and_more_steps_keep_it(
    n: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 11 steps on, only the last digits change, for eps up to 20; rows converge at different steps."""
    generator = torch.Generator().manual_seed(9)
    eps = torch.tensor([0.1, 0.5, 1.0, 5.0, 20.0], dtype=dtype).repeat_interleave(50)
    costs = 2 * torch.rand(250, 8, n, generator=generator, dtype=dtype)
    scores = torch.logsumexp(-eps[:, None, None] * costs, dim=1)
    mu = torch.tensor([0.01, 0.3, 0.7, 0.95, 0.999], dtype=dtype).repeat(50)
    for steps in (*range(11, 21), 60):
        monkeypatch.setattr(threshold, "MAX_STEPS", steps)
        tau = threshold.selection_threshold(scores, mu[:, None], torch.ones(250, n, dtype=torch.bool))
        kept = torch.sigmoid(tau.double() + scores.double()).mean(1)
        # A rounding of tau moves the mean by at most a quarter of it.
        tolerance = torch.finfo(dtype).eps * (8 + tau.abs().squeeze(1) / 4)
        assert ((kept - mu).abs() <= tolerance).all(), steps


@pytest.mark.parametrize("mu", MU)
@pytest.mark.parametrize("eps", EPS)
def test_bracketing_reads_no_value_and_finds_the_same_root(
    mu: float, eps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = torch.from_numpy(2 * np.random.default_rng(2).random((3, 6, 20)))
    mask = torch.rand(3, 20, generator=torch.Generator().manual_seed(0)) < 0.8
    expected = gsp_weights(costs, mu, eps, mask=mask)
    asked: list[Tensor] = []

    def ask(tensor: Tensor) -> bool:
        asked.append(tensor)
        return bool(tensor.item())

    monkeypatch.setattr(Tensor, "__bool__", ask)
    gsp_weights(costs, mu, eps, mask=mask)
    assert asked  # the substitute is in use
    asked.clear()
    monkeypatch.setattr(threshold, "is_capturing", lambda scores: True)
    found = gsp_weights(costs, mu, eps, mask=mask)
    assert not asked
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-9)
