"""What a pair loss sees: unit vectors, their labels, and which pairs count."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from winnow.functional import pairwise_distance


@dataclass(frozen=True)
class Pairs:
    """Normalised queries and references, to unit length unless the loss was told otherwise, and the pairs between them.

    A pair that is in neither mask does not count: it is excluded, or was not chosen by mining.

    Args:
        queries: (Q, d), at least float32.
        references: (R, d), of the same type.
        positives: (Q, R) bool, the pairs of one class.
        negatives: (Q, R) bool, the pairs of two classes.
        labels: (Q,) integer labels of the queries, any values.
        reference_labels: (R,) those of the references.
    """

    queries: Tensor
    references: Tensor
    positives: Tensor
    negatives: Tensor
    labels: Tensor
    reference_labels: Tensor

    def cosines(self) -> Tensor:
        r"""Return $s_{qr} = q^\top r$, (Q, R)."""
        return self.queries @ self.references.mT

    def distances(self) -> Tensor:
        r"""Return $d_{qr} = \lVert q - r \rVert_2$, (Q, R)."""
        return pairwise_distance(self.queries, self.references)

    def keep(self, positives: Tensor, negatives: Tensor) -> Pairs:
        """Return these queries and references with only those of their pairs that both masks allow."""
        return Pairs(
            self.queries,
            self.references,
            self.positives & positives,
            self.negatives & negatives,
            self.labels,
            self.reference_labels,
        )
