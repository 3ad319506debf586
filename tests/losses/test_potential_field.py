"""The potential-field loss: its forces, and the energy of the paper with proxies."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from winnow.losses import PotentialFieldLoss, ReferenceLoss
from winnow.references import ProxyReferences


def at_distance(d: float) -> Tensor:
    """Return a unit vector at a distance from (1, 0)."""
    angle = 2 * math.asin(d / 2)
    return torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64)


def force(d: float, positive: bool) -> float:
    """Return the length of the gradient at a query at a distance from one reference."""
    query = at_distance(d).requires_grad_()
    loss = PotentialFieldLoss(delta=0.3, alpha=4.0, normalize=None)
    reference = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    loss(query, torch.tensor([0]), ref_emb=reference, ref_labels=torch.tensor([0 if positive else 1])).backward()
    assert query.grad is not None
    return float(query.grad.norm())


def test_positives_attract_beyond_delta_and_less_with_distance() -> None:
    assert force(0.2, positive=True) == 0
    forces = [force(d, positive=True) for d in (0.4, 0.6, 1.2)]
    assert forces == sorted(forces, reverse=True)
    assert forces[1] / forces[2] == pytest.approx(2**5)  # the force decays by the exponent alpha + 1


def test_negatives_repel_within_delta_and_more_when_near() -> None:
    assert force(0.4, positive=False) == 0
    assert force(0.1, positive=False) / force(0.2, positive=False) == pytest.approx(2**5)
    assert force(0.01, positive=False) == pytest.approx(force(0.05, positive=False))


def test_references_complete_the_energy_of_the_paper() -> None:
    """Equation 6: the potential of all ordered pairs of embeddings and proxies, up to a factor and a constant."""
    torch.manual_seed(0)
    delta, alpha, queries = 1.3, 2.0, 5
    references = ProxyReferences(3, 4, proxies_per_class=2, batch_weight=0.5, proxy_weight=6 / (2 * queries)).double()
    loss = ReferenceLoss(PotentialFieldLoss(delta=delta, alpha=alpha), references)
    x = torch.randn(queries, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 2, 0, 1])
    loss(x, labels).backward()
    ours = (x.grad, references.proxies.grad.clone())

    points = torch.cat([x.detach(), references.proxies.detach()]).requires_grad_()
    every = torch.cat([labels, references.labels])
    unit = points / points.norm(dim=1, keepdim=True)
    energy = torch.zeros((), dtype=torch.float64)
    for i in range(len(points)):
        for j in range(len(points)):
            if i == j:
                continue
            d = (unit[i] - unit[j]).norm()
            if every[i] == every[j]:
                energy = energy - (1 / d**alpha if d > delta else 1 / delta**alpha)
            else:
                energy = energy + (1 / d**alpha if d < delta else 1 / delta**alpha)
    energy.backward()
    assert points.grad is not None
    factor = delta**alpha / (2 * queries)
    torch.testing.assert_close(ours[0], factor * points.grad[:queries])
    torch.testing.assert_close(ours[1], factor * points.grad[queries:])


def test_coinciding_negatives_have_a_finite_value_and_gradient() -> None:
    x = torch.ones(4, 3, requires_grad=True)
    value = PotentialFieldLoss(delta=0.2)(x, torch.arange(4), ref_emb=x, ref_labels=torch.arange(4))
    value.backward()
    assert value.isfinite()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("name", ["delta", "alpha"])
def test_settings_out_of_range_are_rejected(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: "):
        PotentialFieldLoss(**{name: 0.0})
