"""Exact nearest neighbours by Euclidean distance, in blocks of bounded memory.

A block of squared distances comes from one matrix product and is wrong by at most a known bound. It only proposes
candidates, a few more than asked for. Candidates that lie closer together than the bound are measured again exactly
([`pair_distances`][winnow.evaluation.exact.pair_distances]) and ordered by (distance, index). A query for which the
bound does not rule out every reference that was not proposed is searched again with more candidates. So the order
does not depend on the block sizes, the device or the matrix library, and equal vectors tie.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from winnow.evaluation.exact import full_precision, pair_distances, parts, repeat_ranks
from winnow.evaluation.inputs import as_count

CHUNK_BYTES = 2**26
"""Default size of one block of distances."""

_BLOCK_COLUMNS = 16384
_SPARE = 8
_PAIR_VALUES = 2**18
_DEEP = 64


class ExactSearch:
    """References made ready for search, and the queries to be looked up in them.

    Args:
        queries: Shape (Q, D), float32 or float64, finite.
        references: Shape (N, D), of the same type and device.
        depth: The most neighbours that will be asked for.
        exclude_self: Query `i` is reference `i` and is not its own neighbour.
        chunk_bytes: Size of one block of distances.
    """

    def __init__(
        self,
        queries: Tensor,
        references: Tensor,
        *,
        depth: int,
        exclude_self: bool = False,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.chunk_bytes = as_count(chunk_bytes, "chunk_bytes", 1)
        # Of many equal references only the first depth + 1 can be neighbours (one of them may be the query itself).
        self.kept = (repeat_ranks(references) <= depth).nonzero().flatten()
        self.queries = queries
        self.references = references if len(self.kept) == len(references) else references[self.kept]
        self.own: Tensor | None = None
        if exclude_self:
            self.own = torch.full((len(references),), -1, device=references.device)
            self.own[self.kept] = torch.arange(len(self.kept), device=references.device)
        # Distances do not change with the origin, and rounding errors are smallest around the mean; a power of two
        # as the unit keeps squares from overflowing and changes no digit.
        self.centre = torch.stack([part.double().sum(dim=0) for part in parts(references)]).sum(dim=0) / len(references)
        self.unit = 1.0
        span = max(float(self._centred(part).abs().max()) for part in parts(queries, references))
        self.unit = 2.0 ** -min(max(math.frexp(span)[1], -1000), 1000)
        self.points: dict[torch.dtype, Tensor] = {}
        self.norms: dict[torch.dtype, Tensor] = {}

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
        return min(k + _SPARE, len(self.kept))

    def _dtype(self, width: int) -> torch.dtype:
        """Deep down neighbours lie so close together that float32 would leave the order of many of them open."""
        return torch.float64 if width > _DEEP else self.references.dtype

    def _rows(self, width: int) -> int:
        per_row = self._dtype(width).itemsize * self._columns(width) + 96 * width
        return max(1, self.chunk_bytes // per_row)

    def _columns(self, width: int) -> int:
        fitting = self.chunk_bytes // (16 * self._dtype(width).itemsize)
        return min(len(self.kept), max(min(_BLOCK_COLUMNS, fitting), width))

    def _prepare(self, dtype: torch.dtype) -> None:
        """Centre the references and take their squared norms, once for every type."""
        if dtype not in self.points:
            points = torch.cat([self._centred(part).to(dtype) for part in parts(self.references)])
            norms = torch.cat([part.double().square().sum(dim=1) for part in parts(points)])
            self.points[dtype], self.norms[dtype] = points, norms.to(dtype)

    def _nearest(self, rows: Tensor, k: int, measured: int, width: int) -> tuple[Tensor, Tensor]:
        """Squared distances (B, k) in units, float64, and places among the kept references, from `width` candidates."""
        points = self._centred(self.queries[rows]).to(self._dtype(width))
        own = None if self.own is None else self.own[rows]
        squares, places = self._candidates(points, own, width)
        lengths = points.double().square().sum(dim=1, keepdim=True)
        squares = squares.double() + lengths
        slack = 2 * self._error(lengths, points.dtype)
        squares, order = squares.sort(dim=1)
        places = places.gather(1, order)
        farthest = squares[:, -1:].clone()

        close = squares.diff(dim=1) <= slack
        unclear = torch.zeros_like(squares, dtype=torch.bool)
        unclear[:, :measured] = True
        unclear[:, 1:] |= close
        unclear[:, :-1] |= close
        self._measure(rows, squares, places, unclear)
        squares, places = _by_value_then_place(squares, places)
        squares, places = squares[:, :k], places[:, :k]

        if width < len(self.kept):
            again = (squares[:, -1:] + slack >= farthest).flatten().nonzero().flatten()
            wider = min(4 * width, len(self.kept))
            for part in parts(again, size=self._rows(wider)):
                squares[part], places[part] = self._nearest(rows[part], k, measured, wider)
        return squares, places

    def _candidates(self, points: Tensor, own: Tensor | None, width: int) -> tuple[Tensor, Tensor]:
        """The `width` smallest |r|^2 - 2 q.r of every row and their places, unordered; a query's own is infinite."""
        columns = self._columns(width)
        self._prepare(points.dtype)
        references, norms = self.points[points.dtype], self.norms[points.dtype]
        block = points.new_empty(len(points) * columns)
        best: tuple[Tensor, Tensor] | None = None
        for start in range(0, len(references), columns):
            part = references[start : start + columns]
            values = block[: len(points) * len(part)].view(len(points), len(part))
            torch.addmm(norms[start : start + columns], points, part.T, alpha=-2, out=values)
            if own is not None:
                inside = ((own >= start) & (own < start + len(part))).nonzero().flatten()
                values[inside, own[inside] - start] = math.inf
            found, at = values.topk(min(width, len(part)), dim=1, largest=False, sorted=False)
            at += start
            if best is not None:
                found, at = torch.cat([best[0], found], dim=1), torch.cat([best[1], at], dim=1)
                found, chosen = found.topk(min(width, found.shape[1]), dim=1, largest=False, sorted=False)
                at = at.gather(1, chosen)
            best = found, at
        assert best is not None  # there is at least one reference
        return best

    def _error(self, lengths: Tensor, dtype: torch.dtype) -> Tensor:
        """Bound on the error of a squared distance in units, shape (B, 1), given the squared `lengths` of the queries.

        The standard bound of a dot product of D terms; and the rounding of the centred points, of the norms, and of
        adding them (which a matrix library may do anew after every 64 terms or more).
        """
        info, dimension = torch.finfo(dtype), self.references.shape[1]
        lengths, reach = lengths.sqrt(), self.norms[dtype].max().double().sqrt()
        product = (2 * dimension + 8) * lengths * reach
        rest = (dimension // 64 + 16) * (lengths + reach).square()
        return info.eps / 2 * (product + rest) + (dimension + 8) * info.tiny

    def _measure(self, rows: Tensor, squares: Tensor, places: Tensor, chosen: Tensor) -> None:
        """Write the exact squared distances of the chosen candidates into `squares`."""
        at_once = max(1, min(self.chunk_bytes // 32, _PAIR_VALUES) // self.references.shape[1])
        for pairs in parts((chosen & squares.isfinite()).nonzero(), size=at_once):
            row, column = pairs.unbind(dim=1)
            left, right = self.queries[rows[row]], self.references[places[row, column]]
            squares[row, column] = pair_distances(left, right, self.unit)


def _by_value_then_place(squares: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Sort every row by value, equal values by place."""
    squares, order = squares.sort(dim=1)
    places = places.gather(1, order)
    tied = (squares[:, 1:] == squares[:, :-1]).any(dim=1).nonzero().flatten()
    if len(tied):
        ordered, by_place = places[tied].sort(dim=1)
        values, by_value = squares[tied].gather(1, by_place).sort(dim=1, stable=True)
        squares[tied], places[tied] = values, ordered.gather(1, by_value)
    return squares, places
