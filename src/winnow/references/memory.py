"""Embeddings of earlier batches as references."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from winnow.losses import PairLoss
from winnow.references.base import References


class Memory(References):
    r"""Cross-batch memory (XBM): the batch itself, and the embeddings of the last batches.

    $$L = \ell(Q, Q) + w\, \ell(Q, M), \qquad M = \text{the last } B \text{ batches, this one among them}$$

    Embeddings drift slowly once a network has settled, so old ones are good references, and many. The second term
    begins $B$ steps after `start`, as in the documents' code. A query's own copy in the memory is left out by its
    place; the documents' code relies on a gap in the contrastive loss for that. No gradient goes into the memory.

    When to use it: for many references at almost no cost, where classes are many and small, as in SOP. It helps
    once embeddings drift slowly, hence the late start; right after a high learning rate its rows are stale.

    Reference: Wang et al., "Cross-Batch Memory for Embedding Learning", CVPR 2020.

    Args:
        width: Size of the embeddings.
        batch: Images in a batch.
        batches: Batches B to remember.
        start: Step at which the memory starts to be of use.
        weight: Weight w of the memory's term.
    """

    memory: Tensor
    labels: Tensor
    steps: Tensor
    rows: Tensor

    def __init__(
        self, width: int, batch: int, *, batches: int = 25, start: int = 1000, weight: float = 1.0
    ) -> None:  # fmt: skip
        super().__init__()
        if batches < 1 or start < 0:
            raise ValueError(f"a memory needs at least 1 batch and a start of at least 0, got {batches} and {start}")
        self.begin, self.weight = start + batches, weight
        self.register_buffer("memory", torch.zeros(batches * batch, width))
        self.register_buffer("labels", torch.zeros(batches * batch, dtype=torch.int64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("rows", torch.zeros((), dtype=torch.int64))  # ever remembered

    def forward(self, loss: PairLoss, queries: Tensor, labels: Tensor) -> Tensor:
        """Remember the batch, and return its loss within itself and, once it counts, against the memory."""
        value: Tensor = loss(queries, labels)
        if not self.training or len(queries) == 0:
            return value
        places = self._remember(queries.detach(), labels)
        every = torch.arange(len(self.memory), device=places.device)
        unused = every >= self.rows
        own = places[:, None] == every
        # A copy, because the buffer is written again before a delayed backward may read it.
        against: Tensor = loss(queries, labels, self.memory.clone(), self.labels.clone(), unused | own)
        counts = self.steps > self.begin
        return value + self.weight * torch.where(counts, against, 0.0)

    def notes(self, steps: int, sizes: Sequence[int]) -> list[str]:
        """Say so if training ends before the memory begins."""
        if steps > self.begin:
            return []
        return [f"the memory is of no use: it begins at step {self.begin}, and train.steps={steps} end before that"]

    @torch.no_grad()
    def _remember(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Write a batch over the oldest rows; return their places."""
        kept = min(len(embeddings), len(self.memory))
        places = (self.rows + torch.arange(len(embeddings), device=self.rows.device)) % len(self.memory)
        # Of a batch larger than the memory the last rows stay.
        self.memory.index_copy_(0, places[-kept:], embeddings[-kept:].to(self.memory.dtype))
        self.labels.index_copy_(0, places[-kept:], labels[-kept:])
        self.rows += len(embeddings)
        self.steps += 1
        return places
