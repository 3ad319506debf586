"""Average pooling as a combination of prototypes: histograms, the bound per image, and hulls of classes."""

import pytest
import torch

from winnow.functional import analyze_average_pooling, prototype_histogram


def test_the_histogram_is_a_count_of_nearest_prototypes():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(3, 10, 4, generator=generator, dtype=torch.float64)
    prototypes = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    found = prototype_histogram(features, prototypes)
    for image, row in zip(features, found, strict=True):
        counts = [0] * 5
        for feature in image:
            counts[min(range(5), key=lambda i: float((feature - prototypes[i]).norm()))] += 1
        assert row.tolist() == pytest.approx([count / 10 for count in counts])


@pytest.mark.parametrize("dim", [2, 16])
def test_no_image_is_farther_from_its_combination_than_the_radius(dim):
    generator = torch.Generator().manual_seed(dim)
    features = torch.randn(12, 20, dim, generator=generator, dtype=torch.float64)
    found = analyze_average_pooling(features, torch.arange(12) % 3, num_prototypes=30)
    distances = (features.flatten(0, 1)[:, None] - found.prototypes[None]).norm(dim=2)
    assert found.radius == pytest.approx(float(distances.min(dim=1).values.max()))
    assert (found.errors <= found.radius).all()
    assert torch.allclose(found.averages, features.mean(dim=1))
    assert torch.allclose(found.histograms.sum(dim=1), torch.ones(12, dtype=torch.float64))
    every = analyze_average_pooling(features[:2], torch.tensor([0, 1]), num_prototypes=40)
    assert every.radius == 0
    assert float(every.errors.max()) < 1e-12


def test_classes_that_share_no_prototype_do_not_overlap():
    corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    apart = torch.stack([corners, corners + 0.01, corners + 10, corners + 10.01])
    labels = torch.tensor([0, 0, 1, 1])
    found = analyze_average_pooling(apart, labels, num_prototypes=6)
    assert found.shared == 0
    assert found.overlap.tolist() == [0, 0]
    assert found.active.sum(dim=1).tolist() == [3, 3]
    mixed = analyze_average_pooling(torch.stack([corners, corners]), torch.tensor([0, 1]), num_prototypes=3)
    assert mixed.shared == 1
    assert mixed.overlap.tolist() == [1, 1]


def test_a_class_without_images_or_without_an_active_prototype_has_no_hull():
    line = torch.arange(8.0)[:, None] * torch.tensor([1.0, 0.5])
    found = analyze_average_pooling(line[None].repeat(2, 1, 1), torch.tensor([0, 2]), num_prototypes=8)
    assert found.overlap.tolist() == [1, 0, 1]
    spread = analyze_average_pooling(line[None], torch.tensor([0]), num_prototypes=8, active=0.2)  # 1/8 on each
    assert not spread.active.any()
    least = analyze_average_pooling(line[None], torch.tensor([0]), num_prototypes=8, active=0.125)
    assert least.active.all()
    assert spread.overlap.tolist() == [0]


def test_a_missing_label_raises():
    with pytest.raises(ValueError, match="labels"):
        analyze_average_pooling(torch.zeros(2, 3, 4), torch.zeros(3))
