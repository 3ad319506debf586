"""Exact nearest neighbours by Euclidean distance, in blocks of bounded memory.

A block of squared distances comes from one matrix product and is wrong by at most a known bound. It only proposes
candidates, a few more than asked for. Candidates that lie closer together than the bound are measured again exactly
([`pair_distances`][winnow.evaluation.exact.pair_distances]) and ordered by (distance, index). A query for which the
bound does not rule out every reference that was not proposed is searched again with more candidates. So the order
does not depend on the block sizes, the device or the matrix library, and equal vectors tie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from winnow.evaluation import mutual
from winnow.evaluation.exact import error_bound, full_precision, pair_distances, parts, repeat_ranks
from winnow.evaluation.inputs import as_count
from winnow.evaluation.select import ascending, by_value_then_place, merged, smallest

CHUNK_BYTES = 2**26
"""Default for the most that one block of distances may take."""

_SPARE = 8
_DEEP = 64
_MOST_COLUMNS = 16384
# On the CPU a block that stays in the caches is searched at once after it is made.
_CPU_COLUMNS, _CPU_ROWS = 4096, 1024
_CPU_PAIR_VALUES, _PAIR_VALUES = 2**18, 2**24


class ExactSearch:
    """References made ready for search, and the queries to be looked up in them.

    Args:
        queries: Shape (Q, D), float32 or float64, finite.
        references: Shape (N, D), of the same type and device.
        depth: The most neighbours that will be asked for.
        own: The reference that each query is itself and that is not its neighbour, shape (Q,), int64; None: there is
            none.
        chunk_bytes: The most that one block of distances may take.
    """

    def __init__(
        self,
        queries: Tensor,
        references: Tensor,
        *,
        depth: int,
        own: Tensor | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.chunk_bytes = as_count(chunk_bytes, "chunk_bytes", 1)
        # Of many equal references only the first depth + 1 can be neighbours (one of them may be the query itself).
        self.kept = (repeat_ranks(references) <= depth).nonzero().flatten()
        self.queries = queries
        self.references = references if len(self.kept) == len(references) else references[self.kept]
        self.own: Tensor | None = None
        if own is not None:
            places = torch.full((len(references),), -1, device=references.device)
            places[self.kept] = torch.arange(len(self.kept), device=references.device)
            self.own = places[own]
        # Distances do not change with the origin, and rounding errors are smallest around the mean; a power of two
        # as the unit keeps squares from overflowing and changes no digit.
        self.centre = torch.stack([part.double().sum(dim=0) for part in parts(references)]).sum(dim=0) / len(references)
        self.unit = 1.0
        span = float(torch.stack([self._centred(part).abs().max() for part in parts(queries, references)]).max())
        self.unit = 2.0 ** -min(max(math.frexp(span)[1], -1000), 1000)
        self.points: dict[torch.dtype, Tensor] = {}
        self.norms: dict[torch.dtype, Tensor] = {}
        self.table: tuple[Tensor, Tensor] | None = None

    def foresee(self, depths: Sequence[int]) -> None:
        """Do at once what can be shared among the queries that will be asked for, given their depths.

        A set that is searched in itself needs half the products if most of it is searched, and not deep: the
        candidates of all are then found together. On a GPU products are cheap, and it is the other steps that count.
        """
        shallow = [depth for depth in depths if self._width(depth) <= _DEEP]
        count, dtype, device = len(self.references), self.references.dtype, self.references.device
        if self.queries is not self.references or device.type != "cpu" or 2 * len(shallow) <= count:
            return
        width = self._width(max(shallow))
        if count >= mutual.TILE and 16 * count * width + 8 * mutual.TILE**2 <= 8 * self.chunk_bytes:
            self._prepare(dtype)
            with full_precision(device):
                self.table = mutual.mutual_candidates(self.points[dtype], self.norms[dtype], width)

    def rows_at_once(self, k: int) -> int:
        """How many queries to ask for at once, so that one block of distances fills `chunk_bytes`."""
        return self._rows(self._width(k))

    def nearest(self, rows: Tensor, k: int, *, measured: int) -> tuple[Tensor, Tensor]:
        """The `k` nearest references of some queries, by (distance, index).

        Args:
            rows: Indices of the queries, shape (B,); at most `rows_at_once(k)` of them keep memory bounded.
            k: At most `depth`, and at most the number of references there are.
            measured: The first so many distances are exact; the others are right up to the rounding of a matrix
                product, while their order is exact.

        Returns:
            Distances (B, k) and reference indices (B, k).
        """
        with full_precision(rows.device):
            squares, places = self._nearest(rows, k, measured, self._width(k))
        distances = (squares.clamp_min(0).sqrt() / self.unit).to(self.references.dtype)
        return distances, self.kept[places]

    def _centred(self, vectors: Tensor) -> Tensor:
        """Vectors around the mean of the references, in units, float64."""
        return (vectors.double() - self.centre).mul_(self.unit)

    def _width(self, k: int) -> int:
        """How many candidates to propose for `k` neighbours; the query itself may be among them."""
        return min(k + _SPARE + (self.own is not None), len(self.kept))

    def _dtype(self, width: int) -> torch.dtype:
        """Deep down neighbours lie so close together that float32 would leave the order of many of them open."""
        return torch.float64 if width > _DEEP else self.references.dtype

    def _rows(self, width: int) -> int:
        per_row = self._dtype(width).itemsize * self._columns(width) + 96 * width
        rows = max(1, self.chunk_bytes // per_row)
        return min(rows, _CPU_ROWS) if self.queries.device.type == "cpu" else rows

    def _columns(self, width: int) -> int:
        few = _CPU_COLUMNS if self.queries.device.type == "cpu" else _MOST_COLUMNS
        wanted = min(max(few, 16 * width), _MOST_COLUMNS)
        fitting = self.chunk_bytes // (16 * self._dtype(width).itemsize)
        return min(len(self.kept), max(min(wanted, fitting), width))

    def _prepare(self, dtype: torch.dtype) -> None:
        """Centre the references and take their squared norms, once for every type."""
        if dtype not in self.points:
            points = torch.empty_like(self.references, dtype=dtype)
            for into, part in zip(parts(points), parts(self.references), strict=True):
                into.copy_(self._centred(part))
            norms = torch.cat([part.double().square().sum(dim=1) for part in parts(points)])
            self.points[dtype], self.norms[dtype] = points, norms.to(dtype)

    def _nearest(self, rows: Tensor, k: int, measured: int, width: int) -> tuple[Tensor, Tensor]:
        """Squared distances (B, k) in units, float64, and places among the kept references, from `width` candidates."""
        points = self._centred(self.queries[rows]).to(self._dtype(width))
        lengths = points.double().square().sum(dim=1, keepdim=True)
        self._prepare(points.dtype)
        reach = self.norms[points.dtype].max().double()
        at_once = self.table is not None and width <= self.table[0].shape[1]
        slack = 2 * error_bound(lengths, reach, self.references.shape[1], points.dtype, at_once=at_once)
        if self.table is not None and at_once:
            squares, places = self.table[0][rows].double(), self.table[1][rows]
            width = squares.shape[1]
        else:
            squares, places = self._candidates(points, width)
            squares = squares.double() + lengths
        farthest = squares.amax(dim=1, keepdim=True)
        if self.own is not None:
            squares.masked_fill_(places == self.own[rows, None], math.inf)
        squares, order = ascending(squares)
        places = places.gather(1, order)

        close = squares.diff(dim=1) <= slack
        unclear = torch.zeros_like(squares, dtype=torch.bool)
        unclear[:, :measured] = True
        unclear[:, 1:] |= close
        unclear[:, :-1] |= close
        self._measure(rows, squares, places, unclear)
        open_rows = close.any(dim=1).nonzero().flatten()
        squares[open_rows], places[open_rows] = by_value_then_place(squares[open_rows], places[open_rows])
        squares, places = squares[:, :k], places[:, :k]

        if width < len(self.kept):
            again = (squares[:, -1:] + slack >= farthest).flatten().nonzero().flatten()
            wider = min(4 * width, len(self.kept))
            for part in parts(again, size=self._rows(wider)):
                squares[part], places[part] = self._nearest(rows[part], k, measured, wider)
        return squares, places

    def _candidates(self, points: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """The `width` smallest |r|^2 - 2 q.r of every row and their places, unordered."""
        columns = self._columns(width)
        references, norms = self.points[points.dtype], self.norms[points.dtype]
        block = points.new_empty(len(points) * columns)
        best: tuple[Tensor, Tensor] | None = None
        for start in range(0, len(references), columns):
            part = references[start : start + columns]
            values = block[: len(points) * len(part)].view(len(points), len(part))
            torch.addmm(norms[start : start + columns], points, part.T, alpha=-2, out=values)
            best = smallest(values, width) if best is None else merged(best, values, start)
        assert best is not None  # there is at least one reference
        return best

    def _measure(self, rows: Tensor, squares: Tensor, places: Tensor, chosen: Tensor) -> None:
        """Write the exact squared distances of the chosen candidates into `squares`."""
        most = _CPU_PAIR_VALUES if self.queries.device.type == "cpu" else _PAIR_VALUES
        at_once = max(1, min(self.chunk_bytes // 32, most) // self.references.shape[1])
        for pairs in parts((chosen & squares.isfinite()).nonzero(), size=at_once):
            row, column = pairs.unbind(dim=1)
            left, right = self.queries[rows[row]], self.references[places[row, column]]
            squares[row, column] = pair_distances(left, right, self.unit)
