"""Base class of references, the batch as references, and proxies."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from winnow.functional.pairs import check_batch, check_class_labels, compare_within_batch
from winnow.registry import show_settings


class PairLossFunction(Protocol):
    """A loss of embeddings against references, such as any loss in `winnow.losses`."""

    def __call__(
        self,
        embeddings: Tensor,
        labels: Tensor,
        *,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
        exclude: Tensor | None = None,
    ) -> Tensor:
        """Return the scalar loss of embeddings (N, d) against references (R, d).

        Pairs in the mask (N, R) are excluded.
        """


class References(nn.Module):
    """Base class of references: the embeddings that a loss compares a batch with.

    Subclasses implement `forward`, which combines one or more calls of the loss. They work with any pair loss. All
    state is in parameters and buffers, so a state dict restores it.

    `winnow.losses.ReferenceLoss` joins a loss and its references into one criterion.
    """

    def warnings(self, steps: int, sizes: Sequence[int]) -> list[str]:
        """Return warnings about settings that have no effect in a planned training.

        Args:
            steps: Maximum number of training steps.
            sizes: Number of images of each training class.
        """
        return []

    @abstractmethod
    def forward(self, loss: PairLossFunction, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of a training batch.

        Args:
            loss: Pair loss that compares the embeddings with the references.
            embeddings: (N, d) embeddings, not normalized.
            labels: (N,) integer labels of the training classes, 0 .. C - 1.
        """

    def class_centers(self) -> tuple[Tensor, Tensor] | None:
        """Return trainable class vectors (P, d) and their labels (P,), or None."""
        return None


class BatchReferences(References):
    r"""The batch itself: each embedding is compared with all others of the batch.

    $$L = \ell(Q, Q)$$

    Use when: batches have several images per class. This is the default. It adds no parameters and no state. A batch
    of 32 images shows few classes, so the number of negatives is small.

    Differences: PML losses do the same when called without `ref_emb`.
    """

    def forward(self, loss: PairLossFunction, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of the batch against itself."""
        return compare_within_batch(loss, embeddings, labels)


class ProxyReferences(References):
    r"""Proxies: trainable vectors that represent the classes.

    $$L = \ell(Q, R) + w_Q\, \ell(Q, Q) + w_R\, \ell(R, R), \qquad R = \{\rho_{ck}\},\; c = 1..C,\; k = 1..K$$

    Both weights are 0 by default. Proxies usually need a larger learning rate than the network. In a config, set
    `references.lr_multiplier=100`.

    Reference: Movshovitz-Attias et al., "No Fuss Distance Metric Learning using Proxies", ICCV 2017.

    Use when: a batch has few images per class, or each class must contribute to every step. Memory and time grow
    linearly with the number of classes; 11,318 proxies are no burden.

    Differences: works with any pair loss. In PML each proxy loss owns its proxies. Proxies start with unit
    length in expectation.

    Args:
        num_classes: Number of training classes C, at least 1. Labels are 0 .. C - 1.
        embedding_size: Size of the embeddings, at least 1.
        proxies_per_class: Number of proxies K of each class, at least 1.
        batch_weight: Weight w_Q of the loss within the batch, at least 0.
        proxy_weight: Weight w_R of the loss of the proxies among each other, at least 0. Its memory grows with the
            square of the number of proxies.
        lr_multiplier: Factor on the learning rate of the proxies in training by a config, at least 0. Patterns of
            `train.lr_multipliers` that match the proxies replace it.

    Raises:
        ValueError: If a size, a weight, or a factor is below its minimum, or a label of a batch is not in 0 .. C - 1.
    """

    aliases: ClassVar[Mapping[str, str]] = {"per_class": "proxies_per_class"}

    labels: Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        proxies_per_class: int = 1,
        batch_weight: float = 0.0,
        proxy_weight: float = 0.0,
        lr_multiplier: float = 1.0,
    ) -> None:
        super().__init__()
        check_at_least("num_classes", num_classes, 1)
        check_at_least("embedding_size", embedding_size, 1)
        check_at_least("proxies_per_class", proxies_per_class, 1)
        check_at_least("batch_weight", batch_weight, 0)
        check_at_least("proxy_weight", proxy_weight, 0)
        check_at_least("lr_multiplier", lr_multiplier, 0)
        self.num_classes, self.proxies_per_class = num_classes, proxies_per_class
        self.batch_weight, self.proxy_weight = batch_weight, proxy_weight
        self.lr_multiplier: float | None = lr_multiplier
        # Unit length in expectation: losses normalize proxies, so the step size is relative to their length.
        self.proxies = nn.Parameter(torch.randn(num_classes * proxies_per_class, embedding_size) / embedding_size**0.5)
        labels = torch.arange(num_classes).repeat_interleave(proxies_per_class)
        self.register_buffer("labels", labels, persistent=False)

    def forward(self, loss: PairLossFunction, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss against all proxies, plus weighted losses within both."""
        check_batch(embeddings, labels)
        check_class_labels(labels, self.num_classes)
        value = loss(embeddings, labels, ref_emb=self.proxies, ref_labels=self.labels)
        if self.batch_weight:
            value = value + self.batch_weight * compare_within_batch(loss, embeddings, labels)
        if self.proxy_weight:
            value = value + self.proxy_weight * compare_within_batch(loss, self.proxies, self.labels)
        return value

    def class_centers(self) -> tuple[Tensor, Tensor]:
        """Return the proxies and their labels."""
        return self.proxies, self.labels

    def extra_repr(self) -> str:
        """Return the sizes and settings as constructor arguments."""
        return f"{self.num_classes}, {self.proxies.shape[1]}, {show_settings(self)}"


def check_at_least(name: str, value: float, least: float) -> None:
    """Raise `ValueError` if a setting is below its minimum."""
    if value < least:
        raise ValueError(f"{name}: expected at least {least}, got {value}. Increase it.")
