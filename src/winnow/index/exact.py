"""Nearest neighbours among vectors that stay on disk: all of them are looked at, a block at a time."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winnow.evaluation.exact import full_precision
from winnow.evaluation.select import merged, smallest

Vectors = np.ndarray[Any, np.dtype[Any]]
Places = NDArray[np.int64]

SPARE = 8
_BLOCK, _QUERIES, _MEASURED = 8192, 512, 64


class Finder(Protocol):
    """Proposes rows that may be nearest to queries."""

    def candidates(self, queries: NDArray[np.float32], k: int) -> Places:
        """Return (Q, at least k) rows of the vectors; -1 where there is none."""
        ...


class ExactFinder:
    r"""Looks at all vectors: $\lVert q - r \rVert^2 = \lVert q \rVert^2 + \lVert r \rVert^2 - 2\, q^\top r$.

    A matrix product rounds, so some more than asked for are proposed, to be measured exactly.

    Args:
        vectors: (N, D) float32 or float16, in memory or mapped from a file.
    """

    def __init__(self, vectors: Vectors) -> None:
        self.vectors = vectors
        self._squares: Tensor | None = None

    def candidates(self, queries: NDArray[np.float32], k: int) -> Places:
        """Return (Q, k and a few more) rows, unordered."""
        width = min(k + SPARE, len(self.vectors))
        found = [self._search(torch.from_numpy(queries[s : s + _QUERIES]), width)
                 for s in range(0, len(queries), _QUERIES)]  # fmt: skip
        return np.concatenate(found) if found else np.zeros((0, width), dtype=np.int64)

    def _search(self, queries: Tensor, width: int) -> Places:
        best: tuple[Tensor, Tensor] | None = None
        squares = self._lengths()
        with full_precision(queries.device):
            for start in range(0, len(self.vectors), _BLOCK):
                block = self._block(start)
                # The query's own length is the same for all and decides nothing.
                values = torch.addmm(squares[None, start : start + len(block)], queries, block.mT, alpha=-2)
                best = joined(best, values, start, width)
        assert best is not None, "there is at least one vector"
        return best[1].numpy()

    def _block(self, start: int) -> Tensor:
        return torch.from_numpy(np.array(self.vectors[start : start + _BLOCK], dtype=np.float32))

    def _lengths(self) -> Tensor:
        if self._squares is None:
            starts = range(0, len(self.vectors), _BLOCK)
            self._squares = torch.cat([self._block(start).square().sum(dim=1) for start in starts])
        return self._squares


def joined(best: tuple[Tensor, Tensor] | None, values: Tensor, start: int, width: int) -> tuple[Tensor, Tensor]:
    """Join the smallest values so far with a further block of columns (B, C); at most `width`, unordered."""
    if best is None:
        return smallest(values, min(width, values.shape[1]))
    if best[0].shape[1] == width:
        return merged(best, values, start)
    places = torch.arange(start, start + values.shape[1]).expand(values.shape)
    both, at = torch.cat([best[0], values], dim=1), torch.cat([best[1], places], dim=1)
    found, chosen = smallest(both, min(width, both.shape[1]))
    return found, at.gather(1, chosen)


def measured(
    vectors: Vectors, queries: NDArray[np.float32], places: Places, k: int
) -> tuple[NDArray[np.float32], Places]:
    """Return exact distances and rows (Q, k) of candidates (Q, C), nearest first, equal ones by the lower row.

    Rows of -1 stand last, infinitely far.
    """
    distances = np.empty(places.shape, dtype=np.float32)
    for start in range(0, len(queries), _MEASURED):
        part = slice(start, start + _MEASURED)
        difference = np.asarray(vectors[np.maximum(places[part], 0)], dtype=np.float32) - queries[part, None]
        distances[part] = np.sqrt(np.einsum("qcd,qcd->qc", difference, difference))
    distances[places < 0] = np.inf
    order = np.lexsort((places, distances), axis=1)[:, :k]
    return np.take_along_axis(distances, order, axis=1), np.take_along_axis(places, order, axis=1)
