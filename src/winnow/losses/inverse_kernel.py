# mypy: ignore-errors
"""The Triton kernel of `spd_inverse`: Gauss-Jordan elimination in registers, one program per matrix."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def inverse_kernel(matrices, inverses, n, N: tl.constexpr):
    """Invert symmetric positive definite (n, n) matrices, padded to N by ones on the diagonal; none needs pivoting."""
    start = tl.program_id(0) * n * n
    rows, columns = tl.arange(0, N), tl.arange(0, N)
    places = start + rows[:, None] * n + columns[None, :]
    inside = (rows < n)[:, None] & (columns < n)[None, :]
    matrix = tl.load(matrices + places, mask=inside, other=0.0)
    matrix = tl.where(rows[:, None] == tl.where(columns < n, N, columns)[None, :], 1.0, matrix)
    for k in range(n):
        in_row, in_column = (rows == k)[:, None], (columns == k)[None, :]
        row = tl.sum(tl.where(in_row, matrix, 0.0), 0)
        column = tl.sum(tl.where(in_column, matrix, 0.0), 1)
        pivot = tl.sum(tl.where(columns == k, row, 0.0), 0)
        row = tl.where(columns == k, 1.0, row) / pivot
        matrix = tl.where(in_row, row[None, :], tl.where(in_column, 0.0, matrix) - column[:, None] * row[None, :])
    tl.store(inverses + places, matrix, mask=inside)
