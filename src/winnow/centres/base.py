"""What every centre regulariser shares: which centres are compared, and how."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from winnow.functional import pairwise_distance

Of = Literal["auto", "proxies", "means"]
Measure = Literal["cosine", "distance"]
Toward = Literal["nearest", "farthest"]

CLOSEST = 1e-4
"""Distances, and shares of similarity, are held above this: powers of them stay finite where centres coincide."""


class CentreRegulariser(nn.Module):
    """Base of regularisers that push the centres of classes apart. A subclass writes `spread`.

    Minimising it moves centres away from each other. It compares unit vectors, and only centres of different classes.

    Attributes:
        weight: Factor on the term in training.
        of: What training takes for centres.
        sample: How many centres are drawn to be compared with all; None compares all.
    """

    def __init__(self, *, weight: float, of: Of, sample: int | None) -> None:
        super().__init__()
        if weight < 0:
            raise ValueError(f"the weight must be at least 0, got {weight}: below 0 it would draw centres together")
        if sample is not None and sample < 1:
            raise ValueError(f"a sample needs at least 1 centre, got {sample}; leave it out to compare all")
        self.weight, self.of, self.sample = weight, of, sample

    @abstractmethod
    def spread(self, centres: Tensor, others: Tensor, pairs: Tensor) -> Tensor:
        """Return the scalar term of unit centres (S, d), compared with unit others (C, d) where `pairs` (S, C)."""

    def forward(self, centres: Tensor, labels: Tensor | None = None, counted: Tensor | None = None) -> Tensor:
        """Return the term, without its weight; zero, yet with a gradient to propagate, where there are no pairs.

        Args:
            centres: (C, d); they are scaled to unit length here, in at least float32.
            labels: (C,) class of each centre, any integers; default a class for each. Centres of one class are not
                compared.
            counted: (C,) bool; false leaves a centre out.
        """
        if labels is None:
            labels = torch.arange(len(centres), device=centres.device)
        with torch.autocast(centres.device.type, enabled=False):
            others = normalize(centres.to(torch.promote_types(centres.dtype, torch.float32)), dim=1)
            counted = torch.ones_like(labels, dtype=torch.bool) if counted is None else counted
            if self.sample is None or self.sample >= len(centres):
                rows: slice | Tensor = slice(None)
            else:  # on the device, without replacement and of a fixed size, so that a replayed step draws anew
                rows = torch.rand(len(centres), device=centres.device).topk(self.sample).indices
            pairs = (labels[rows, None] != labels) & counted[rows, None] & counted
            return self.spread(others[rows], others, pairs)


def class_means(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of each class in a batch, in place of the first embedding of that class.

    Written with fixed shapes throughout, so that it neither waits for the device nor breaks a compiled graph.

    Args:
        embeddings: (B, d); they are scaled to unit length before they are averaged.
        labels: (B,) integer labels, any values.

    Returns:
        (B, d), for each embedding the mean of its class; and (B,) bool, true for the first of each class.
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        unit = normalize(embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)), dim=1)
        same = labels[:, None] == labels[None, :]
        mates = same.to(unit.dtype)
        return mates @ unit / mates.sum(dim=1, keepdim=True), ~same.tril(-1).any(dim=1)


def nearness(centres: Tensor, others: Tensor, measure: Measure) -> Tensor:
    """Return how near unit centres (S, d) are to unit others (C, d): cosines, or distances with a minus sign, (S, C).

    Means of it serve both measures: its largest values are the nearest centres.
    """
    return centres @ others.mT if measure == "cosine" else -pairwise_distance(centres, others)


def mean_over(terms: Tensor, counted: Tensor) -> Tensor:
    """Average the terms that count; 0 where none do."""
    return terms.masked_fill(~counted, 0.0).sum() / counted.sum().clamp(min=1)


def above(value: Tensor, delta: float | None) -> Tensor:
    r"""Return $[v - \delta]_+$, by which a constraint $v < \delta$ is a penalty; v itself where delta is None."""
    return value if delta is None else (value - delta).relu()
