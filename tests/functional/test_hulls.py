"""Convex hulls, membership against a linear program, and overlap of classes."""

import numpy as np
import pytest
import torch
from scipy import optimize, spatial

from winnow.functional import convex_hull, hull_overlap, in_hull

SQUARE = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])


def test_the_corners_are_those_of_scipy():
    points = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    found = convex_hull(points)
    expected = spatial.ConvexHull(points.numpy()).vertices.tolist()
    start = expected.index(int(points[:, 0].argmin()))
    assert found.tolist() == expected[start:] + expected[:start]


def test_hulls_of_lines_and_points():
    assert convex_hull(torch.zeros(1, 2)).tolist() == [0]
    line = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])
    assert sorted(convex_hull(line).tolist()) == [0, 2]
    middles = torch.cat([SQUARE, torch.tensor([[0.5, 0.0], [0.5, 0.5]])])
    assert sorted(convex_hull(middles).tolist()) == [0, 1, 2, 3]
    assert convex_hull(torch.ones(4, 2)).tolist() == [0]
    assert convex_hull(SQUARE[[3, 2, 1, 0]]).tolist() == [3, 2, 1, 0]  # counterclockwise from the smallest x, then y
    for wrong in (torch.zeros(3, 3), torch.zeros(0, 2), torch.zeros(2)):
        with pytest.raises(ValueError, match=r"points: expected shape \(n, 2\)"):
            convex_hull(wrong)


@pytest.mark.parametrize(("dim", "corners"), [(1, 3), (2, 5), (3, 12), (8, 30)])
def test_membership_is_that_of_a_linear_program(dim, corners):
    generator = torch.Generator().manual_seed(dim)
    vertices = torch.randn(corners, dim, generator=generator)
    mixed = torch.rand(20, corners, generator=generator) ** 4
    inner = (mixed / mixed.sum(dim=1, keepdim=True)) @ vertices
    points = torch.cat([inner, 1.5 * torch.randn(40, dim, generator=generator)])
    found = in_hull(points, vertices, steps=2000)
    system = np.vstack([vertices.T.double(), np.ones(corners)])
    for point, inside in zip(points, found, strict=True):
        solved = optimize.linprog(np.zeros(corners), A_eq=system, b_eq=[*point.double().tolist(), 1.0])
        assert bool(inside) == (solved.status == 0)


@pytest.mark.parametrize(("dim", "corners"), [(2, 40), (3, 60), (4, 60)])
def test_points_outside_by_two_thousandths_are_found_outside_by_default(dim, corners):
    """Plain gradients without acceleration need more steps than the default."""
    generator = torch.Generator().manual_seed(0)
    vertices = torch.randn(corners, dim, generator=generator, dtype=torch.float64)
    directions = torch.randn(60, dim, generator=generator, dtype=torch.float64)
    directions /= directions.norm(dim=1, keepdim=True)
    heights = directions @ vertices.T
    edges = vertices[heights.topk(2, dim=1).indices].mean(dim=1)  # middles of two vertices near a supporting plane
    gap = 0.002 * (vertices[:, None] - vertices).norm(dim=2).max()
    outward = heights.amax(dim=1) - (edges * directions).sum(dim=1) + gap
    assert not in_hull(edges + outward[:, None] * directions, vertices).any()


def test_a_hull_of_one_point_holds_that_point_alone():
    assert in_hull(torch.tensor([[1.0, 2.0], [1.0, 2.1]]), torch.tensor([[1.0, 2.0]])).tolist() == [True, False]


def test_overlap_is_the_fraction_of_points():
    points = torch.tensor([[0.5, 0.5], [0.9, 0.9], [1.5, 1.5], [3.0, 3.0]])
    labels = torch.tensor([0, 0, 1, 1])
    overlap = hull_overlap(points, labels, [SQUARE, SQUARE + 0.8])
    assert overlap.tolist() == [0.5, 0.0]
    assert hull_overlap(points, labels, [SQUARE, SQUARE + 0.8, SQUARE]).tolist() == [1.0, 0.0, 0.0]
    assert hull_overlap(points, labels, [SQUARE, SQUARE + 0.8, SQUARE[:0]]).tolist() == [0.5, 0.0, 0.0]
