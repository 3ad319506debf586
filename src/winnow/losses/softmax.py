"""Losses with a soft maximum: multi-similarity, N-pairs, supervised contrastive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from winnow.functional.pairs import Pairs
from winnow.losses.base import Mining, Normalization, PairLoss


class MultiSimilarityLoss(PairLoss):
    r"""Multi-similarity loss over all pairs.

    $$L = \frac1Q \sum_q \Big( \tfrac1\alpha \log\big(1 + \sum_{r \in P_q} e^{-\alpha (s_{qr} - \lambda)}\big)
        + \tfrac1\beta \log\big(1 + \sum_{r \in N_q} e^{\beta (s_{qr} - \lambda)}\big) \Big)$$

    Reference: Wang et al., "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning", CVPR 2019.

    Use when: you start. The loss weights pairs by their error, so it needs no miner and trains well on small batches
    with a few images per class. Its defaults transfer between datasets better than margins.

    Differences: the paper mines pairs first; here all pairs count. Equal to PML `MultiSimilarityLoss(alpha, beta,
    base)`, whose default `beta` is 50.

    Args:
        alpha: Sharpness over positive pairs, above 0.
        beta: Sharpness over negative pairs, above 0.
        base: Similarity lambda between the two kinds of pairs, in [-1, 1].
        normalize: Normalization before comparison: "unit", "ball", None, or a function.
        miner: Selects the pairs to compare. None compares all pairs.
    """

    aliases: ClassVar[Mapping[str, str]] = {"threshold": "base"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cub": {"alpha": 2.0, "beta": 40.0, "base": 0.5},
        "cars": {"alpha": 14.35, "beta": 75.83, "base": 0.66},
        "sop": {"alpha": 2.0, "beta": 40.0, "base": 0.5},
        "inshop": {"alpha": 8.49, "beta": 57.38, "base": 0.41},
    }

    def __init__(
        self,
        *,
        alpha: float = 2.0,
        beta: float = 40.0,
        base: float = 0.5,
        normalize: Normalization = "unit",
        miner: Mining | None = None,
    ) -> None:
        super().__init__(normalize=normalize, miner=miner)
        self.alpha, self.beta, self.base = alpha, beta, base

    def compute_loss(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""
        s = pairs.similarities() - self.base
        attract = log_one_plus_sum_exp(-self.alpha * s, pairs.positives) / self.alpha
        repel = log_one_plus_sum_exp(self.beta * s, pairs.negatives) / self.beta
        return (attract + repel).sum() / max(len(pairs.queries), 1)


class NPairsLoss(PairLoss):
    r"""N-pairs loss: a positive must be more similar than all negatives together.

    $$L = \operatorname{mean}_{q,\, p \in P_q} \log\Big(1 + \sum_{n \in N_q} e^{\lambda (s_{qn} - s_{qp})}\Big)$$

    The mean is over the positive pairs of queries that have a negative. With $\lambda = 1/T$ this is InfoNCE.

    Reference: Sohn, "Improved Deep Metric Learning with Multi-class N-pair Loss Objective", NeurIPS 2016.

    Use when: batches have very many classes with two images each, such as pairs of a photo and its match.

    Differences: the paper compares vectors of any length; the scale replaces their length here. PML `NPairsLoss` takes
    one pair per class and vectors of any length. Equal to PML `NTXentLoss(temperature=1 / scale)`, which accepts
    several positives per query too.

    Args:
        scale: Factor lambda on similarities, above 0; the inverse of a temperature.
        normalize: Normalization before comparison: "unit", "ball", None, or a function.
        miner: Selects the pairs to compare. None compares all pairs.
    """

    def __init__(self, *, scale: float = 16.0, normalize: Normalization = "unit", miner: Mining | None = None) -> None:
        super().__init__(normalize=normalize, miner=miner)
        self.scale = scale

    def compute_loss(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""
        h = self.scale * pairs.similarities()
        if h.shape[1] == 0:
            return h.sum()
        complete = pairs.negatives.any(dim=1, keepdim=True)
        # A query without a negative takes all references, so no sum is empty. Its pairs are not counted.
        repel = h.masked_fill(~(pairs.negatives | ~complete), -torch.inf).logsumexp(dim=1, keepdim=True)
        counted = pairs.positives & complete
        terms = torch.nn.functional.softplus(repel - h) * counted
        return terms.sum() / counted.sum().clamp(min=1)


class SupConLoss(PairLoss):
    r"""Supervised contrastive loss: each positive against all other references.

    $$L = \operatorname{mean}_q \frac{1}{|P_q|} \sum_{p \in P_q} -\log
        \frac{e^{s_{qp} / T}}{\sum_{r \in P_q \cup N_q} e^{s_{qr} / T}}$$

    The first mean is over the queries that have a positive. The positives of a query compete with each other, unlike in
    the N-pairs loss.

    Reference: Khosla et al., "Supervised Contrastive Learning", NeurIPS 2020, equation 2.

    Use when: batches are large, with several images per class. Training from scratch takes lower temperatures than
    fine-tuning.

    Differences: the paper contrasts two augmented copies of each image. Equal to PML `SupConLoss(temperature)`.

    Args:
        temperature: Temperature T of the softmax, above 0.
        normalize: Normalization before comparison: "unit", "ball", None, or a function.
        miner: Selects the pairs to compare. None compares all pairs.

    Raises:
        ValueError: If the temperature is not above 0.
    """

    def __init__(
        self, *, temperature: float = 0.1, normalize: Normalization = "unit", miner: Mining | None = None
    ) -> None:
        super().__init__(normalize=normalize, miner=miner)
        if temperature <= 0:
            raise ValueError(f"temperature: expected a value above 0, got {temperature}. The paper uses 0.1.")
        self.temperature = temperature

    def compute_loss(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""
        h = pairs.similarities() / self.temperature
        if h.shape[1] == 0:
            return h.sum()
        count = pairs.positives.sum(dim=1)
        complete = count > 0
        # A query without a positive takes all references, so no sum is empty. It is not counted.
        either = pairs.positives | pairs.negatives | ~complete[:, None]
        total = h.masked_fill(~either, -torch.inf).logsumexp(dim=1)
        terms = (total - (h * pairs.positives).sum(dim=1) / count.clamp(min=1)) * complete
        return terms.sum() / complete.sum().clamp(min=1)


def log_one_plus_sum_exp(values: Tensor, mask: Tensor) -> Tensor:
    r"""Return $\log(1 + \sum_{j: \text{mask}} e^{x_{ij}})$ per row, 0 for an empty one."""
    return pad(values.masked_fill(~mask, -torch.inf), (1, 0)).logsumexp(dim=1)
