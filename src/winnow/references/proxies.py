"""Trainable references: a few for each class."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from winnow.losses import PairLoss
from winnow.references.base import References


class Proxies(References):
    r"""Proxies: trainable vectors that stand for the classes.

    $$L = \ell(Q, R), \qquad R = \{\rho_{ck}\},\; c = 1..C,\; k = 1..K$$

    They usually learn faster than the network: `train.lr_multipliers={'references.proxies': 100}` is common.

    When to use it: where a batch holds one image of a class or few, and where every class should be seen at every
    step. Memory and time grow with the number of classes, moderately: 11,318 proxies are no burden.

    Reference: Movshovitz-Attias et al., "No Fuss Distance Metric Learning using Proxies", ICCV 2017.

    Args:
        num_classes: Training classes C; labels must be 0 .. C - 1.
        width: Size of the embeddings.
        per_class: Proxies K of each class.
    """

    labels: Tensor

    def __init__(self, num_classes: int, width: int, *, per_class: int = 1) -> None:
        super().__init__()
        if per_class < 1:
            raise ValueError(f"a class needs at least one proxy, got {per_class}")
        # Unit vectors in expectation: a loss normalises them, and the step size is relative to their length.
        self.proxies = nn.Parameter(torch.randn(num_classes * per_class, width) / width**0.5)
        self.register_buffer("labels", torch.arange(num_classes).repeat_interleave(per_class), persistent=False)

    def forward(self, loss: PairLoss, queries: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of the batch against all proxies."""
        value: Tensor = loss(queries, labels, self.proxies, self.labels)
        return value

    def centres(self) -> tuple[Tensor, Tensor]:
        """Return the proxies and their labels."""
        return self.proxies, self.labels
