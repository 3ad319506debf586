"""What every source of references shares."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn

from winnow.losses import PairLoss


class References(nn.Module):
    """Base of sources of references: the batch itself, trainable vectors, or embeddings of earlier batches.

    A source decides what a loss compares queries with, and how terms add up; it does not know which loss it serves.
    All it remembers is in parameters and buffers, so that a checkpoint holds it.
    """

    def notes(self, steps: int, sizes: Sequence[int]) -> list[str]:
        """Return what a user should know before training: settings under which this source changes nothing.

        Args:
            steps: The most that will be taken.
            sizes: Images of each training class.
        """
        return []

    @abstractmethod
    def forward(self, loss: PairLoss, queries: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of a training batch.

        Args:
            loss: What compares.
            queries: (Q, d) embeddings, not yet normalised.
            labels: (Q,) training labels, 0 .. C - 1.
        """

    def centres(self) -> tuple[Tensor, Tensor] | None:
        """Return trainable vectors (P, d) that stand for the classes, and their labels (P,); None without any."""
        return None
