"""Which images kept embeddings are of, so that those of other images are not joined or compared with them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

KEY = "images"


@dataclass(frozen=True)
class EmbeddedImages:
    """What tells the images of kept embeddings from others.

    Attributes:
        labels: A mark of their labels, in order.
        names: A mark of their names and labels; None where an earlier version kept none.
    """

    labels: str
    names: str | None

    @classmethod
    def of(cls, labels: Tensor, names: Sequence[str]) -> EmbeddedImages:
        """Mark images by their labels (N,) and names."""
        numbers = labels.tolist()
        both = (f"{label} {name}" for label, name in zip(numbers, names, strict=True))
        return cls(_mark(map(str, numbers)), _mark(both))

    @classmethod
    def read(cls, labels: Tensor, metadata: Mapping[str, str] | None) -> EmbeddedImages:
        """Undo `metadata`; of a file without, there are the labels (N,) alone."""
        return cls(_mark(map(str, labels.tolist())), (metadata or {}).get(KEY))

    def metadata(self) -> dict[str, str]:
        """Return what a file of embeddings and labels says beside them."""
        return {} if self.names is None else {KEY: self.names}

    def are(self, other: EmbeddedImages) -> bool:
        """Whether they are the same images in the same order, as far as can be told."""
        if self.names is None or other.names is None:
            return self.labels == other.labels
        return self.names == other.names


def _mark(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
