"""Closed form of GSP and its gradient against autograd through the composed parts."""

from __future__ import annotations

import pytest
import torch
from gsp_oracles import random_problem
from torch import Tensor

from winnow.functional import clip_norm, gsp_weights, pairwise_distance
from winnow.functional.closed_form import unfused_gsp


def composed(features: Tensor, prototypes: Tensor, mu: Tensor, eps: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    if mask is not None:
        features = torch.where(mask[..., None], features, 0.0)
    costs = pairwise_distance(clip_norm(features), clip_norm(prototypes)).mT
    weights, attributes = gsp_weights(costs, mu, eps, mask)
    return torch.einsum("bn,bnd->bd", weights, features), weights, attributes


def with_gradients(function, inputs: tuple[Tensor, ...], mask: Tensor | None, used: tuple[int, ...]) -> list[Tensor]:
    leaves = [one.detach().clone().requires_grad_() for one in inputs]
    out = function(*leaves, mask)
    slopes = [torch.linspace(-1, 2, one.numel(), dtype=one.dtype).view(one.shape) for one in out]
    gradients = torch.autograd.grad([out[k] for k in used], leaves, [slopes[k] for k in used])
    return [*out, *gradients]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)], ids=str)
def test_gradients_of_any_outputs(used: tuple[int, ...], masked: bool) -> None:
    features, prototypes = random_problem(0, batch=3, n=7, m=4, d=5)
    mask = torch.rand(3, 7, generator=torch.Generator().manual_seed(1)) < 0.6 if masked else None
    inputs = features, prototypes, torch.tensor([0.2, 0.5, 1.0]).double(), torch.tensor(5.0).double()
    found, wanted = (with_gradients(one, inputs, mask, used) for one in (unfused_gsp, composed))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_features_in_any_memory_layout() -> None:
    """A map (B, d, n) viewed as (B, n, d)."""
    features, prototypes = random_problem(2)
    numbers = torch.tensor(0.3), torch.tensor(5.0)
    wanted = with_gradients(unfused_gsp, (features, prototypes, *numbers), None, (0, 2))
    turned = features.mT.contiguous().requires_grad_()
    pooled, _, attributes = unfused_gsp(turned.mT, prototypes, *numbers, None)
    slopes = [torch.linspace(-1, 2, one.numel(), dtype=one.dtype).view(one.shape) for one in (pooled, attributes)]
    (gradient,) = torch.autograd.grad([pooled, attributes], [turned], slopes)
    torch.testing.assert_close(pooled, wanted[0])
    torch.testing.assert_close(gradient.mT, wanted[3])


@pytest.mark.parametrize("gap", [0.3, 0.05, 0.021, 0.019, 1e-3, 1e-5])
def test_float32_gradients_near_the_float64_limit(gap: float) -> None:
    """0.02 is the distance below which a feature's gradient is computed in float64."""
    features, prototypes = random_problem(3, batch=4, n=20, m=6, d=64, dtype=torch.float32)
    features = torch.nn.functional.normalize(features, dim=2) * torch.linspace(0.4, 3, 20)[:, None]
    prototypes = torch.nn.functional.normalize(prototypes, dim=1)  # longer or shorter than 1 by a rounding
    features[:, 7:13] = prototypes + gap * torch.nn.functional.normalize(features[:, :6], dim=2)
    inputs = features, prototypes, torch.tensor(0.3), torch.tensor(5.0)
    found = with_gradients(unfused_gsp, inputs, None, (0, 2))
    wanted = with_gradients(composed, tuple(one.double() for one in inputs), None, (0, 2))
    for one, other in zip(found[:5], wanted[:5], strict=True):
        assert (one - other).norm() < 3e-6 * other.norm()


def test_a_feature_at_a_prototype_has_a_finite_gradient() -> None:
    features = torch.tensor([[[0.5, 0.0], [0.0, 0.25], [1.0, 1.0]]])
    inputs = features, features[0, :2].clone(), torch.tensor(0.4), torch.tensor(5.0)
    found = with_gradients(unfused_gsp, inputs, None, (0, 2))
    assert all(one.isfinite().all() for one in found)
    wanted = with_gradients(composed, tuple(one.double() for one in inputs), None, (0, 2))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-6)


def test_an_empty_batch() -> None:
    inputs = torch.zeros(0, 5, 4), torch.ones(3, 4), torch.tensor(0.3), torch.tensor(5.0)
    pooled, weights, attributes, *gradients = with_gradients(unfused_gsp, inputs, None, (0, 2))
    assert (pooled.shape, weights.shape, attributes.shape) == ((0, 4), (0, 5), (0, 3))
    assert [one.shape for one in gradients] == [(0, 5, 4), (3, 4), (), ()]
    assert not gradients[1].any()
