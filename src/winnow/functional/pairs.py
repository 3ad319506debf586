"""Pairs of embeddings and references with their masks, and checks of arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from winnow.functional.distances import pairwise_distance


@dataclass(frozen=True)
class Pairs:
    """Normalized queries and references, and the pairs of them that a loss compares.

    A pair in neither mask is ignored: it is excluded, or a miner did not select it.

    Args:
        queries: (Q, d), at least float32.
        references: (R, d), same dtype as the queries.
        positives: (Q, R) bool, pairs of one class.
        negatives: (Q, R) bool, pairs of two classes.
        labels: (Q,) integer labels of the queries, any values.
        reference_labels: (R,) integer labels of the references.
    """

    queries: Tensor
    references: Tensor
    positives: Tensor
    negatives: Tensor
    labels: Tensor
    reference_labels: Tensor

    def similarities(self) -> Tensor:
        r"""Return the products $s_{qr} = q^\top r$ (Q, R); cosines of unit vectors."""
        return self.queries @ self.references.mT

    def distances(self) -> Tensor:
        r"""Return the Euclidean distances $d_{qr} = \lVert q - r \rVert_2$ (Q, R)."""
        return pairwise_distance(self.queries, self.references)

    def mask(self, positives: Tensor, negatives: Tensor) -> Pairs:
        """Return the same vectors with only the pairs that both masks select."""
        return Pairs(
            self.queries,
            self.references,
            self.positives & positives,
            self.negatives & negatives,
            self.labels,
            self.reference_labels,
        )


def compare_within_batch(loss: Callable[..., Tensor], embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of a batch against itself, also for a loss with proxies.

    Args:
        loss: Any pair loss.
        embeddings: (N, d).
        labels: (N,) integer labels.
    """
    itself = torch.eye(len(embeddings), dtype=torch.bool, device=embeddings.device)
    return loss(embeddings, labels, ref_emb=embeddings, ref_labels=labels, exclude=itself)


def check_batch(embeddings: Tensor, labels: Tensor, names: tuple[str, str] = ("embeddings", "labels")) -> None:
    """Check that embeddings are a float tensor (N, d), labels an integer tensor (N,).

    Only types, shapes, and devices are checked, which neither waits for a GPU nor breaks a compiled graph.

    Args:
        embeddings: (N, d) floating-point tensor.
        labels: (N,) integer tensor on the same device.
        names: Names of the two arguments in messages.

    Raises:
        TypeError: For other types than tensors, and for other dtypes.
        ValueError: For other shapes, and for labels on another device.
    """
    first, second = names
    for name, value in ((first, embeddings), (second, labels)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name}: expected a torch.Tensor, got {_type_of(value)}. Convert it by torch.as_tensor.")
    if embeddings.dim() != 2:
        raise ValueError(f"{first}: expected shape (N, d), got {tuple(embeddings.shape)}. Pass one vector per row.")
    if not embeddings.is_floating_point():
        raise TypeError(f"{first}: expected a floating-point dtype, got {embeddings.dtype}. Convert it by .float().")
    if labels.dim() != 1:
        hint = "Use labels.squeeze(1)." if labels.dim() == 2 and labels.shape[1] == 1 else "Pass one label per row."
        raise ValueError(f"{second}: expected shape (N,), got {tuple(labels.shape)}. {hint}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype is torch.bool:
        raise TypeError(f"{second}: expected an integer dtype, got {labels.dtype}. Convert it by .long().")
    if len(labels) != len(embeddings):
        raise ValueError(
            f"{second}: expected {len(embeddings)} labels to match {first}, got {len(labels)}. Pass one label per row."
        )
    check_device(labels, embeddings.device, second)


def check_device(value: Tensor, device: torch.device, name: str) -> None:
    """Raise if a tensor is not on the device of the embeddings."""
    if value.device != device:
        raise ValueError(f"{name}: expected device {device} as for embeddings, got {value.device}. Move it by .to().")


def check_class_labels(labels: Tensor, num_classes: int) -> None:
    """Raise if a label is not in 0 .. num_classes - 1.

    On a CPU this raises `ValueError`. On a GPU and in a compiled graph it is an assertion that does not synchronize.
    """
    limits = f"labels: expected values from 0 to {num_classes - 1} ({num_classes} classes)"
    advice = "Number the classes from 0, or set num_classes to their number."
    if labels.is_cuda or torch.compiler.is_compiling():
        torch._assert_async(((labels >= 0) & (labels < num_classes)).all(), f"{limits}. {advice}")
    elif labels.device.type == "cpu" and len(labels):
        lowest, highest = int(labels.min()), int(labels.max())
        if lowest < 0 or highest >= num_classes:
            raise ValueError(f"{limits}, got {lowest} to {highest}. {advice}")


def _type_of(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
