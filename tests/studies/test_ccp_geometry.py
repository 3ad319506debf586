"""t-SNE and the geometry of classes, against definitions written out; that the text follows the numbers."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from winnow.studies import ccp_geometry
from winnow.studies.tsne import conditional, gradient, neighbourhoods, tsne


def test_neighbourhoods_have_the_perplexity_asked_for() -> None:
    points = torch.randn(30, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p = conditional(points, 7.0)
    assert torch.allclose(2 ** -(p * p.clamp(min=1e-300).log2()).sum(dim=1), torch.full((30,), 7.0).double())
    assert (p.diagonal() == 0).all()
    joint = neighbourhoods(points, 7.0)
    assert math.isclose(float(joint.sum()), 1.0)
    assert torch.equal(joint, joint.T)


def test_the_slope_is_that_of_the_divergence() -> None:
    generator = torch.Generator().manual_seed(1)
    p = neighbourhoods(torch.randn(12, 4, dtype=torch.float64, generator=generator), 3.0)
    y = torch.randn(12, 2, dtype=torch.float64, generator=generator, requires_grad=True)
    off = ~torch.eye(12, dtype=torch.bool)
    near = 1 / (1 + (y[:, None] - y[None]).square().sum(dim=2))
    q = near / near[off].sum()
    (p[off] * (p[off] / q[off]).log()).sum().backward()
    assert torch.allclose(gradient(y.detach(), p), y.grad, atol=1e-12)


def test_clusters_stay_clusters() -> None:
    points = torch.randn(60, 10, generator=torch.Generator().manual_seed(2)) * 0.1
    labels = torch.arange(60) % 3
    points[torch.arange(60), labels] += 5
    y = tsne(points, perplexity=8)  # a cluster has 19 neighbours
    assert y.shape == (60, 2)
    distances = torch.cdist(y, y) + torch.eye(60) * 1e9
    assert torch.equal(labels[distances.argmin(dim=1)], labels)
    assert torch.equal(tsne(points, steps=5), tsne(points, steps=5)), "nothing is left to chance"
    assert tsne(points[:4]).isfinite().all()


def test_radii_and_distances_are_as_defined() -> None:
    line = torch.tensor([[0.0], [1.0], [3.0], [7.0]], dtype=torch.float64)
    # The best single image is the third (3 and 4 away); then 7 is farthest, then 0, then 1.
    radii = [min(max(abs(a - c) for a in (0, 1, 3, 7)) for c in (0, 1, 3, 7)), 3, 1, 0]
    assert ccp_geometry.radii(line).tolist() == radii
    assert ccp_geometry.radii(line[:1]).tolist() == [0.0]
    points = torch.randn(9, 3, generator=torch.Generator().manual_seed(3))
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    found = ccp_geometry.geometry(points, labels)
    apart = [math.dist(points[i], points[j]) for i, j in itertools.permutations(range(9), 2) if labels[i] != labels[j]]
    assert found[ccp_geometry.APART] == pytest.approx(sum(apart) / len(apart))
    means = [ccp_geometry.radii(points[labels == label].double()).mean() for label in range(3)]
    assert found[ccp_geometry.RADIUS] == pytest.approx(float(sum(means)) / 3)


def test_all_claims_are_checked() -> None:
    def row(radius: float, apart: float, sd: float | None = 0.5) -> dict[str, float | None]:
        return {"MAP@R": 1.0, ccp_geometry.RADIUS: radius, ccp_geometry.APART: apart,
                f"{ccp_geometry.RADIUS} sd": sd, f"{ccp_geometry.APART} sd": sd,
                "radius / distance": radius / apart}  # fmt: skip

    def told(*rows: dict[str, float | None]) -> str:
        names = (ccp_geometry.PLAIN, *ccp_geometry.FEW, ccp_geometry.MANY)
        return ccp_geometry.told(dict(zip(names, rows, strict=True)))

    text = told(row(3, 1), row(2, 1), row(1.5, 1.5), row(1, 2), row(1, 2))
    assert text.count("agrees") == 6
    assert "the radius is 2.000, 1.500, 1.000 and the distance 1.000, 1.500, 2.000" in text
    text = told(row(1, 3), row(2, 3), row(2, 3), row(3, 2), row(3, 2))
    assert text.count("does not agree") == 6
    assert text.count("no smaller") == 2
    text = told(row(3, 1), row(2, 1), row(1.5, 1.5), row(1, 2), row(1, 2, 1.5))
    assert text.count("cannot be told") == 5, "only one radius is smaller by more than seeds deviate"
    text = told(row(3, 1, None), row(2, 1, None), row(1.5, 1.5, None), row(1, 2, None), row(1, 2, None))
    assert text.count("agrees in one seed") == 6
    assert "deviate" not in text
    missing = row(1, 2) | {ccp_geometry.RADIUS: None}
    assert "cannot be checked" in told(row(3, 1), row(2, 1), missing, row(1, 2), row(1, 2))
