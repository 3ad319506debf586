"""Cross-batch memory: embeddings of recent batches as references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from winnow.errors import warn_caller
from winnow.functional.pairs import check_batch, compare_within_batch
from winnow.references.base import PairLossFunction, References, check_at_least

SOON = 100
"""A memory that takes effect within this number of batches does not warn."""


class MemoryNotInUseWarning(UserWarning):
    """A cross-batch memory collects embeddings, but does not change the loss yet."""


class CrossBatchMemory(References):
    r"""Cross-batch memory (XBM): the batch itself, and recent embeddings.

    $$L = \ell(Q, Q) + w\, \ell(Q, M), \qquad M = \text{the last } B \text{ batches, including this one}$$

    Embeddings drift slowly once a network has settled, so recent ones are good references. No gradient flows into the
    memory. The pair of an embedding with its own copy in the memory is excluded.

    The memory collects embeddings in training mode only. It takes effect after `start_step + num_batches` training
    batches: with the defaults the first 1,025 batches are trained by the batch term alone. A `MemoryNotInUseWarning`
    states this number once, at the first training batch, unless at most 100 batches are missing.

    The value is a sum of two terms, so it rises when the memory takes effect: to about `1 + weight` times the batch
    term for a loss that averages over pairs. A loss that sums over references grows with the size of the memory.
    Lower `weight` or the learning rate for such a loss.

    Reference: Wang et al., "Cross-Batch Memory for Embedding Learning", CVPR 2020.

    Use when: classes are many and small, as in SOP. The memory adds many references at almost no cost. Keep a late
    start: right after a high learning rate, stored embeddings are outdated.

    Differences: works with any pair loss. PML `CrossBatchMemory` uses the memory from the first batch and drops the
    batch term. The authors' code relies on the margin of the contrastive loss to ignore an embedding's own copy.

    Args:
        embedding_size: Size of the embeddings, at least 1.
        batch_size: Number of images in a batch, at least 1.
        num_batches: Number of batches B to store, at least 1.
        start_step: Training batches before the memory starts to fill for use, at least 0. It takes effect
            `num_batches` batches later.
        weight: Weight w of the memory term, at least 0.

    Attributes:
        start_after: Number of training batches after which the memory takes effect.

    Raises:
        ValueError: If a size or setting is below its minimum.
    """

    aliases: ClassVar[Mapping[str, str]] = {"batches": "num_batches", "start": "start_step"}

    memory: Tensor
    labels: Tensor
    steps: Tensor
    rows: Tensor

    def __init__(
        self,
        embedding_size: int,
        batch_size: int,
        *,
        num_batches: int = 25,
        start_step: int = 1000,
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        if not isinstance(embedding_size, int):
            raise TypeError(
                f"embedding_size: expected an integer, got {type(embedding_size).__name__}. Pass a loss and its memory "
                "to ReferenceLoss: ReferenceLoss(loss, CrossBatchMemory(embedding_size, batch_size))."
            )
        check_at_least("embedding_size", embedding_size, 1)
        check_at_least("batch_size", batch_size, 1)
        check_at_least("num_batches", num_batches, 1)
        check_at_least("start_step", start_step, 0)
        check_at_least("weight", weight, 0)
        self.batch_size, self.num_batches, self.start_step, self.weight = batch_size, num_batches, start_step, weight
        self.start_after = start_step + num_batches
        self._start_reported = False
        self.register_buffer("memory", torch.zeros(num_batches * batch_size, embedding_size))
        self.register_buffer("labels", torch.zeros(num_batches * batch_size, dtype=torch.int64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("rows", torch.zeros((), dtype=torch.int64))  # number of rows ever stored

    def forward(self, loss: PairLossFunction, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Store the batch, and return its loss.

        The loss compares the batch with itself and, once in effect, with the memory.

        Raises:
            ValueError: If the embeddings do not have `embedding_size` dimensions.
        """
        check_batch(embeddings, labels)
        if embeddings.shape[1] != self.memory.shape[1]:
            raise ValueError(
                f"embeddings: expected {self.memory.shape[1]} dimensions (embedding_size), got {embeddings.shape[1]}. "
                f"Set embedding_size={embeddings.shape[1]}."
            )
        value = compare_within_batch(loss, embeddings, labels)
        if not self.training or len(embeddings) == 0:
            return value
        if not self._start_reported and not torch.compiler.is_compiling():
            self._report_start()
        positions = self._store(embeddings.detach(), labels)
        every = torch.arange(len(self.memory), device=positions.device)
        unused = every >= self.rows
        own = positions[:, None] == every
        # A copy, because the buffer is written again before a delayed backward may read it.
        against = loss(
            embeddings, labels, ref_emb=self.memory.clone(), ref_labels=self.labels.clone(), exclude=unused | own
        )
        in_effect = self.steps > self.start_after
        return value + self.weight * torch.where(in_effect, against, 0.0)

    def warnings(self, steps: int, sizes: Sequence[int]) -> list[str]:
        """Return a warning if training ends before the memory takes effect.

        Callers show these warnings, so the same warning at the first batch is suppressed.
        """
        self._start_reported = True
        if steps > self.start_after:
            return []
        return [
            f"references: the memory takes effect after {self.start_after} steps, but training has at most {steps}. "
            "Lower references.start_step or raise train.max_steps."
        ]

    def extra_repr(self) -> str:
        """Return the sizes and settings as constructor arguments."""
        return (
            f"{self.memory.shape[1]}, {self.batch_size}, num_batches={self.num_batches}, "
            f"start_step={self.start_step}, weight={self.weight}"
        )

    def _report_start(self) -> None:
        """Warn once if many batches are missing until the memory takes effect."""
        self._start_reported = True
        if self.memory.is_cuda and torch.cuda.is_current_stream_capturing():
            return  # a captured graph cannot read the number of steps
        done = int(self.steps)
        if self.start_after - done > SOON:
            warn_caller(
                f"start_step: CrossBatchMemory takes effect after {self.start_after} training batches "
                f"(start_step + num_batches), {done} are done. Until then only the batch term is trained. "
                "Lower start_step if training is short.",
                MemoryNotInUseWarning,
            )

    @torch.no_grad()
    def _store(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Write a batch over the oldest rows and return its positions."""
        stored = min(len(embeddings), len(self.memory))
        positions = (self.rows + torch.arange(len(embeddings), device=self.rows.device)) % len(self.memory)
        # Of a batch larger than the memory the last rows remain.
        self.memory.index_copy_(0, positions[-stored:], embeddings[-stored:].to(self.memory.dtype))
        self.labels.index_copy_(0, positions[-stored:], labels[-stored:].to(self.labels.dtype))
        self.rows += len(embeddings)
        self.steps += 1
        return positions
