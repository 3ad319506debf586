r"""What average pooling does: it maps an image to a convex combination of prototypes of its local features.

With prototypes $\nu_1..\nu_m$ that cover all local features within $\delta$, and the histogram $p^*$ of an image's
features over their nearest prototypes,

$$\lVert \sum_i p^*_i \nu_i - \tfrac1n \sum_j x_j \rVert_2
  \le \tfrac1n \sum_j \lVert \nu_{x_j} - x_j \rVert_2 \le \delta .$$

So every image lies, within $\delta$, in the convex hull of the prototypes its class makes use of, and classes that
share prototypes have hulls that overlap. Reference: chapter 4 of the thesis (Definition 4.2.1, Proposition 4.2.1, whose
squared norm asks for less than the above where $\delta$ is below 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from winnow.functional.hulls import hull_overlap
from winnow.functional.kcentre import covering_radius, greedy_k_centre


def prototype_histogram(features: Tensor, prototypes: Tensor) -> Tensor:
    r"""Return how an image's local features spread over prototypes, each counted with the nearest.

    $$p^*_i = \tfrac1n \#\{ j : i = \arg\min_k \lVert \nu_k - x_j \rVert_2 \}$$

    Args:
        features: (B, n, d).
        prototypes: (m, d).

    Returns:
        (B, m), each row summing to one.
    """
    nearest = torch.cdist(features, prototypes, compute_mode="donot_use_mm_for_euclid_dist").argmin(dim=2)
    counts = torch.zeros(len(features), len(prototypes), dtype=features.dtype, device=features.device)
    return counts.scatter_add(1, nearest, torch.ones_like(nearest, dtype=features.dtype)) / features.shape[1]


@dataclass(frozen=True)
class AveragePooling:
    """What average pooling makes of some images.

    Attributes:
        prototypes: (m, d) local features that cover all of them.
        radius: How well: no local feature is farther from its nearest prototype.
        histograms: (N, m) each image's.
        averages: (N, d) the means of its local features (GAP).
        combinations: (N, d) the prototypes weighed by its histogram (PCC).
        active: (C, m) bool, the prototypes that a class makes use of.
        overlap: (C,) share of each class's images that lie in the hull of another class's active prototypes.
    """

    prototypes: Tensor
    radius: float
    histograms: Tensor
    averages: Tensor
    combinations: Tensor
    active: Tensor
    overlap: Tensor

    @property
    def errors(self) -> Tensor:
        """(N,) distances of averages and combinations, none of which is above the radius."""
        errors: Tensor = torch.linalg.vector_norm(self.averages - self.combinations, dim=1)
        return errors

    @property
    def shared(self) -> float:
        """The share of active prototypes that more than one class makes use of."""
        users = self.active.sum(dim=0)
        return float((users > 1).sum() / (users > 0).sum().clamp(min=1))


def analyse_average_pooling(
    features: Tensor, labels: Tensor, prototypes: int = 48, *, active: float = 0.01
) -> AveragePooling:
    """Find prototypes of a model's local features, and what average pooling is in terms of them.

    Args:
        features: (N, n, d) the local features of N images, from any model: what it would average.
        labels: (N,) classes from 0 to C - 1.
        prototypes: How many, picked among all local features by greedy k-centre.
        active: A class makes use of a prototype if at least this share of its local features is nearest to it.
    """
    if features.dim() != 3 or len(features) != len(labels):
        raise ValueError(f"features must be (N, n, d) with N labels, got {tuple(features.shape)} and {len(labels)}")
    points = features.flatten(0, 1)
    chosen = points[greedy_k_centre(points, prototypes)]
    histograms = prototype_histogram(features, chosen)
    averages = features.mean(dim=1)
    member = torch.nn.functional.one_hot(labels.long()).to(features.dtype)
    of_class = member.mT @ histograms / member.sum(dim=0).clamp(min=1)[:, None]
    used = of_class >= active
    overlap = hull_overlap(averages, labels, [chosen[row] for row in used])
    radius = float(covering_radius(points, chosen))
    return AveragePooling(chosen, radius, histograms, averages, histograms @ chosen, used, overlap)
