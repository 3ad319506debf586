"""Classifier losses on cosines: normalized softmax and ArcFace."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from winnow.functional.pairs import Pairs
from winnow.losses.base import Mining, Normalization
from winnow.losses.proxy import ProxyLoss, cross_entropy_of_positives


class NormalizedSoftmaxLoss(ProxyLoss):
    r"""Normalized softmax: cross-entropy of a classifier on cosines.

    $$L = \operatorname{mean}_q -\log \frac{\sum_{r \in P_q} e^{s_{qr} / T}}{\sum_{r \in P_q \cup N_q} e^{s_{qr} / T}}$$

    The mean is over the queries that have a positive. The proxies are the rows of the classifier.

    Reference: Zhai, Wu, "Classification is a Strong Baseline for Deep Metric Learning", BMVC 2019.

    Use when: you need the plain baseline of classification. It accepts batches of random images. Proxies must learn
    faster than the network: `train.lr_multipliers={'references.proxies': 100}`.

    Differences: the paper adds layer normalization before the classifier and samples classes for SOP. Equal to PML
    `NormalizedSoftmaxLoss(temperature)` for unit vectors, and to `proxy_nca` with `similarity=dot`.

    Args:
        num_classes: Number of classes of own proxies; None for a loss that is called with `ref_emb`.
        embedding_size: Size of own proxies; None for a loss that is called with `ref_emb`.
        temperature: Temperature T of the softmax, above 0.
        proxies_per_class: Own proxies of each class, at least 1.
        normalize: Normalization before comparison: "unit", "ball", None, or a function.
        miner: Selects the pairs to compare. None compares all pairs.

    Raises:
        ValueError: If the temperature is not above 0.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        embedding_size: int | None = None,
        *,
        temperature: float = 0.05,
        proxies_per_class: int = 1,
        normalize: Normalization = "unit",
        miner: Mining | None = None,
    ) -> None:
        super().__init__(
            num_classes, embedding_size, proxies_per_class=proxies_per_class, normalize=normalize, miner=miner
        )
        if temperature <= 0:
            raise ValueError(f"temperature: expected a value above 0, got {temperature}. The paper uses 0.05.")
        self.temperature = temperature

    def compute_loss(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""
        return cross_entropy_of_positives(pairs.similarities() / self.temperature, pairs)


class ArcFaceLoss(ProxyLoss):
    r"""ArcFace: normalized softmax with a margin on the angle to the own class.

    $$L = \operatorname{mean}_q -\log \frac{\sum_{r \in P_q} e^{\lambda \cos(\theta_{qr} + m)}}
        {\sum_{r \in P_q} e^{\lambda \cos(\theta_{qr} + m)} + \sum_{r \in N_q} e^{\lambda \cos \theta_{qr}}}$$

    $\cos \theta_{qr} = s_{qr}$. Beyond $\theta = \pi - m$, where $\cos(\theta + m)$ would rise again, $\cos \theta - m
    \sin m$ replaces it. The mean is over the queries that have a positive.

    Reference: Deng et al., "ArcFace: Additive Angular Margin Loss for Deep Face Recognition", CVPR 2019.

    Use when: there are many classes and a classifier should separate them by a margin, as in faces and products. Lower
    the margin for few images per class. Proxies must learn faster than the network:
    `train.lr_multipliers={'references.proxies': 100}`.

    Differences: equal to PML `ArcFaceLoss(margin, scale)`, whose margin is in degrees. `margin=0` is the normalized
    softmax.

    Args:
        num_classes: Number of classes of own proxies; None for a loss that is called with `ref_emb`.
        embedding_size: Size of own proxies; None for a loss that is called with `ref_emb`.
        margin: Angle m in radians that is added to the angle of positives, in [0, pi).
        scale: Factor lambda on cosines, above 0; the inverse of a temperature.
        proxies_per_class: Own proxies of each class, at least 1.
        normalize: Normalization before comparison: "unit", "ball", None, or a function.
        miner: Selects the pairs to compare. None compares all pairs.

    Raises:
        ValueError: If the margin or the scale is out of range.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        embedding_size: int | None = None,
        *,
        margin: float = 0.5,
        scale: float = 64.0,
        proxies_per_class: int = 1,
        normalize: Normalization = "unit",
        miner: Mining | None = None,
    ) -> None:
        super().__init__(
            num_classes, embedding_size, proxies_per_class=proxies_per_class, normalize=normalize, miner=miner
        )
        if not 0 <= margin < math.pi:
            raise ValueError(f"margin: expected radians from 0 to below pi, got {margin}. The paper uses 0.5.")
        if scale <= 0:
            raise ValueError(f"scale: expected a value above 0, got {scale}. The paper uses 64.")
        self.margin, self.scale = margin, scale

    def compute_loss(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""
        cosine = pairs.similarities()
        with_margin = add_angle(cosine, self.margin)
        return cross_entropy_of_positives(self.scale * torch.where(pairs.positives, with_margin, cosine), pairs)


def add_angle(cosine: Tensor, margin: float) -> Tensor:
    r"""Return $\cos(\theta + m)$ of $\cos \theta$.

    Beyond $\theta = \pi - m$ it continues as $\cos \theta - m \sin m$.

    Args:
        cosine: Any shape.
        margin: Angle m in radians.
    """
    square = 1 - cosine.square()
    inside = square > 0  # the root has no gradient at 0
    sine = square.where(inside, torch.ones_like(square)).sqrt() * inside
    moved = cosine * math.cos(margin) - sine * math.sin(margin)
    return torch.where(cosine >= -math.cos(margin), moved, cosine - margin * math.sin(margin))
