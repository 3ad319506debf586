"""The result of a retrieval: nearest neighbours and metrics of every query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from winnow.errors import DataError
from winnow.evaluation.inputs import as_count


@dataclass(frozen=True, eq=False)
class RetrievalResult:
    """Neighbours and metrics of Q queries among N references; all tensors are on the CPU.

    Attributes:
        neighbours: The nearest references of every query, nearest first, shape (Q, keep), int64.
        distances: Their Euclidean distances, shape (Q, keep).
        query_labels: Shape (Q,), int64.
        reference_labels: Shape (N,), int64.
        relevant: Number of relevant references of every query, R, shape (Q,), int64.
        per_query: Metric name to values, each of shape (Q,), float64; NaN for queries that are left out because
            nothing is relevant to them.
    """

    neighbours: Tensor
    distances: Tensor
    query_labels: Tensor
    reference_labels: Tensor
    relevant: Tensor
    per_query: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        count = len(self.query_labels)
        if self.neighbours.ndim != 2 or len(self.neighbours) != count:
            raise DataError(f"neighbours has shape {tuple(self.neighbours.shape)}, but ({count}, keep) is needed")
        if self.distances.shape != self.neighbours.shape:
            raise DataError(
                f"distances has shape {tuple(self.distances.shape)}, neighbours {tuple(self.neighbours.shape)}; "
                "they must be of one shape"
            )
        for name, values in {"relevant": self.relevant, **self.per_query}.items():
            if values.shape != (count,):
                raise DataError(f"{name} has shape {tuple(values.shape)}, but ({count},) is needed")
        for name in ("neighbours", "query_labels", "reference_labels", "relevant"):
            if getattr(self, name).dtype != torch.int64:
                raise DataError(f"{name} holds {getattr(self, name).dtype}, but torch.int64 is needed")
        total = len(self.reference_labels)
        if self.neighbours.numel() and not 0 <= int(self.neighbours.min()) <= int(self.neighbours.max()) < total:
            raise DataError(f"neighbours must be indices of the {total} references")
        if "MAP@R" not in self.per_query:
            raise DataError("per_query lacks MAP@R, by which queries are ordered")
        if self.left_out == count:
            raise DataError(
                f"none of the {count} queries has a relevant reference: every class has a single image, or no class "
                "of the queries is in the gallery; check the labels"
            )

    @property
    def left_out(self) -> int:
        """Number of queries without any relevant reference; they are left out of every average."""
        return int((self.relevant == 0).sum())

    @property
    def hits(self) -> Tensor:
        """Whether each kept neighbour has the label of its query, shape (Q, keep), bool."""
        return self.reference_labels[self.neighbours] == self.query_labels[:, None]

    def metrics(self) -> dict[str, float]:
        """The mean of every metric over the queries that are not left out, each in [0, 1]."""
        counted = self.relevant > 0
        return {name: float(values[counted].mean()) for name, values in self.per_query.items()}

    def best_queries(self, n: int) -> Tensor:
        """Indices of the `n` queries of the highest MAP@R, best first, lower index first among equals.

        Queries that are left out are never among them, so that fewer than `n` may come back.
        """
        return self._ordered(n, descending=True)

    def worst_queries(self, n: int) -> Tensor:
        """Indices of the `n` queries of the lowest MAP@R, worst first, lower index first among equals.

        Queries that are left out are never among them, so that fewer than `n` may come back.
        """
        return self._ordered(n, descending=False)

    def _ordered(self, n: int, *, descending: bool) -> Tensor:
        counted = (self.relevant > 0).nonzero().flatten()
        values = self.per_query["MAP@R"][counted]
        return counted[values.argsort(descending=descending, stable=True)][: as_count(n, "n", 0)]
