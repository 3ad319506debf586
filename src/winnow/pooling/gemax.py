"""Generalized max pooling."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.functional import Pooled
from winnow.pooling.base import Pooling, counted, shares, uniform_weights, weighted_sum


def generalized_max(features: Tensor, ridge: float, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    r"""Return the vector that is as similar to every feature as to any other, and the features' coefficients.

    $$g = \arg\min_g \sum_j (f_j^\top g - 1)^2 + \lambda \lVert g \rVert^2 = \sum_j \alpha_j f_j, \qquad
      \alpha = (F F^\top + \lambda I)^{-1} 1$$

    It is solved in the smaller of the two dimensions: $g = (F^\top F + \lambda I)^{-1} F^\top 1$ and
    $\alpha_j = (1 - f_j^\top g) / \lambda$ are the same.

    Args:
        features: F, (B, n, d) float32 or float64, zero where masked.
        ridge: lambda, above 0.
        mask: (B, n) bool, true for the features that count; default all.

    Returns:
        (B, d) and (B, n).
    """
    images, n, d = features.shape
    # Long features make the matrix so ill-conditioned beside a ridge of 1 that float32 would leave few digits.
    f = features.double()
    ones = f.new_ones(images, n) if mask is None else mask.double()
    if n <= d:
        alpha = _solve(f @ f.mT, ridge, ones)
        g = weighted_sum(f, alpha)
    else:
        g = _solve(f.mT @ f, ridge, weighted_sum(f, ones))
        alpha = ones * (1 - (f @ g[:, :, None]).squeeze(2)) / ridge
    return g.to(features.dtype), alpha.to(features.dtype)


def _solve(gram: Tensor, ridge: float, right: Tensor) -> Tensor:
    gram = gram + ridge * torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    # cholesky_ex, because cholesky would wait for the device only to check what ridge > 0 guarantees.
    root = torch.linalg.cholesky_ex(gram).L
    half = torch.linalg.solve_triangular(root, right[:, :, None], upper=False)
    solution: Tensor = torch.linalg.solve_triangular(root.mT, half, upper=True)
    return solution.squeeze(2)


class GeMax(Pooling):
    r"""Generalized max pooling: frequent features are weighed down until all are equally similar to the vector.

    $$g = \sum_j \alpha_j f_j, \qquad \alpha = (F F^\top + \lambda I)^{-1} 1$$

    where F has the features as rows. Coefficients may be negative; weights are the shares of the positive ones.

    Reference: Murray and Perronnin, "Generalized Max Pooling", CVPR 2014.

    Args:
        ridge: Penalty lambda; as it grows the vector turns into the direction of the average.
    """

    def __init__(self, *, ridge: float = 1.0) -> None:
        super().__init__()
        if not ridge > 0:
            raise ValueError(f"the ridge of GeMax must be above 0, got {ridge}")
        self.ridge = ridge

    def pool(self, features: Tensor, mask: Tensor | None) -> Pooled:
        """Pool tokens (B, n, d)."""
        x = counted(features, mask)
        pooled, alpha = generalized_max(x, self.ridge, mask)
        return Pooled(pooled.to(features.dtype), shares(alpha.clamp(min=0), uniform_weights(x, mask)), None)
