"""What every pair loss shares: queries are compared with references, and labels say which pairs belong together."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from winnow.functional import Normalise, unit_norm
from winnow.losses.pairs import Pairs


class PairLoss(nn.Module):
    """Base of losses over pairs. A subclass writes `compare`, over unit vectors, labels and two masks.

    Where the references come from (the batch itself, proxies, a memory) is the caller's matter.

    Attributes:
        normalise: What is done to vectors before they are compared; the model that is trained says.
        mining: Chooses among the pairs before they are compared, see `winnow.mining`; None where all count.
        made_for: The source of references that training takes where none is named.
        presets: The documents' settings for each data set, by its name.
    """

    made_for: ClassVar[str] = "batch"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.normalise: Normalise = unit_norm
        self.mining: Callable[[Pairs], Pairs] | None = None

    @abstractmethod
    def compare(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""

    def forward(
        self,
        queries: Tensor,
        labels: Tensor,
        references: Tensor | None = None,
        reference_labels: Tensor | None = None,
        exclude: Tensor | None = None,
    ) -> Tensor:
        """Return the loss; zero, yet with a gradient to propagate, where there are no pairs.

        Args:
            queries: (Q, d) embeddings; they are normalised here, to unit length by default, in at least float32.
            labels: (Q,) integer class labels, any values.
            references: (R, d) what the queries are compared with; default the queries themselves, each excluded from
                its own comparison.
            reference_labels: (R,).
            exclude: (Q, R) bool, pairs that must not count, such as a query and its own copy in a memory.
        """
        if (references is None) != (reference_labels is None):
            raise ValueError("references and reference_labels go together: give both or neither")
        if references is None or reference_labels is None:
            references, reference_labels = queries, labels
            itself = torch.eye(len(queries), dtype=torch.bool, device=queries.device)
            exclude = itself if exclude is None else exclude | itself
        same = labels[:, None] == reference_labels[None, :]
        allowed = torch.ones_like(same) if exclude is None else ~exclude
        with torch.autocast(queries.device.type, enabled=False):
            wide = torch.promote_types(queries.dtype, torch.float32)
            q, r = self.normalise(queries.to(wide)), self.normalise(references.to(wide))
            pairs = Pairs(q, r, same & allowed, ~same & allowed, labels, reference_labels)
            return self.compare(pairs if self.mining is None else self.mining(pairs))


SATISFIED = 1e-5
"""Terms up to this are zero but for rounding in float32, such as the distance of an embedding from itself.

A backbone that computes in 16 bits or TF32 may embed one image twice with more between the two, by other kernels for
other sizes of batches. No larger bound is needed for that: pairs of an image and its own copy are few, and most are of
the first step of a problem of CCP, whose update parts them. With noise of 1e-3 on every embedding, training came to the
same MAP@R within 0.001, whether such pairs counted or not.
"""


def mean_nonzero(terms: Tensor) -> Tensor:
    """Average the terms that are above zero: the others are pairs already satisfied."""
    # Else rounding would decide how many pairs share the loss, and in which direction equal embeddings are moved.
    counted = terms > SATISFIED
    return (terms * counted).sum() / counted.sum().clamp(min=1)
