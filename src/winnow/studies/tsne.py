"""t-SNE: points of many dimensions in the plane, for pictures."""

from __future__ import annotations

import torch
from torch import Tensor

EXAGGERATION, EARLY = 12.0, 100  # neighbours attract more in the first steps, so that clusters form
_BISECTIONS = 60


def tsne(points: Tensor, *, perplexity: float = 20.0, steps: int = 400) -> Tensor:
    r"""Place points in the plane so that neighbours stay neighbours.

    $$\min_Y \sum_{i \ne j} p_{ij} \log \frac{p_{ij}}{q_{ij}}, \qquad
      q_{ij} = \frac{(1 + \lVert y_i - y_j \rVert^2)^{-1}}{\sum_{k \ne l} (1 + \lVert y_k - y_l \rVert^2)^{-1}}$$

    Exact, with all pairs, so for some thousand points at most. It starts from the two principal directions, which
    leaves nothing to chance.

    Reference: van der Maaten and Hinton, "Visualizing Data using t-SNE", JMLR 2008.

    Args:
        points: (n, d), at least 4.
        perplexity: How many neighbours count; at most a third of the points.
        steps: Of gradient descent with momentum.

    Returns:
        (n, 2).
    """
    points = points.double()
    n = len(points)
    p = neighbourhoods(points, min(perplexity, (n - 1) / 3))
    centred = points - points.mean(dim=0)
    y: Tensor = centred @ torch.linalg.svd(centred, full_matrices=False)[2][:2].T
    y = 1e-4 * y / y.std(dim=0).clamp(min=1e-12)
    rate, speed, gains = max(n / EXAGGERATION / 4, 50.0), torch.zeros_like(y), torch.ones_like(y)
    for step in range(steps):
        slope = gradient(y, EXAGGERATION * p if step < EARLY else p)
        turned = (slope > 0) != (speed > 0)
        gains = torch.where(turned, gains + 0.2, gains * 0.8).clamp(min=0.01)
        speed = (0.5 if step < EARLY else 0.8) * speed - rate * gains * slope
        y = y + speed
    return y - y.mean(dim=0)


def neighbourhoods(points: Tensor, perplexity: float) -> Tensor:
    r"""Return how likely i and j are neighbours, (n, n), summing to 1.

    $$p_{ij} = \frac{p_{j|i} + p_{i|j}}{2n}, \qquad p_{j|i} \propto e^{-\beta_i \lVert x_i - x_j \rVert^2},
      \qquad \beta_i: 2^{H(p_{\cdot|i})} = \text{perplexity}$$
    """
    p = conditional(points, perplexity)
    return (p + p.T) / (2 * len(points))


def conditional(points: Tensor, perplexity: float) -> Tensor:
    """Return p of j given i, (n, n): the sharpness of each row is found by bisection."""
    squared = torch.cdist(points, points).square()
    squared = squared / squared.mean().clamp(min=1e-300)
    alone = torch.eye(len(points), dtype=torch.bool, device=points.device)
    low, high = (points.new_full((len(points), 1), edge) for edge in (-20.0, 20.0))  # of log beta
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        p = (-middle.exp() * squared).masked_fill(alone, -torch.inf).softmax(dim=1)
        entropy = torch.special.entr(p).sum(dim=1, keepdim=True)
        blunt = entropy > torch.tensor(perplexity, dtype=p.dtype).log()
        low, high = torch.where(blunt, middle, low), torch.where(blunt, high, middle)
    return p


def gradient(y: Tensor, p: Tensor) -> Tensor:
    r"""Return the gradient $4 \sum_j (p_{ij} - q_{ij}) (1 + \lVert y_i - y_j \rVert^2)^{-1} (y_i - y_j)$."""
    near = 1 / (1 + torch.cdist(y, y).square())
    near.fill_diagonal_(0.0)
    pull = (p - near / near.sum()) * near
    return 4 * (pull.sum(dim=1, keepdim=True) * y - pull @ y)
