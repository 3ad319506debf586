"""A pair loss and its references as one criterion for training loops."""

from __future__ import annotations

from torch import Tensor, nn

from winnow.losses.base import PairLoss
from winnow.references import References


class ReferenceLoss(nn.Module):
    r"""Pair loss against any references: the batch, proxies, a memory, or CCP.

    $$L = \ell_{\text{references}}(Q)$$

    `parameters()` includes proxies and the parameters of the loss, and `state_dict()` the state of a memory.

    Reference: the wrapper `CrossBatchMemory(loss, ...)` of PML.

    Use when: you write a training loop and want references other than the batch. `loss(embeddings, labels)` alone
    compares the batch with itself.

    Differences: PML wraps a loss in a memory only. This class takes any references of `winnow.references`.

    Args:
        loss: Pair loss without own proxies.
        references: References that the loss compares embeddings with.

    Raises:
        ValueError: If the loss owns proxies, which the references would replace.
    """

    def __init__(self, loss: PairLoss, references: References) -> None:
        super().__init__()
        if getattr(loss, "proxies", None) is not None:
            name = type(loss).__name__
            raise ValueError(
                f"loss: {name} owns proxies, which the references would replace, so they would never be trained. "
                f"Construct {name} without num_classes and embedding_size."
            )
        self.loss, self.references = loss, references

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of a training batch.

        Args:
            embeddings: (N, d) embeddings. The loss normalizes them.
            labels: (N,) integer class labels; 0 .. C - 1 for references with one proxy or more per class.
        """
        value: Tensor = self.references(self.loss, embeddings, labels)
        return value
