"""Exact nearest neighbors by Euclidean distance, in blocks of bounded memory.

A block of squared distances comes from one matrix product, and its error has a known bound. The block proposes a few
more candidates than requested. Candidates that are closer together than the bound are compared by
[`pair_distances`][winnow.evaluation.top_k.pair_distances] and ordered by (distance, index). If the bound does not rule
out every other reference, the query is searched again with more candidates. The order therefore does not depend on
block sizes, device, or matrix library, and equal vectors tie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from winnow.errors import DataError
from winnow.evaluation.inputs import Array, as_count, as_pair
from winnow.evaluation.top_k import (
    chunks,
    duplicate_ranks,
    error_bound,
    full_precision,
    merge_smallest,
    pair_distances,
    smallest,
    sort_rows,
    sort_rows_with_ties,
)

CHUNK_BYTES = 2**26
"""Default limit for the size of one block of distances."""

TILE = 2048
"""Rows and columns of a block when a set is searched in itself; two blocks fit into the caches of a CPU."""

_SPARE = 8
_DEEP = 64
_MOST_COLUMNS = 16384
# On the CPU a block is searched while it is still in the caches.
_CPU_COLUMNS, _CPU_ROWS = 4096, 1024
_CPU_PAIR_VALUES, _PAIR_VALUES = 2**18, 2**24


def nearest_neighbors(
    queries: Array,
    references: Array,
    k: int,
    *,
    exclude_self: bool = False,
    chunk_bytes: int = CHUNK_BYTES,
) -> tuple[Tensor, Tensor]:
    r"""Find the `k` nearest references of every query, exactly.

    Ranks by $\lVert q - r \rVert_2$ without normalization. For L2-normalized vectors
    $\lVert q - r \rVert_2^2 = 2 - 2\, q^\top r$, so the order is the order of cosine similarity. Equal distances
    are ordered by the lower reference index.

    Args:
        queries: Shape (Q, D), any float type. Computed in float32, or in float64 if either side is float64.
        references: Shape (N, D).
        k: Number of neighbors, at most the number of references; larger values are reduced to it.
        exclude_self: Query `i` is reference `i` (so Q = N) and not its own neighbor. Copies of it still are.
        chunk_bytes: Size limit of one block of distances. Memory stays within a few blocks for any Q and N.

    Returns:
        distances: Shape (Q, k), ascending.
        indices: Shape (Q, k), int64.

    Raises:
        DataError: If the arrays cannot be compared.
    """
    left, right = as_pair(queries, references)
    if exclude_self and len(left) != len(right):
        raise DataError(
            f"exclude_self: query i must be reference i, but there are {len(left)} queries and "
            f"{len(right)} references. Pass the same array twice, or omit exclude_self."
        )
    if left.data_ptr() == right.data_ptr() and left.shape == right.shape:
        right = left  # a set searched in itself, which needs half the products
    k = min(as_count(k, "k", 1), len(right) - int(exclude_self))
    every = torch.arange(len(left), device=left.device)
    finder = ExactSearch(left, right, depth=k, self_index=every if exclude_self else None, chunk_bytes=chunk_bytes)
    finder.precompute_candidates([k] * len(left))
    distances = left.new_empty(len(left), k)
    indices = torch.empty(len(left), k, dtype=torch.int64, device=left.device)
    for rows in chunks(every, size=finder.rows_at_once(k)):
        distances[rows], indices[rows] = finder.nearest(rows, k, num_exact=k)
    return distances, indices


class ExactSearch:
    """Exact search of fixed queries in fixed references, for several depths.

    Args:
        queries: Shape (Q, D), float32 or float64, finite.
        references: Shape (N, D), same type and device.
        depth: Largest number of neighbors that will be requested.
        self_index: Reference that each query is itself and that is excluded, shape (Q,), int64. None: no exclusion.
        chunk_bytes: Size limit of one block of distances.
    """

    def __init__(
        self,
        queries: Tensor,
        references: Tensor,
        *,
        depth: int,
        self_index: Tensor | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.chunk_bytes = as_count(chunk_bytes, "chunk_bytes", 1)
        # Of many equal references only the first depth + 1 can be neighbors (one of them may be the query itself).
        self.eligible = (duplicate_ranks(references) <= depth).nonzero().flatten()
        self.queries = queries
        self.references = references if len(self.eligible) == len(references) else references[self.eligible]
        self.self_index: Tensor | None = None
        if self_index is not None:
            positions = torch.full((len(references),), -1, device=references.device)
            positions[self.eligible] = torch.arange(len(self.eligible), device=references.device)
            self.self_index = positions[self_index]
        # Distances do not depend on the origin, and rounding errors are smallest around the mean. A power of two as
        # the unit prevents overflow of the squares and changes no digit.
        total = torch.stack([chunk.double().sum(dim=0) for chunk in chunks(references)]).sum(dim=0)
        self.center = total / len(references)
        self.unit = 1.0
        span = float(torch.stack([self._centered(chunk).abs().max() for chunk in chunks(queries, references)]).max())
        self.unit = 2.0 ** -min(max(math.frexp(span)[1], -1000), 1000)
        self.points: dict[torch.dtype, Tensor] = {}
        self.norms: dict[torch.dtype, Tensor] = {}
        self.table: tuple[Tensor, Tensor] | None = None

    def precompute_candidates(self, depths: Sequence[int]) -> None:
        """Compute the candidates of all queries together where that halves the products.

        This applies to a set that is searched in itself on the CPU, if most of its rows are queried at a small depth.
        On a GPU products are cheap compared with the other steps.

        Args:
            depths: Depth of each query that will be searched.
        """
        shallow = [depth for depth in depths if self._width(depth) <= _DEEP]
        count, dtype, device = len(self.references), self.references.dtype, self.references.device
        if self.queries is not self.references or device.type != "cpu" or 2 * len(shallow) <= count:
            return
        width = self._width(max(shallow))
        if count >= TILE and 16 * count * width + 8 * TILE**2 <= 8 * self.chunk_bytes:
            self._prepare(dtype)
            with full_precision(device):
                self.table = self_candidates(self.points[dtype], self.norms[dtype], width)

    def rows_at_once(self, k: int) -> int:
        """Return the number of queries whose block of distances fills `chunk_bytes`."""
        return self._rows(self._width(k))

    def nearest(self, rows: Tensor, k: int, *, num_exact: int) -> tuple[Tensor, Tensor]:
        """Find the `k` nearest references of given queries, by (distance, index).

        Args:
            rows: Indices of the queries, shape (B,). At most `rows_at_once(k)` of them keep memory bounded.
            k: At most `depth` and at most the number of references.
            num_exact: Number of leading distances that are computed exactly. The other distances carry the rounding
                of a matrix product; their order is exact.

        Returns:
            Distances (B, k) and reference indices (B, k).
        """
        with full_precision(rows.device):
            squares, positions = self._nearest(rows, k, num_exact, self._width(k))
        distances = (squares.clamp_min(0).sqrt() / self.unit).to(self.references.dtype)
        return distances, self.eligible[positions]

    def _centered(self, vectors: Tensor) -> Tensor:
        """Return vectors relative to the mean of the references, in units, float64."""
        return (vectors.double() - self.center).mul_(self.unit)

    def _width(self, k: int) -> int:
        """Return the number of candidates for `k` neighbors.

        The query itself may be among them.
        """
        return min(k + _SPARE + (self.self_index is not None), len(self.eligible))

    def _dtype(self, width: int) -> torch.dtype:
        """Return the type of the products.

        At large depths float32 would leave too many orders undecided.
        """
        return torch.float64 if width > _DEEP else self.references.dtype

    def _rows(self, width: int) -> int:
        """Return the number of queries per block for `width` candidates."""
        per_row = self._dtype(width).itemsize * self._columns(width) + 96 * width
        rows = max(1, self.chunk_bytes // per_row)
        return min(rows, _CPU_ROWS) if self.queries.device.type == "cpu" else rows

    def _columns(self, width: int) -> int:
        """Return the number of references per block for `width` candidates."""
        few = _CPU_COLUMNS if self.queries.device.type == "cpu" else _MOST_COLUMNS
        wanted = min(max(few, 16 * width), _MOST_COLUMNS)
        fitting = self.chunk_bytes // (16 * self._dtype(width).itemsize)
        return min(len(self.eligible), max(min(wanted, fitting), width))

    def _prepare(self, dtype: torch.dtype) -> None:
        """Center the references and compute their squared norms, once per type."""
        if dtype not in self.points:
            points = torch.empty_like(self.references, dtype=dtype)
            for into, chunk in zip(chunks(points), chunks(self.references), strict=True):
                into.copy_(self._centered(chunk))
            norms = torch.cat([chunk.double().square().sum(dim=1) for chunk in chunks(points)])
            self.points[dtype], self.norms[dtype] = points, norms.to(dtype)

    def _nearest(self, rows: Tensor, k: int, num_exact: int, width: int) -> tuple[Tensor, Tensor]:
        """Find the `k` nearest references among `width` candidates, or among more.

        Returns:
            Squared distances (B, k) in units, float64, and positions among the eligible references (B, k).
        """
        points = self._centered(self.queries[rows]).to(self._dtype(width))
        lengths = points.double().square().sum(dim=1, keepdim=True)
        self._prepare(points.dtype)
        reach = self.norms[points.dtype].max().double()
        from_table = self.table is not None and width <= self.table[0].shape[1]
        slack = 2 * error_bound(lengths, reach, self.references.shape[1], points.dtype, one_product=from_table)
        if self.table is not None and from_table:
            squares, positions = self.table[0][rows].double(), self.table[1][rows]
            width = squares.shape[1]
        else:
            squares, positions = self._candidates(points, width)
            squares = squares.double() + lengths
        farthest = squares.amax(dim=1, keepdim=True)
        if self.self_index is not None:
            squares.masked_fill_(positions == self.self_index[rows, None], math.inf)
        squares, order = sort_rows(squares)
        positions = positions.gather(1, order)

        close = squares.diff(dim=1) <= slack
        inexact = torch.zeros_like(squares, dtype=torch.bool)
        inexact[:, :num_exact] = True
        inexact[:, 1:] |= close
        inexact[:, :-1] |= close
        self._recompute(rows, squares, positions, inexact)
        tied = close.any(dim=1).nonzero().flatten()
        squares[tied], positions[tied] = sort_rows_with_ties(squares[tied], positions[tied])
        squares, positions = squares[:, :k], positions[:, :k]

        if width < len(self.eligible):
            again = (squares[:, -1:] + slack >= farthest).flatten().nonzero().flatten()
            wider = min(4 * width, len(self.eligible))
            for chunk in chunks(again, size=self._rows(wider)):
                squares[chunk], positions[chunk] = self._nearest(rows[chunk], k, num_exact, wider)
        return squares, positions

    def _candidates(self, points: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Return the `width` smallest |r|^2 - 2 q.r of every row, with positions.

        They are unordered.
        """
        columns = self._columns(width)
        references, norms = self.points[points.dtype], self.norms[points.dtype]
        block = points.new_empty(len(points) * columns)
        best: tuple[Tensor, Tensor] | None = None
        for start in range(0, len(references), columns):
            chunk = references[start : start + columns]
            values = block[: len(points) * len(chunk)].view(len(points), len(chunk))
            torch.addmm(norms[start : start + columns], points, chunk.T, alpha=-2, out=values)
            best = smallest(values, width) if best is None else merge_smallest(best, values, start)
        assert best is not None  # there is at least one reference
        return best

    def _recompute(self, rows: Tensor, squares: Tensor, positions: Tensor, chosen: Tensor) -> None:
        """Write the exact squared distances of the chosen candidates into `squares`."""
        most = _CPU_PAIR_VALUES if self.queries.device.type == "cpu" else _PAIR_VALUES
        size = max(1, min(self.chunk_bytes // 32, most) // self.references.shape[1])
        for pairs in chunks((chosen & squares.isfinite()).nonzero(), size=size):
            row, column = pairs.unbind(dim=1)
            left, right = self.queries[rows[row]], self.references[positions[row, column]]
            squares[row, column] = pair_distances(left, right, self.unit)


def self_candidates(points: Tensor, norms: Tensor, width: int) -> tuple[Tensor, Tensor]:
    r"""Find the `width` smallest squared distances of every point to all points.

    Only blocks on and above the diagonal are computed, each by one matrix product,

    $$\lVert x \rVert^2 + \lVert y \rVert^2 - 2\, x^\top y
      = (-2x,\ 1,\ \lVert x \rVert^2)^\top (y,\ \lVert y \rVert^2,\ 1).$$

    Each block serves its rows and its columns, which halves the products of a search of queries in references.

    Args:
        points: Shape (N, D), on the CPU; N is at least `TILE`.
        norms: Squared norms of the points, shape (N,).
        width: At most `TILE`.

    Returns:
        Values and positions, each of shape (N, width), unordered.
    """
    ones = torch.ones_like(norms)
    found, at = points.new_empty(len(points), width), torch.empty(len(points), width, dtype=torch.int64)

    def merge(rows: slice, values: Tensor, start: int) -> None:
        """Merge further columns into the candidates of the given rows."""
        if start == 0:
            found[rows], at[rows] = smallest(values.contiguous(), width)
        else:
            found[rows], at[rows] = merge_smallest((found[rows], at[rows]), values, start)

    tiles = [slice(start, start + TILE) for start in range(0, len(points), TILE)]
    for number, rows in enumerate(tiles):
        left = torch.cat([points[rows] * -2, torch.stack([ones[rows], norms[rows]], dim=1)], dim=1)
        for columns in tiles[number:]:
            right = torch.cat([points[columns], torch.stack([norms[columns], ones[columns]], dim=1)], dim=1)
            values = left @ right.T
            merge(rows, values, columns.start)
            if columns is not rows:
                merge(columns, values.T, rows.start)
    return found, at
