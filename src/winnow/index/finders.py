"""Finders of candidates: exact search on disk and FAISS."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winnow.array_file import ArrayFile
from winnow.errors import ConfigError, DataError, MissingExtraError, did_you_mean
from winnow.evaluation.top_k import full_precision, merge_smallest, smallest
from winnow.files import write_atomically

Vectors: TypeAlias = NDArray[Any] | ArrayFile
"""Vectors (N, D) in memory or in a file."""
Positions = NDArray[np.int64]

KINDS = ("exact", "hnsw", "ivfpq")
_SPARE = 8
_BLOCK, _QUERIES, _RANKED = 8192, 512, 64
_FAISS_FILE = "faiss.index"
_FAISS_CHUNK = 65536
_LEAST = 10_000  # k-means of 256 codes needs this many vectors


class Finder(Protocol):
    """Proposes rows of the vectors that may be nearest to queries."""

    def candidates(self, queries: NDArray[np.float32], k: int) -> Positions:
        """Return rows (Q, at least k) of the vectors; -1 marks a missing candidate."""
        ...


class ExactFinder:
    r"""Scan of all vectors.

    Uses $\lVert q - r \rVert^2 = \lVert q \rVert^2 + \lVert r \rVert^2 - 2\, q^\top r$.

    A matrix product rounds, so a few more candidates than requested are proposed. `rank_exactly` then orders them.

    Args:
        vectors: Shape (N, D), float32 or float16, in memory or in a file.
    """

    def __init__(self, vectors: Vectors) -> None:
        self.vectors = vectors
        self._squares: Tensor | None = None

    def candidates(self, queries: NDArray[np.float32], k: int) -> Positions:
        """Return rows (Q, k and a few more), unordered."""
        width = min(k + _SPARE, len(self.vectors))
        starts = range(0, len(queries), _QUERIES)
        found = [self._search(torch.from_numpy(queries[s : s + _QUERIES]), width) for s in starts]
        return np.concatenate(found) if found else np.zeros((0, width), dtype=np.int64)

    def _search(self, queries: Tensor, width: int) -> Positions:
        """Return the `width` nearest rows of each query by rounded distances."""
        best: tuple[Tensor, Tensor] | None = None
        squares = self._lengths()
        with full_precision(queries.device):
            for start in range(0, len(self.vectors), _BLOCK):
                block = self._block(start)
                # The norm of the query is the same for all rows and does not affect the order.
                values = torch.addmm(squares[None, start : start + len(block)], queries, block.mT, alpha=-2)
                best = _merge_block(best, values, start, width)
        assert best is not None, "there is at least one vector"
        return best[1].numpy()

    def _block(self, start: int) -> Tensor:
        """Return one block of vectors as float32."""
        return torch.from_numpy(np.asarray(self.vectors[start : start + _BLOCK], dtype=np.float32))

    def _lengths(self) -> Tensor:
        """Return the squared norms of all vectors."""
        if self._squares is None:
            starts = range(0, len(self.vectors), _BLOCK)
            self._squares = torch.cat([self._block(start).square().sum(dim=1) for start in starts])
        return self._squares


def _merge_block(best: tuple[Tensor, Tensor] | None, values: Tensor, start: int, width: int) -> tuple[Tensor, Tensor]:
    """Merge the smallest values so far with a block of columns (B, C).

    At most `width` values remain, unordered.
    """
    if best is None:
        return smallest(values, min(width, values.shape[1]))
    if best[0].shape[1] == width:
        return merge_smallest(best, values, start)
    columns = torch.arange(start, start + values.shape[1]).expand(values.shape)
    both, at = torch.cat([best[0], values], dim=1), torch.cat([best[1], columns], dim=1)
    found, chosen = smallest(both, min(width, both.shape[1]))
    return found, at.gather(1, chosen)


def rank_exactly(
    vectors: Vectors, queries: NDArray[np.float32], candidates: Positions, k: int
) -> tuple[NDArray[np.float32], Positions]:
    """Return the exact distances and rows (Q, k) of candidates (Q, C), nearest first.

    Equal distances are ordered by the lower row. Rows of -1 are last, at infinite distance.
    """
    distances = np.empty(candidates.shape, dtype=np.float32)
    for start in range(0, len(queries), _RANKED):
        chunk = slice(start, start + _RANKED)
        difference = np.asarray(vectors[np.maximum(candidates[chunk], 0)], dtype=np.float32) - queries[chunk, None]
        distances[chunk] = np.sqrt(np.einsum("qcd,qcd->qc", difference, difference))
    distances[candidates < 0] = np.inf
    order = np.lexsort((candidates, distances), axis=1)[:, :k]
    return np.take_along_axis(distances, order, axis=1), np.take_along_axis(candidates, order, axis=1)


def check_kind(kind: str, count: int | None = None) -> None:
    """Raise an error if a kind of search cannot be used for `count` vectors.

    It may be unknown, not installed, or unsuitable for the number.

    Raises:
        ConfigError: If the kind is unknown, or needs more vectors.
        MissingExtraError: If FAISS is not installed.
    """
    if kind not in KINDS:
        raise ConfigError(f"kind: unknown name {kind!r}{did_you_mean(kind, KINDS)} Available: {', '.join(KINDS)}.")
    if kind != "exact":
        _faiss(kind)
    if kind == "ivfpq" and count is not None and count < _LEAST:
        raise ConfigError(f"kind: ivfpq needs at least {_LEAST} vectors, got {count}. Use exact or hnsw.")


def build_finder(kind: str, vectors: Vectors, folder: Path) -> None:
    """Write the files of a kind of search for vectors (N, D) into a folder.

    The kind "exact" needs none.
    """
    if kind == "exact" or len(vectors) == 0:
        return
    faiss = _faiss(kind)
    index = _hnsw(faiss, vectors) if kind == "hnsw" else _ivfpq(faiss, vectors)
    for start in range(0, len(vectors), _FAISS_CHUNK):
        index.add(np.ascontiguousarray(vectors[start : start + _FAISS_CHUNK], dtype=np.float32))
    write_atomically(folder / _FAISS_FILE, lambda partial: faiss.write_index(index, str(partial)))


def open_finder(kind: str, vectors: Vectors, folder: Path) -> Finder:
    """Return the finder of a kind of search for vectors (N, D)."""
    if kind == "exact" or len(vectors) == 0:
        return ExactFinder(vectors)
    try:
        return FaissFinder(kind, _faiss(kind).read_index(str(folder / _FAISS_FILE)))
    except RuntimeError as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rpartition("Error: ")[2]
        raise DataError(f"{folder / _FAISS_FILE}: file missing or damaged ({reason}). Build the index again.") from None


class FaissFinder:
    """Candidates of a FAISS index; more of them if distances are between coarse codes."""

    def __init__(self, kind: str, index: Any) -> None:
        self.kind, self._index = kind, index

    def candidates(self, queries: NDArray[np.float32], k: int) -> Positions:
        """Return rows (Q, k and more); -1 where FAISS found too few."""
        width = min(10 * k if self.kind == "ivfpq" else k + _SPARE, self._index.ntotal)
        if self.kind == "hnsw":  # efSearch limits the number of results
            self._index.hnsw.efSearch = max(128, 2 * width)
        found: Positions = self._index.search(np.ascontiguousarray(queries), width)[1].astype(np.int64)
        return found


def measure_recall(finder: Finder, vectors: Vectors, *, k: int = 10, sample: int = 500) -> float:
    """Return the recall of the k nearest vectors over a sample of stored vectors."""
    if len(vectors) < 2:
        return 1.0
    k = min(k, len(vectors) - 1)
    rows = np.random.default_rng(0).permutation(len(vectors))[:sample]
    queries = np.ascontiguousarray(vectors[np.sort(rows)], dtype=np.float32)
    exact = ExactFinder(vectors)
    hits = 0
    for own, true, found in zip(
        np.sort(rows),
        rank_exactly(vectors, queries, exact.candidates(queries, k + 1), k + 1)[1],
        rank_exactly(vectors, queries, finder.candidates(queries, k + 1), k + 1)[1],
        strict=True,
    ):
        expected = [row for row in true.tolist() if row != own][:k]
        hits += len(set(expected) & set(found.tolist()))
    return hits / (k * len(rows))


def _hnsw(faiss: Any, vectors: Vectors) -> Any:
    """Create a small-world graph (Malkov and Yashunin, 2018), 32 links per vector."""
    index = faiss.IndexHNSWFlat(vectors.shape[1], 32)
    index.hnsw.efConstruction = 200
    return index


def _ivfpq(faiss: Any, vectors: Vectors) -> Any:
    """Train k-means cells and codes of one byte per four dimensions.

    Reference: Jégou, Douze, and Schmid, 2011.
    """
    count, dim = vectors.shape
    codes = next(codes for codes in range(max(1, dim // 4), 0, -1) if dim % codes == 0)
    cells = max(1, min(round(4 * math.sqrt(count)), count // 39))
    index = faiss.index_factory(dim, f"IVF{cells},PQ{codes}x8")
    index.nprobe = max(8, cells // 16)
    rows = np.sort(np.random.default_rng(0).permutation(count)[: max(_LEAST, 64 * cells)])
    index.train(np.ascontiguousarray(vectors[rows], dtype=np.float32))
    return index


def _faiss(kind: str) -> Any:
    """Return the faiss module."""
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("faiss", "faiss", f"an index of kind {kind}") from None
    return faiss
