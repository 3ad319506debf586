"""Gradients of GSP and its parts against finite differences and the formulas of [GSP]."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gsp_oracles import random_problem
from torch import Tensor

from winnow.functional import gsp, gsp_weights, soft_selection

MASK = torch.tensor([[True, True, False, True, True], [True, True, True, True, False]])
masks = pytest.mark.parametrize("mask", [None, MASK], ids=["unmasked", "masked"])


def gradcheck(function: Callable[..., object], *inputs: Tensor) -> None:
    leaves = tuple(x.detach().clone().requires_grad_() for x in inputs)
    assert torch.autograd.gradcheck(function, leaves, eps=1e-6, atol=1e-7, rtol=1e-5)


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


@masks
@pytest.mark.parametrize("eps", [0.5, 5.0, 20.0])
@pytest.mark.parametrize("mu", [0.3, 0.9, [0.2, 0.75]], ids=str)
def test_gsp_in_all_its_inputs(mu: float | list[float], eps: float, mask: Tensor | None) -> None:
    """Vectors, weights, and attributes with respect to features, prototypes, mu, and eps."""
    features, prototypes = random_problem(0)
    gradcheck(lambda f, w, mu, eps: tuple(gsp(f, w, mu, eps, mask)), features, prototypes, number(mu), number(eps))


@masks
def test_gsp_at_mu_one(mask: Tensor | None) -> None:
    """mu = 1 is at the edge of its range, so only the other inputs can step to both sides."""
    features, prototypes = random_problem(1)
    gradcheck(lambda f, w, eps: tuple(gsp(f, w, 1.0, eps, mask)), features, prototypes, number(5.0))


@masks
def test_gsp_where_only_some_images_are_at_mu_one(mask: Tensor | None) -> None:
    features, prototypes = random_problem(2)
    mu = number([1.0, 0.4])
    gradcheck(lambda f, w, eps: tuple(gsp(f, w, mu, eps, mask)), features, prototypes, number(5.0))


def test_gsp_with_a_single_feature_and_a_single_prototype() -> None:
    for n, m in [(1, 3), (4, 1), (1, 1)]:
        features, prototypes = random_problem(3, n=n, m=m)
        gradcheck(lambda f, w, mu, eps: tuple(gsp(f, w, mu, eps)), features, prototypes, number(0.3), number(5.0))


@masks
@pytest.mark.parametrize("mu", [0.3, [0.2, 0.75]], ids=str)
def test_soft_selection(mu: float | list[float], mask: Tensor | None) -> None:
    scores = 3 * torch.randn(2, 5, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    gradcheck(lambda s, mu: soft_selection(s, mu, mask), scores, number(mu))


@masks
def test_derivative_by_mu_at_one(mask: Tensor | None) -> None:
    """One-sided: dp_j/dmu = (exp(-l_j) / mean exp(-l) - 1) / n, and (p(1) - p(1 - h)) / h."""
    costs = torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    if mask is None:
        mask = torch.ones(2, 5, dtype=torch.bool)
    derivative = torch.autograd.functional.jacobian(lambda mu: gsp_weights(costs, mu, 4.0, mask).weights, number(1.0))
    h = 1e-6
    step = gsp_weights(costs, 1.0, 4.0, mask).weights - gsp_weights(costs, 1 - h, 4.0, mask).weights
    torch.testing.assert_close(derivative, step / h, rtol=1e-4, atol=1e-5)
    for b in range(2):
        reciprocal = 1 / torch.exp(-4.0 * costs[b][:, mask[b]]).sum(0)
        formula = (reciprocal / reciprocal.mean() - 1) / mask[b].sum()
        torch.testing.assert_close(derivative[b][mask[b]], formula)
        assert not derivative[b][~mask[b]].any()


@pytest.mark.parametrize("mu", [0.1, 0.3, 0.7, 0.95])
@pytest.mark.parametrize("eps", [0.5, 5.0, 20.0])
def test_proposition_4_2(mu: float, eps: float) -> None:
    """dL/dc = -eps (pi g_pi - n pi (q - eta / (1 - mu - n rho'rho) rho)) for random dL/drho and dL/dpi."""
    m, n = 4, 9
    generator = torch.Generator().manual_seed(6)
    costs = torch.rand(m, n, generator=generator, dtype=torch.float64).requires_grad_()
    grad_rho = torch.randn(n, generator=generator, dtype=torch.float64)
    grad_pi = torch.randn(m, n, generator=generator, dtype=torch.float64)

    weights = gsp_weights(costs[None], mu, eps).weights[0]
    kernel = torch.exp(-eps * costs)
    pi = mu * weights * kernel / kernel.sum(0)
    rho = 1 / n - mu * weights
    ours = torch.autograd.grad((rho * grad_rho).sum() + (pi * grad_pi).sum(), costs)[0]

    with torch.no_grad():
        q = rho * grad_rho + (pi * grad_pi).sum(0)
        eta = (rho * grad_rho).sum() - n * (q * rho).sum()
        slope = 1 - mu - n * (rho * rho).sum()
        theirs = -eps * (pi * grad_pi - n * pi * (q - eta / slope * rho))
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-12)


def test_proposition_4_2_for_the_attributes() -> None:
    """The same formula for a loss that depends on the plan through z_i = sum_j pi_ij / mu alone."""
    mu, eps, m, n = 0.3, 5.0, 4, 9
    generator = torch.Generator().manual_seed(7)
    costs = torch.rand(1, m, n, generator=generator, dtype=torch.float64).requires_grad_()
    grad_z = torch.randn(m, generator=generator, dtype=torch.float64)
    weights, attributes = gsp_weights(costs, mu, eps)
    ours = torch.autograd.grad((attributes[0] * grad_z).sum(), costs)[0][0]
    with torch.no_grad():
        rho = 1 / n - mu * weights[0]
        pi = mu * weights[0] * torch.exp(-eps * costs[0]) / torch.exp(-eps * costs[0]).sum(0)
        grad_pi = grad_z[:, None] / mu
        q = (pi * grad_pi).sum(0)
        eta = -n * (q * rho).sum()
        theirs = -eps * (pi * grad_pi - n * pi * (q - eta / (1 - mu - n * (rho * rho).sum()) * rho))
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-12)


def test_a_second_derivative_raises() -> None:
    scores = torch.randn(1, 4, dtype=torch.float64, requires_grad=True)
    first = torch.autograd.grad(soft_selection(scores, 0.3).square().sum(), scores, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.square().sum().backward()
