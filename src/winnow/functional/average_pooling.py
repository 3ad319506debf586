r"""Analysis of average pooling as a convex combination of prototypes.

Let prototypes $\nu_1..\nu_m$ cover all local features within $\delta$, and let $p^*$ be the histogram of the features
of an image over their nearest prototypes. Then

$$\lVert \sum_i p^*_i \nu_i - \tfrac1n \sum_j x_j \rVert_2
  \le \tfrac1n \sum_j \lVert \nu_{x_j} - x_j \rVert_2 \le \delta .$$

So each image lies within $\delta$ of the convex hull of the prototypes that its class uses, and the hulls of classes
that share prototypes overlap.

Reference: [Thesis], chapter 4, Definition 4.2.1 and Proposition 4.2.1. The proposition bounds the squared norm, which
is weaker than the bound above where $\delta$ is below 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from winnow.functional.distances import check_tensor
from winnow.functional.hulls import hull_overlap
from winnow.functional.k_center import covering_radius, greedy_k_center


def prototype_histogram(features: Tensor, prototypes: Tensor) -> Tensor:
    r"""Compute each image's histogram of local features over nearest prototypes.

    $$p^*_i = \tfrac1n \#\{ j : i = \arg\min_k \lVert \nu_k - x_j \rVert_2 \}$$

    Args:
        features: (B, n, d).
        prototypes: (m, d).

    Returns:
        (B, m), each row summing to one.
    """
    check_tensor(features, "features", "(B, n, d)", 3)
    check_tensor(prototypes, "prototypes", "(m, d)", 2)
    nearest = torch.cdist(features, prototypes, compute_mode="donot_use_mm_for_euclid_dist").argmin(dim=2)
    counts = torch.zeros(len(features), len(prototypes), dtype=features.dtype, device=features.device)
    return counts.scatter_add(1, nearest, torch.ones_like(nearest, dtype=features.dtype)) / features.shape[1]


@dataclass(frozen=True)
class AveragePooling:
    """Average pooling of N images in terms of prototypes of their local features."""

    prototypes: Tensor
    """(m, d) coreset of all local features."""
    radius: float
    """Covering radius: largest distance of a local feature to its nearest prototype."""
    histograms: Tensor
    """(N, m) histogram of each image."""
    averages: Tensor
    """(N, d) means of the local features (GAP)."""
    combinations: Tensor
    """(N, d) prototypes weighted by the histogram."""
    active: Tensor
    """(C, m) bool, the prototypes that each class uses."""
    overlap: Tensor
    """(C,) fraction of the images of each class in the hull of the active prototypes of another class."""

    @property
    def errors(self) -> Tensor:
        """(N,) distances between averages and combinations; none is above the radius."""
        errors: Tensor = torch.linalg.vector_norm(self.averages - self.combinations, dim=1)
        return errors

    @property
    def shared(self) -> float:
        """Fraction of the active prototypes that more than one class uses."""
        users = self.active.sum(dim=0)
        return float((users > 1).sum() / (users > 0).sum().clamp(min=1))


def analyze_average_pooling(
    features: Tensor, labels: Tensor, num_prototypes: int = 48, *, active: float = 0.01
) -> AveragePooling:
    """Select prototypes of local features and express average pooling by them.

    Args:
        features: (N, n, d) local features of N images, the input of average pooling in any model.
        labels: (N,) class labels in 0..C-1.
        num_prototypes: Number of prototypes, selected among all local features by greedy k-center.
        active: A class uses a prototype if it is nearest to at least this fraction of the local features of the class.

    Raises:
        TypeError: If `features` is not a floating-point tensor.
        ValueError: If the shapes do not match.
    """
    check_tensor(features, "features", "(N, n, d)", 3)
    if len(features) != len(labels):
        raise ValueError(f"labels: expected {len(features)} labels, one per image of features, got {len(labels)}.")
    points = features.flatten(0, 1)
    prototypes = points[greedy_k_center(points, num_prototypes)]
    histograms = prototype_histogram(features, prototypes)
    averages = features.mean(dim=1)
    member = torch.nn.functional.one_hot(labels.long()).to(features.dtype)
    of_class = member.mT @ histograms / member.sum(dim=0).clamp(min=1)[:, None]
    used = of_class >= active
    overlap = hull_overlap(averages, labels, [prototypes[row] for row in used])
    radius = float(covering_radius(points, prototypes))
    return AveragePooling(prototypes, radius, histograms, averages, histograms @ prototypes, used, overlap)
