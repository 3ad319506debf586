"""Approximate finders of FAISS for millions of vectors, and how much they miss."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.errors import ConfigError, MissingExtraError, nearest
from winnow.files import write_atomically
from winnow.index.exact import SPARE, ExactFinder, Finder, Places, Vectors, measured

KINDS = ("exact", "hnsw", "ivfpq")
_FILE = "faiss.index"
_CHUNK = 65536
_LEAST = 10_000  # of which 256 codes per part of a vector can be learned


def check_kind(kind: str, count: int | None = None) -> None:
    """Refuse a kind that is not known, not installed or not for so few vectors."""
    if kind not in KINDS:
        raise ConfigError(f"kind={kind}: must be one of {', '.join(KINDS)}{nearest(kind, KINDS)}")
    if kind != "exact":
        _faiss(kind)
    if kind == "ivfpq" and count is not None and count < _LEAST:
        raise ConfigError(f"kind=ivfpq learns its codes from at least {_LEAST} vectors, and there are {count}: "
                          "use exact, which is fast enough for these, or hnsw")  # fmt: skip


def build_finder(kind: str, vectors: Vectors, folder: Path) -> None:
    """Make what a kind needs to search vectors (N, D) and write it into a folder; the exact one needs nothing."""
    if kind == "exact" or len(vectors) == 0:
        return
    faiss = _faiss(kind)
    made = _hnsw(faiss, vectors) if kind == "hnsw" else _ivfpq(faiss, vectors)
    for start in range(0, len(vectors), _CHUNK):
        made.add(np.ascontiguousarray(vectors[start : start + _CHUNK], dtype=np.float32))
    write_atomically(folder / _FILE, lambda partial: faiss.write_index(made, str(partial)))


def open_finder(kind: str, vectors: Vectors, folder: Path) -> Finder:
    """Return what searches vectors (N, D)."""
    if kind == "exact" or len(vectors) == 0:
        return ExactFinder(vectors)
    return FaissFinder(kind, _faiss(kind).read_index(str(folder / _FILE)))


class FaissFinder:
    """Rows proposed by FAISS; more of them where its distances are those of codes, which are coarse."""

    def __init__(self, kind: str, made: Any) -> None:
        self.kind, self._made = kind, made

    def candidates(self, queries: NDArray[np.float32], k: int) -> Places:
        """Return (Q, k and more) rows; -1 where too few were found."""
        width = min(10 * k if self.kind == "ivfpq" else k + SPARE, self._made.ntotal)
        if self.kind == "hnsw":  # it finds no more than it keeps at hand
            self._made.hnsw.efSearch = max(128, 2 * width)
        found: Places = self._made.search(np.ascontiguousarray(queries), width)[1].astype(np.int64)
        return found


def measure_recall(finder: Finder, vectors: Vectors, *, k: int = 10, sample: int = 500) -> float:
    """Return the share of the k nearest others of some stored vectors that a finder finds."""
    if len(vectors) < 2:
        return 1.0
    k = min(k, len(vectors) - 1)
    rows = np.random.default_rng(0).permutation(len(vectors))[:sample]
    queries = np.ascontiguousarray(vectors[np.sort(rows)], dtype=np.float32)
    exact = ExactFinder(vectors)
    hits = 0
    for own, true, found in zip(
        np.sort(rows),
        measured(vectors, queries, exact.candidates(queries, k + 1), k + 1)[1],
        measured(vectors, queries, finder.candidates(queries, k + 1), k + 1)[1],
        strict=True,
    ):
        wanted = [row for row in true.tolist() if row != own][:k]
        hits += len(set(wanted) & set(found.tolist()))
    return hits / (k * len(rows))


def _hnsw(faiss: Any, vectors: Vectors) -> Any:
    """A navigable small-world graph (Malkov and Yashunin, 2018): 32 links a vector, which stay in memory."""
    made = faiss.IndexHNSWFlat(vectors.shape[1], 32)
    made.hnsw.efConstruction = 200
    return made


def _ivfpq(faiss: Any, vectors: Vectors) -> Any:
    """Cells of k-means, and in them codes of a byte per four numbers (Jégou, Douze and Schmid, 2011)."""
    count, dim = vectors.shape
    parts = next(parts for parts in range(max(1, dim // 4), 0, -1) if dim % parts == 0)
    cells = max(1, min(round(4 * math.sqrt(count)), count // 39))
    made = faiss.index_factory(dim, f"IVF{cells},PQ{parts}x8")
    made.nprobe = max(8, cells // 16)
    rows = np.sort(np.random.default_rng(0).permutation(count)[: max(_LEAST, 64 * cells)])
    made.train(np.ascontiguousarray(vectors[rows], dtype=np.float32))
    return made


def _faiss(kind: str) -> Any:
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("faiss", "faiss", f"an index of kind {kind}") from None
    return faiss
