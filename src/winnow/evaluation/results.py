"""Result of a retrieval: nearest neighbors and metrics of every query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from winnow.errors import DataError
from winnow.evaluation.inputs import as_count


@dataclass(frozen=True, eq=False)
class RetrievalResult:
    """Neighbors and metrics of Q queries among N references, on the CPU."""

    neighbors: Tensor  # (Q, keep) int64: nearest references of each query, nearest first
    distances: Tensor  # (Q, keep): Euclidean distances of the neighbors
    query_labels: Tensor  # (Q,) int64
    reference_labels: Tensor  # (N,) int64
    relevant: Tensor  # (Q,) int64: number of relevant references of each query, R
    per_query: Mapping[str, Tensor]  # metric name to (Q,) float64; NaN where R = 0

    def __post_init__(self) -> None:
        count = len(self.query_labels)
        if self.neighbors.ndim != 2 or len(self.neighbors) != count:
            raise DataError(f"neighbors: expected shape ({count}, keep), got {tuple(self.neighbors.shape)}.")
        if self.distances.shape != self.neighbors.shape:
            raise DataError(
                f"distances: expected shape {tuple(self.neighbors.shape)} to match neighbors, "
                f"got {tuple(self.distances.shape)}."
            )
        for name, values in {"relevant": self.relevant, **self.per_query}.items():
            if values.shape != (count,):
                raise DataError(f"{name}: expected shape ({count},), got {tuple(values.shape)}.")
        for name in ("neighbors", "query_labels", "reference_labels", "relevant"):
            if getattr(self, name).dtype != torch.int64:
                raise DataError(f"{name}: expected torch.int64, got {getattr(self, name).dtype}.")
        total = len(self.reference_labels)
        if self.neighbors.numel() and not 0 <= int(self.neighbors.min()) <= int(self.neighbors.max()) < total:
            raise DataError(f"neighbors: expected indices of the {total} references.")
        if "MAP@R" not in self.per_query:
            raise DataError("per_query: MAP@R is missing. It orders the queries.")
        if self.num_without_relevant == count:
            raise DataError(
                f"labels: none of the {count} queries has a relevant reference. Check that query and gallery labels "
                "overlap and that each class has at least 2 images."
            )

    @property
    def num_without_relevant(self) -> int:
        """Number of queries without a relevant reference; averages exclude them."""
        return int((self.relevant == 0).sum())

    @property
    def hits(self) -> Tensor:
        """Whether each neighbor has the label of its query, shape (Q, keep), bool."""
        return self.reference_labels[self.neighbors] == self.query_labels[:, None]

    def metrics(self) -> dict[str, float]:
        """Return the mean of every metric over queries with a relevant reference.

        Values are in [0, 1].
        """
        counted = self.relevant > 0
        return {name: float(values[counted].mean()) for name, values in self.per_query.items()}

    def best_queries(self, n: int) -> Tensor:
        """Return the indices of the `n` queries with the highest MAP@R, best first.

        Equal values are ordered by the lower index. Queries without a relevant reference are excluded, so the result
        may have fewer than `n` entries.
        """
        return self._ordered(n, descending=True)

    def worst_queries(self, n: int) -> Tensor:
        """Return the indices of the `n` queries with the lowest MAP@R, worst first.

        Equal values are ordered by the lower index. Queries without a relevant reference are excluded, so the result
        may have fewer than `n` entries.
        """
        return self._ordered(n, descending=False)

    def _ordered(self, n: int, *, descending: bool) -> Tensor:
        """Return the indices of the first `n` queries by MAP@R."""
        counted = (self.relevant > 0).nonzero().flatten()
        values = self.per_query["MAP@R"][counted]
        return counted[values.argsort(descending=descending, stable=True)][: as_count(n, "n", 0)]
