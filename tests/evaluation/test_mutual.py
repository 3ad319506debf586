"""A set searched in itself: the shared half of the products proposes the same neighbours as all of them."""

import brute_retrieval as brute
import pytest
import torch

from winnow.evaluation import evaluate_retrieval, mutual


@pytest.mark.parametrize(("count", "width"), [(64, 3), (150, 9), (129, 16)])
def test_candidates_are_the_nearest_of_all_pairs(count, width, monkeypatch):
    monkeypatch.setattr(mutual, "TILE", 64)
    points = torch.randn(count, 5, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    squares, places = mutual.mutual_candidates(points, points.square().sum(dim=1), width)
    wanted = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()
    torch.testing.assert_close(squares, wanted.gather(1, places), rtol=0, atol=1e-12)
    torch.testing.assert_close(squares.sort().values, wanted.sort().values[:, :width], rtol=0, atol=1e-12)
    assert all(len(set(row)) == width for row in places.tolist())


@pytest.mark.parametrize("grid", [False, True])
@pytest.mark.parametrize("classes", [40, 2])
def test_the_result_is_that_of_a_search_of_queries_in_references(grid, classes, monkeypatch):
    used = []

    def told(points, norms, width):
        used.append(width)
        return real(points, norms, width)

    real = mutual.mutual_candidates
    monkeypatch.setattr(mutual, "mutual_candidates", told)
    generator = torch.Generator().manual_seed(classes)
    labels = torch.randint(classes, (300,), generator=generator)
    labels[:3] = 77  # shallow queries beside deep ones
    rows = torch.randn(300, 4, generator=generator) + torch.randn(80, 4, generator=generator)[labels]
    if grid:
        rows = rows.round() + 2.0**-10 * torch.randn(300, 4, generator=generator).sign()  # nearly all distances tie
    apart = evaluate_retrieval(rows, labels, keep=6, ks=(1, 2, 30))
    assert not used  # a set of less than a tile
    monkeypatch.setattr(mutual, "TILE", 64)
    together = evaluate_retrieval(rows, labels, keep=6, ks=(1, 2, 30))
    assert bool(used) == (classes == 40)
    assert torch.equal(together.neighbours, apart.neighbours)
    assert torch.equal(together.distances, apart.distances)
    for name, values in apart.per_query.items():
        assert torch.equal(together.per_query[name], values), name
    wanted, _ = brute.metrics(rows.numpy(), labels.numpy(), ks=(1, 2, 30))
    assert together.metrics() == pytest.approx(wanted, abs=1e-12)
