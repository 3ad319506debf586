"""Triplet loss over all triplets, without holding them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from winnow.losses.base import PairLoss
from winnow.losses.pairs import Pairs


class Triplet(PairLoss):
    r"""Triplet loss over all triplets, averaged over those above zero.

    $$L = \operatorname{mean}_{+} [d_{qp} - d_{qn} + m]_+, \qquad p \in P_q,\; n \in N_q$$

    The Q R R terms are never formed: with a query's negatives sorted by distance, the negatives inside
    $t = d_{qp} + m$ are a prefix of length $k$, and their terms sum to $k\,t - \sum_{i \le k} d_{(i)}$. Memory is
    that of the distance matrix.

    When to use it: where only the order of distances matters, not their size, as in ranking. Learning slows once most
    triplets are satisfied; larger batches, a memory or `mining=semi_hard` keep it going.

    Reference: Schroff, Kalenichenko and Philbin, "FaceNet", CVPR 2015.

    Args:
        margin: By how much a negative must be farther than a positive.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cub": {"margin": 0.0961},
        "cars": {"margin": 0.1190},
        "sop": {"margin": 0.0451},
        "inshop": {"margin": 0.0451},
    }

    def __init__(self, *, margin: float = 0.1) -> None:
        super().__init__()
        self.margin = margin

    def compare(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""
        d = pairs.distances()
        ordered = d.masked_fill(~pairs.negatives, torch.inf).sort(dim=1).values
        # prefix[:, k] is the sum of the k smallest negative distances; places past the last negative are never used.
        prefix = torch.nn.functional.pad(ordered.masked_fill(ordered.isinf(), 0.0).cumsum(dim=1), (1, 0))
        reach = d + self.margin
        k = torch.searchsorted(ordered.detach(), reach.detach().contiguous()) * pairs.positives
        terms = k * reach - prefix.gather(1, k)
        return terms.sum() / k.sum().clamp(min=1)
