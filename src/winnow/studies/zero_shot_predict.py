"""Class embeddings predicted from the attributes of other classes, over many splits of the classes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from winnow.losses.zero_shot import ridge_regression

HALF = 5  # classes to fit on, and as many to predict


def draw_splits(classes: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return, for each of some splits, classes (count, 5) to fit on and as many others to predict."""
    order = torch.rand(count, classes, generator=generator).argsort(dim=1)
    half = min(HALF, classes // 2)
    return order[:, :half], order[:, half : 2 * half]


def class_rows(rows: Tensor, labels: Tensor) -> Tensor:
    """Return the mean (C, d) of the rows (N, d) of each class."""
    mates = labels == torch.arange(int(labels.max()) + 1)[:, None]
    return (mates.double() @ rows.double()) / mates.sum(dim=1, keepdim=True)


def predict(attributes: Tensor, embeddings: Tensor, fit: Tensor, others: Tensor, ridge: float) -> dict[str, Tensor]:
    r"""Predict class embeddings from attributes, and look for the nearest among the true ones.

    $$A = \arg\min_A \lVert Z_b A - Y_b \rVert^2 + \epsilon \lVert A \rVert^2, \qquad
      \hat y_c = A^\top z_c \;\text{ for } c \notin b$$

    Reference: problem (P3) of the documents, and section 5.3.3 of 003.

    Args:
        attributes: Z, (C, m), a row for each class.
        embeddings: Y, (C, d), the classes' mean embeddings.
        fit: (S, k) the classes b of each split.
        others: (S, l) those that are predicted.
        ridge: epsilon.

    Returns:
        For "L2" and "cosine" the share (S,) of predictions that are nearest to the embedding of their own class.
    """
    predictors = ridge_regression(attributes[fit], embeddings[fit], ridge)
    predicted, true = attributes[others] @ predictors, embeddings[others]
    distances = {
        "L2": torch.cdist(predicted, true),
        "cosine": 1 - normalize(predicted, dim=2) @ normalize(true, dim=2).mT,
    }
    own = torch.arange(others.shape[1])
    return {name: (each.argmin(dim=2) == own).double().mean(dim=1) for name, each in distances.items()}
