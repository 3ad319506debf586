"""Hard mining."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from winnow.losses import Pairs
from winnow.mining.base import Mining, largest


class Hard(Mining):
    r"""The nearest negatives of a query, as many as it has positives.

    $$P'_q = P_q \;\text{ or }\; \big\{ \arg\max_{p \in P_q} d_{qp} \big\}, \qquad
      N'_q = \text{the } |P'_q| \text{ nearest of } N_q$$

    With the farthest positive alone, and so the nearest negative alone, this is "batch hard". The documents' code,
    which uses it nowhere, takes for every query as many negatives as the query with the most positives has.

    When to use it: late in training or with a triplet loss on small batches, where most negatives are satisfied.
    Early on the hardest negatives are often mislabelled or look alike, and the embeddings may collapse to one point:
    prefer `semi_hard` or `distance_weighted` there.

    Reference: Hermans, Beyer and Leibe, "In Defense of the Triplet Loss for Person Re-Identification", 2017.

    Args:
        positives: Whether "all" positives of a query remain, or the "hardest" alone.
    """

    def __init__(self, *, positives: Literal["all", "hardest"] = "all") -> None:
        super().__init__()
        self.positives = positives

    def choose(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return which positives and which negatives remain."""
        d = pairs.distances()
        positives = pairs.positives
        if self.positives == "hardest":
            positives = largest(d, positives, torch.ones_like(pairs.labels))
        return positives, largest(-d, pairs.negatives, positives.sum(dim=1))
