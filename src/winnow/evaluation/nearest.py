"""Nearest neighbours of a set of queries."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.errors import DataError
from winnow.evaluation.blocks import CHUNK_BYTES, ExactSearch
from winnow.evaluation.exact import parts
from winnow.evaluation.inputs import Array, as_count, as_pair


def search(
    queries: Array,
    references: Array,
    k: int,
    *,
    exclude_self: bool = False,
    chunk_bytes: int = CHUNK_BYTES,
) -> tuple[Tensor, Tensor]:
    r"""The `k` nearest references of every query, exactly.

    Ranks by $\lVert q - r \rVert_2$ and does not normalise; for l2-normalised vectors
    $\lVert q - r \rVert_2^2 = 2 - 2\, q^\top r$, so that the order is that of the cosine. Equal distances are ordered
    by the lower reference index.

    Args:
        queries: Shape (Q, D), any float type; computed in float32, or float64 if either side is float64.
        references: Shape (N, D).
        k: Number of neighbours; cut to the number of references there are.
        exclude_self: Query `i` is reference `i` (so Q = N), and is not its own neighbour. Copies of it are.
        chunk_bytes: The most that one block of distances may take; memory stays within a few of these for any Q and N.

    Returns:
        distances: Shape (Q, k), ascending.
        indices: Shape (Q, k), int64.

    Raises:
        DataError: if the arrays cannot be compared.
    """
    left, right = as_pair(queries, references)
    if exclude_self and len(left) != len(right):
        raise DataError(
            f"exclude_self needs query i to be reference i, but there are {len(left)} queries and "
            f"{len(right)} references; give the same set twice, or leave exclude_self out"
        )
    if left.data_ptr() == right.data_ptr() and left.shape == right.shape:
        right = left  # a set in itself, which takes half the work
    k = min(as_count(k, "k", 1), len(right) - int(exclude_self))
    every = torch.arange(len(left), device=left.device)
    finder = ExactSearch(left, right, depth=k, own=every if exclude_self else None, chunk_bytes=chunk_bytes)
    finder.foresee([k] * len(left))
    distances = left.new_empty(len(left), k)
    indices = torch.empty(len(left), k, dtype=torch.int64, device=left.device)
    for rows in parts(every, size=finder.rows_at_once(k)):
        distances[rows], indices[rows] = finder.nearest(rows, k, measured=k)
    return distances, indices
