"""Center regularizers, which push class centers apart, in `REGULARIZERS`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from winnow.functional import hard_skewed_mean, log_exp_mean, pairwise_distance, power_mean
from winnow.registry import Registry, show_settings

__all__ = [
    "REGULARIZERS",
    "CenterRegularizer",
    "HypersphericalEnergyRegularizer",
    "LogMeanExpRegularizer",
    "NoRegularizer",
    "PowerMeanRegularizer",
    "TopKMeanRegularizer",
    "UniformFaceRegularizer",
    "class_means",
]

Centers = Literal["auto", "proxies", "means"]
Measure = Literal["cosine", "distance"]
Toward = Literal["nearest", "farthest"]

MIN_DISTANCE = 1e-4
"""Lower bound of distances and rescaled similarities, so their powers are finite for coinciding centers."""


class CenterRegularizer(nn.Module):
    """Base class of regularizers that push class centers apart.

    Subclasses implement `penalty`.

    A center represents a class: a proxy, or the mean of the class in a batch. Only centers of different classes are
    compared, as unit vectors. Minimizing the value moves centers apart.

    Args:
        centers: Centers that training passes: the "proxies", the class "means" of the batch, or "auto", which takes
            proxies if the references have any.
        num_samples: Number of centers drawn per step and compared with all. None compares all.
        weight: Factor on the value in training, at least 0. `forward` does not apply it.

    Raises:
        ValueError: If a setting is below its minimum.
    """

    aliases: ClassVar[Mapping[str, str]] = {"of": "centers", "sample": "num_samples"}

    def __init__(self, *, centers: Centers, num_samples: int | None, weight: float) -> None:
        super().__init__()
        if weight < 0:
            raise ValueError(f"weight: expected at least 0, got {weight}. A negative weight would attract centers.")
        if num_samples is not None and num_samples < 1:
            raise ValueError(f"num_samples: expected at least 1, got {num_samples}. Use None to compare all centers.")
        self.centers, self.num_samples, self.weight = centers, num_samples, weight

    @abstractmethod
    def penalty(self, sampled: Tensor, centers: Tensor, pairs: Tensor) -> Tensor:
        """Return the scalar value without its weight.

        Args:
            sampled: (S, d) unit centers, all or a sample.
            centers: (C, d) all unit centers.
            pairs: (S, C) bool, pairs to compare.
        """

    def forward(self, centers: Tensor, labels: Tensor | None = None, counted: Tensor | None = None) -> Tensor:
        """Return the scalar value without its weight.

        Without any pair the value and its gradient are zero.

        Args:
            centers: (C, d) class centers. They are normalized here, in at least float32.
            labels: (C,) integer class of each center, any values. By default each center is a separate class.
            counted: (C,) bool, false for centers to ignore. By default all are compared.
        """
        if labels is None:
            labels = torch.arange(len(centers), device=centers.device)
        with torch.autocast(centers.device.type, enabled=False):
            unit = normalize(centers.to(torch.promote_types(centers.dtype, torch.float32)), dim=1)
            counted = torch.ones_like(labels, dtype=torch.bool) if counted is None else counted
            if self.num_samples is None or self.num_samples >= len(centers):
                rows: slice | Tensor = slice(None)
            else:  # drawn on the device, with a fixed size, so a replayed CUDA graph draws a new sample
                rows = torch.rand(len(centers), device=centers.device).topk(self.num_samples).indices
            pairs = (labels[rows, None] != labels) & counted[rows, None] & counted
            return self.penalty(unit[rows], unit, pairs)

    def extra_repr(self) -> str:
        """Return the settings as constructor arguments."""
        return show_settings(self)


class NoRegularizer(CenterRegularizer):
    r"""No regularizer; the value is zero.

    $$R = 0$$
    """

    aliases: ClassVar[Mapping[str, str]] = {}

    def __init__(self) -> None:
        super().__init__(centers="auto", num_samples=None, weight=0.0)

    def penalty(self, sampled: Tensor, centers: Tensor, pairs: Tensor) -> Tensor:
        """Return zero."""
        return centers.sum() * 0.0


class LogMeanExpRegularizer(CenterRegularizer):
    r"""R1: log-mean-exp of each center's similarities to the other centers.

    $$R_1 = \frac1C \sum_i \big[ M_{\pm\gamma}\{ s_{ij} : j \ne i \} - \delta \big]_+, \qquad
      M_\gamma(x) = \frac1\gamma \log \operatorname{mean}_j e^{\gamma x_j}$$

    The sign is $+\gamma$ toward the nearest and $-\gamma$ toward the farthest. For distances $s_{ij} = -d_{ij}$.
    Without $\delta$ the $[\cdot]_+$ is omitted.

    Reference: [Skewed], Eq. 8. The equation has $+\gamma$, the text describes the farthest.

    Use when: you train a proxy loss on many classes. Toward the farthest a weight of 3 to 10 helped long trainings of
    the bundled emoji dataset and harmed short ones (docs/concepts/regularizers.md).

    Differences: [Skewed] sums over the other centers; means keep the value independent of the number of classes.
    Not in PML.

    Args:
        toward: Centers that weigh most: the "nearest" or the "farthest" ones.
        gamma: Sharpness, at least 0; at 0 all other centers weigh the same.
        delta: Value below which a center has no loss; for distances a negative distance. None means no bound.
        measure: Comparison of centers: "cosine" or "distance".
        centers: Centers: "proxies", the class "means" of the batch, or "auto", which takes proxies if there are any.
        num_samples: Number of centers drawn per step and compared with all. None compares all.
        weight: Factor on the value in training, at least 0. Long trainings toward the farthest can use more.

    Raises:
        ValueError: If a setting is below its minimum.
    """

    def __init__(
        self,
        *,
        toward: Toward = "farthest",
        gamma: float = 10.0,
        delta: float | None = None,
        measure: Measure = "cosine",
        centers: Centers = "auto",
        num_samples: int | None = None,
        weight: float = 0.3,
    ) -> None:
        super().__init__(centers=centers, num_samples=num_samples, weight=weight)
        _check_sharpness("gamma", gamma)
        self.toward, self.gamma, self.delta, self.measure = toward, gamma, delta, measure

    def penalty(self, sampled: Tensor, centers: Tensor, pairs: Tensor) -> Tensor:
        """Return the mean over centers of the log-mean-exp over the other centers."""
        gamma = self.gamma if self.toward == "nearest" else -self.gamma
        means = log_exp_mean(_similarity(sampled, centers, self.measure), gamma, mask=pairs)
        return _masked_mean(_hinge(means, self.delta), pairs.any(dim=1))


class PowerMeanRegularizer(CenterRegularizer):
    r"""R2: power mean of the similarities of all pairs of centers.

    $$R_2 = \big[ M_{\pm t}\{ \tfrac{1 + s_{ij}}2 : i \ne j \} - \delta \big]_+, \qquad
      M_t(x) = \big( \operatorname{mean}_{ij} x_{ij}^t \big)^{1/t}$$

    The sign is $+t$ toward the nearest and $-t$ toward the farthest. For distances the mean is
    $-M_{\mp t}\{d_{ij}\}$. Without $\delta$ the $[\cdot]_+$ is omitted. Powers need positive values, hence
    $(1 + s) / 2$ of the cosine $s$, with a lower bound of $10^{-4}$.

    Reference: [Skewed], Eqs. 8 to 10.

    Use when: the extreme pairs of all centers should move, not of each center. Use distances toward the
    farthest: a single opposite pair has $(1 + s) / 2 = 0$, which dominates a mean with a negative exponent.

    Differences: [Skewed] takes powers of $s$, which are undefined for negative $s$. Not in PML.

    Args:
        toward: Pairs that weigh most: the "nearest" or the "farthest" ones.
        t: Exponent, at least 0; 0 is the geometric mean.
        delta: Value below which the penalty is zero; for distances a negative distance. None: no bound.
        measure: Comparison of centers: "cosine" or "distance".
        centers: Centers: "proxies", the class "means" of the batch, or "auto", which takes proxies if there are any.
        num_samples: Number of centers drawn per step and compared with all. None compares all.
        weight: Factor on the value in training, at least 0. Long trainings toward the farthest can use more.

    Raises:
        ValueError: If a setting is below its minimum.
    """

    def __init__(
        self,
        *,
        toward: Toward = "farthest",
        t: float = 10.0,
        delta: float | None = None,
        measure: Measure = "distance",
        centers: Centers = "auto",
        num_samples: int | None = None,
        weight: float = 0.3,
    ) -> None:
        super().__init__(centers=centers, num_samples=num_samples, weight=weight)
        _check_sharpness("t", t)
        self.toward, self.t, self.delta, self.measure = toward, t, delta, measure

    def penalty(self, sampled: Tensor, centers: Tensor, pairs: Tensor) -> Tensor:
        """Return the power mean over the pairs."""
        t = self.t if self.toward == "nearest" else -self.t
        if self.measure == "cosine":
            positive = ((1 + sampled @ centers.mT) / 2).clamp(min=MIN_DISTANCE)
            mean = power_mean(positive.flatten(), t, mask=pairs.flatten())
        else:
            distance = pairwise_distance(sampled, centers).clamp(min=MIN_DISTANCE)
            mean = -power_mean(distance.flatten(), -t, mask=pairs.flatten())
        return _hinge(mean, self.delta) * pairs.any()


class TopKMeanRegularizer(CenterRegularizer):
    r"""Top-K mean of each center's similarities to its nearest or farthest centers.

    $$R = \frac1C \sum_i \big[ M_{[\pm K]}\{ s_{ij} : j \ne i \} - \delta \big]_+$$

    $M_{[K]}$ is the mean of the K largest values (the nearest centers), $M_{[-K]}$ of the K smallest (the farthest).
    For distances $s_{ij} = -d_{ij}$. Without $\delta$ the $[\cdot]_+$ is omitted. R1 is the smooth form.

    Reference: [Skewed], Definition 1.

    Use when: each center should move away from exactly K others.

    Differences: none from [Skewed]. Not in PML.

    Args:
        toward: Centers that are compared: the "nearest" or the "farthest" ones.
        k: Number of centers K, at least 1.
        delta: Value below which a center has no loss; for distances a negative distance. None means no bound.
        measure: Comparison of centers: "cosine" or "distance".
        centers: Centers: "proxies", the class "means" of the batch, or "auto", which takes proxies if there are any.
        num_samples: Number of centers drawn per step and compared with all. None compares all.
        weight: Factor on the value in training, at least 0. Long trainings toward the farthest can use more.

    Raises:
        ValueError: If a setting is below its minimum.
    """

    def __init__(
        self,
        *,
        toward: Toward = "farthest",
        k: int = 8,
        delta: float | None = None,
        measure: Measure = "cosine",
        centers: Centers = "auto",
        num_samples: int | None = None,
        weight: float = 0.3,
    ) -> None:
        super().__init__(centers=centers, num_samples=num_samples, weight=weight)
        if k < 1:
            raise ValueError(f"k: expected at least 1, got {k}. Set the direction with toward.")
        self.toward, self.k, self.delta, self.measure = toward, k, delta, measure

    def penalty(self, sampled: Tensor, centers: Tensor, pairs: Tensor) -> Tensor:
        """Return the mean over centers of the mean over K nearest or farthest centers."""
        similarity = _similarity(sampled, centers, self.measure)
        means = hard_skewed_mean(similarity, self.k, largest=self.toward == "nearest", mask=pairs)
        return _masked_mean(_hinge(means, self.delta), pairs.any(dim=1))


class UniformFaceRegularizer(CenterRegularizer):
    r"""UniformFace: mean electric potential energy of the centers.

    $$R = \operatorname{mean}_{i \ne j} \frac1{d_{ij} + o} = \frac1{M_{-1}\{d_{ij} + o\}}$$

    $M_{-1}$ is the harmonic mean. The offset $o = 1$ bounds the energy of near centers.

    Reference: Duan, Lu, Zhou, "UniformFace", CVPR 2019.

    Use when: you want centers spread evenly, with a bounded gradient for near centers.

    Differences: [Skewed] omits the offset; $o = 0$ equals the hyperspherical energy with $s = 1$. Not in PML.

    Args:
        offset: Offset o added to every distance, at least 0.
        centers: Centers: "proxies", the class "means" of the batch, or "auto", which takes proxies if there are any.
        num_samples: Number of centers drawn per step and compared with all. None compares all.
        weight: Factor on the value in training, at least 0.

    Raises:
        ValueError: If a setting is below its minimum.
    """

    def __init__(
        self, *, offset: float = 1.0, centers: Centers = "auto", num_samples: int | None = None, weight: float = 0.3
    ) -> None:
        super().__init__(centers=centers, num_samples=num_samples, weight=weight)
        if offset < 0:
            raise ValueError(f"offset: expected at least 0, got {offset}. Increase it.")
        self.offset = offset

    def penalty(self, sampled: Tensor, centers: Tensor, pairs: Tensor) -> Tensor:
        """Return the mean energy of the pairs."""
        d = pairwise_distance(sampled, centers).clamp(min=MIN_DISTANCE)
        return _masked_mean(1 / (d + self.offset), pairs)


class HypersphericalEnergyRegularizer(CenterRegularizer):
    r"""MHE: minimum hyperspherical energy, the Riesz energy of the centers.

    $$R = \operatorname{mean}_{i \ne j} d_{ij}^{-s} = M_{-s}\{d_{ij}\}^{-s} \;(s > 0), \qquad
      R = \operatorname{mean}_{i \ne j} -\log d_{ij} = -\log M_0\{d_{ij}\} \;(s = 0)$$

    $M_t$ is the power mean. Distances have a lower bound of $10^{-4}$.

    Reference: Liu et al., "Learning towards Minimum Hyperspherical Energy", NeurIPS 2018.

    Use when: you want centers spread evenly, mostly by pushing the nearest pairs apart.

    Differences: the paper sums over pairs; a mean keeps the value independent of the number of classes. Not in PML.

    Args:
        s: Power of the energy: 0, 1, or 2. A higher power weights near pairs more.
        centers: Centers: "proxies", the class "means" of the batch, or "auto", which takes proxies if there are any.
        num_samples: Number of centers drawn per step and compared with all. None compares all.
        weight: Factor on the value in training, at least 0.

    Raises:
        ValueError: If a setting is below its minimum.
    """

    def __init__(
        self,
        *,
        s: Literal[0, 1, 2] = 2,
        centers: Centers = "auto",
        num_samples: int | None = None,
        weight: float = 0.1,
    ) -> None:
        super().__init__(centers=centers, num_samples=num_samples, weight=weight)
        self.s = s

    def penalty(self, sampled: Tensor, centers: Tensor, pairs: Tensor) -> Tensor:
        """Return the mean energy of the pairs."""
        d = pairwise_distance(sampled, centers).clamp(min=MIN_DISTANCE)
        return _masked_mean(-d.log() if self.s == 0 else d**-self.s, pairs)


REGULARIZERS: Registry[CenterRegularizer] = Registry(
    "regularizer",
    {
        "none": NoRegularizer,
        "r1": LogMeanExpRegularizer,
        "r2": PowerMeanRegularizer,
        "hard": TopKMeanRegularizer,
        "uniformface": UniformFaceRegularizer,
        "mhe": HypersphericalEnergyRegularizer,
    },
    default="none",
    aliases={"log_mean_exp": "r1", "power_mean": "r2", "top_k_mean": "hard"},
)


def class_means(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the class means of a batch, one row per embedding.

    Shapes are fixed, so the function neither waits for the device nor breaks a compiled graph.

    Args:
        embeddings: (B, d) embeddings. They are normalized before they are averaged.
        labels: (B,) integer labels, any values.

    Returns:
        (B, d), the mean of the class of each embedding; and (B,) bool, true for the first embedding of each class.
        Pass both to a regularizer as `regularizer(means, labels, counted=first)`.
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        unit = normalize(embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)), dim=1)
        same = labels[:, None] == labels[None, :]
        members = same.to(unit.dtype)
        return members @ unit / members.sum(dim=1, keepdim=True), ~same.tril(-1).any(dim=1)


def _similarity(sampled: Tensor, centers: Tensor, measure: Measure) -> Tensor:
    """Return cosines or negative distances (S, C), largest for nearest centers."""
    return sampled @ centers.mT if measure == "cosine" else -pairwise_distance(sampled, centers)


def _masked_mean(terms: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of the terms in a mask, or 0 if it is empty."""
    return terms.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)


def _hinge(value: Tensor, delta: float | None) -> Tensor:
    r"""Return $[v - \delta]_+$, the penalty of $v < \delta$, or $v$ without delta."""
    return value if delta is None else (value - delta).relu()


def _check_sharpness(name: str, value: float) -> None:
    """Raise `ValueError` for a negative sharpness."""
    if value < 0:
        raise ValueError(f"{name}: expected at least 0, got {value}. Set the direction with toward.")
