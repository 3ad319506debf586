"""Contrastive losses: on cosine similarity, on distance, with a trained boundary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from winnow.functional.pairs import Pairs, check_class_labels
from winnow.losses.base import Mining, Normalization, PairLoss, mean_nonzero


class CosineContrastiveLoss(PairLoss):
    r"""Contrastive loss on cosine similarity, as used with cross-batch memory (C1).

    $$L = \frac1Q \sum_q \Big( \sum_{r \in P_q} [1 - \delta - s_{qr}]_+ + \sum_{r \in N_q} [s_{qr} - m]_+ \Big),
      \qquad \delta = 10^{-5}$$

    The gap $\delta$ excludes pairs of identical embeddings.

    Reference: Wang et al., "Cross-Batch Memory for Embedding Learning", CVPR 2020; Hadsell, Chopra, LeCun, CVPR 2006.

    Use when: references come from a memory (`references=memory`), as in the paper. The loss sums over pairs and grows
    with the number of references. Near convergence only negatives above the margin contribute.

    Differences: [Thesis] calls this loss C1. PML: `ContrastiveLoss(pos_margin=1, neg_margin=0.5,
    distance=CosineSimilarity())` averages over the pairs above zero, positives and negatives apart; this loss divides
    the sum by the number of queries.

    Args:
        neg_margin: Similarity above which a negative pair has a loss, in [-1, 1).
        normalize: Normalization before comparison: "unit", "ball", None, or a function.
        miner: Selects the pairs to compare. None compares all pairs.
    """

    aliases: ClassVar[Mapping[str, str]] = {"margin": "neg_margin"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cub": {"neg_margin": 0.5},
        "cars": {"neg_margin": 0.5},
        "sop": {"neg_margin": 0.5},
        "inshop": {"neg_margin": 0.5},
    }

    def __init__(
        self, *, neg_margin: float = 0.5, normalize: Normalization = "unit", miner: Mining | None = None
    ) -> None:
        super().__init__(normalize=normalize, miner=miner)
        self.neg_margin = neg_margin

    def compute_loss(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""
        s = pairs.similarities()
        attract = (1 - 1e-5 - s).relu() * pairs.positives
        repel = (s - self.neg_margin).relu() * pairs.negatives
        return (attract.sum() + repel.sum()) / max(len(pairs.queries), 1)


class ContrastiveLoss(PairLoss):
    r"""Contrastive loss on Euclidean distances with positive and negative margins (C2).

    $$L = \operatorname{mean}_{+} [d_{qr} - m_+]_+ + \operatorname{mean}_{-} [m_- - d_{qr}]_+$$

    Each mean is over the pairs of its kind with a term above 1e-5. $d$ is the distance of L2-normalized embeddings, in
    [0, 2].

    Reference: Hadsell, Chopra, LeCun, CVPR 2006; margins as in Wu et al., "Sampling Matters in Deep Embedding
    Learning", ICCV 2017, with $m_\pm = \beta \mp \alpha$.

    Use when: you need a simple, strong baseline. Tune both margins per dataset. Keep `neg_margin` near 1 with a frozen
    backbone or with CCP: that is about the distance of classes in a pretrained network.

    Differences: [Thesis] calls this loss C2; its margins are the presets. PML `ContrastiveLoss(pos_margin, neg_margin)`
    averages terms above 0 instead of 1e-5 and is equal otherwise.

    Args:
        pos_margin: Distance below which a positive pair has zero loss, in [0, 2).
        neg_margin: Distance above which a negative pair has zero loss, in (0, 2].
        normalize: Normalization before comparison: "unit", "ball", None, or a function.
        miner: Selects the pairs to compare. None compares all pairs.
    """

    aliases: ClassVar[Mapping[str, str]] = {"positive_margin": "pos_margin", "negative_margin": "neg_margin"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cub": {"pos_margin": 0.0, "neg_margin": 0.3841},
        "cars": {"pos_margin": 0.2652, "neg_margin": 0.5409},
        "sop": {"pos_margin": 0.2858, "neg_margin": 0.5130},
        "inshop": {"pos_margin": 0.2858, "neg_margin": 0.5130},
    }

    def __init__(
        self,
        *,
        pos_margin: float = 0.0,
        neg_margin: float = 1.0,
        normalize: Normalization = "unit",
        miner: Mining | None = None,
    ) -> None:
        super().__init__(normalize=normalize, miner=miner)
        self.pos_margin = pos_margin
        self.neg_margin = neg_margin

    def compute_loss(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""
        d = pairs.distances()
        attract = (d - self.pos_margin).relu() * pairs.positives
        repel = (self.neg_margin - d).relu() * pairs.negatives
        return mean_nonzero(attract) + mean_nonzero(repel)


class MarginLoss(PairLoss):
    r"""Margin loss: positives below and negatives above a trainable boundary.

    $$L = \operatorname{mean}_{+} \big( [d_{qp} - \beta + \alpha]_+,\; [\beta + \alpha - d_{qn}]_+ \big) + \nu \beta$$

    One mean covers the terms above zero of both kinds; $\alpha$ is the margin. With a boundary per class, a pair uses
    $\beta_{y_q}$ of its query's class, and $\nu$ weights the mean of all boundaries.

    Reference: Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017.

    Use when: the right distance between classes is unknown. The paper draws negatives by distance:
    `miner=distance_weighted`. Boundaries learn slowly at the rate of the network:
    `train.lr_multipliers={'loss.beta': 100}` speeds them up.

    Differences: without a miner all pairs count, where the paper samples negatives. PML `MarginLoss(margin, nu, beta,
    num_classes)` counts a pair once per triplet it is in, and trains $\beta$ only with `learn_beta=True`.

    Args:
        num_classes: Number of classes C. In Python it gives each class its own boundary; labels are then 0 .. C - 1.
        margin: Distance from the boundary at which positives and negatives no longer contribute.
        beta: Initial distance of the boundary, which is trained.
        nu: Weight of the boundary itself, which keeps it from growing.
        per_class: Whether each class has its own boundary. The config default is false.
        normalize: Normalization before comparison: "unit", "ball", None, or a function.
        miner: Selects the pairs to compare. None compares all pairs.

    Raises:
        ValueError: If `per_class` is true and `num_classes` is missing.
    """

    aliases: ClassVar[Mapping[str, str]] = {"alpha": "margin"}
    setting_defaults: ClassVar[Mapping[str, Any]] = {"per_class": False}
    """Defaults in a config, where the number of classes is always available."""

    def __init__(
        self,
        num_classes: int | None = None,
        *,
        margin: float = 0.2,
        beta: float = 1.2,
        nu: float = 0.0,
        per_class: bool | None = None,
        normalize: Normalization = "unit",
        miner: Mining | None = None,
    ) -> None:
        super().__init__(normalize=normalize, miner=miner)
        if per_class and num_classes is None:
            raise ValueError("num_classes: required for a boundary per class. Pass the number of training classes.")
        self.per_class = num_classes is not None if per_class is None else per_class
        self.margin, self.nu = margin, nu
        shape = (num_classes,) if self.per_class and num_classes else ()
        self.beta = nn.Parameter(torch.full(shape, float(beta)))

    def compute_loss(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""
        d = pairs.distances()
        beta = self.beta.to(d.dtype)
        if self.per_class:
            check_class_labels(pairs.labels, len(beta))
        boundary = beta[pairs.labels, None] if self.per_class else beta
        attract = (d - boundary + self.margin).relu() * pairs.positives
        repel = (boundary + self.margin - d).relu() * pairs.negatives
        active = (attract > 0).sum() + (repel > 0).sum()
        return (attract.sum() + repel.sum()) / active.clamp(min=1) + self.nu * beta.mean()
