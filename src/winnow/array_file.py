"""NumPy files that are written chunk by chunk, and read on request without mapping them into memory.

Access to a mapped file that was cut short, or whose disk fails or is full, ends the process (SIGBUS). Reads and writes
raise an error instead, which ends one request.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from winnow.errors import DataError
from winnow.files import open_regular

_GAP_BYTES = 2**14
"""Rows that are closer together are read at once: copying the rows between costs less than another system call."""


def write_array_header(file: IO[bytes], dtype: DTypeLike, shape: tuple[int, ...]) -> None:
    """Write the header of a NumPy file, which the values follow in C order."""
    description = np.lib.format.dtype_to_descr(np.dtype(dtype))
    np.lib.format.write_array_header_1_0(file, {"descr": description, "fortran_order": False, "shape": shape})


class ArrayFile:
    """Rows of a NumPy file, indexed as an array (N, ...) by a slice, a row, or an array of rows.

    Many threads can read. The file may be removed or renamed while it is open.

    Args:
        path: The file.
        remedy: Last sentence of errors: what to do.

    Raises:
        OSError: If the path is no regular file.
        ValueError: If the file is no array of numbers in C order, or is cut short.
    """

    def __init__(self, path: Path, *, remedy: str = "Restore it from a copy.") -> None:
        self.path, self._remedy = path, remedy
        self._file = open_regular(path)
        weakref.finalize(self, self._file.close)  # closes it as silently as a map would be
        self.shape, self.dtype = _read_header(self._file)
        self._offset = self._file.tell()
        self._row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        self._lock = threading.Lock()
        if not self.is_whole():
            raise ValueError(f"expected {self.shape[0]} rows, the file has fewer")

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.shape[0] * self._row_bytes

    def is_whole(self) -> bool:
        """Whether the file has all of its bytes by now."""
        return os.fstat(self._file.fileno()).st_size >= self._offset + self.nbytes

    def check_length(self) -> None:
        """Raise `DataError` if the file was cut short after it was opened."""
        if not self.is_whole():
            raise self._cut_short()

    def __getitem__(self, rows: slice | ArrayLike) -> NDArray[Any]:
        """Return a copy of rows.

        Raises:
            DataError: If the file was cut short after it was opened, or cannot be read.
        """
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            return self._read(start, max(start, stop))[::step] if step > 0 else self[np.arange(start, stop, step)]
        wanted = np.asarray(rows, dtype=np.int64)
        unique, inverse = np.unique(wanted, return_inverse=True)
        if unique.size and not 0 <= unique[0] <= unique[-1] < len(self):
            raise IndexError(f"{self.path}: expected rows 0 to {len(self) - 1}, got {unique[0]} to {unique[-1]}")
        found = np.empty((len(unique), *self.shape[1:]), dtype=self.dtype)
        gap = 1 + _GAP_BYTES // max(1, self._row_bytes)
        ends = np.flatnonzero(np.diff(unique) > gap) + 1
        for first, last in zip([0, *ends.tolist()], [*ends.tolist(), len(unique)], strict=True):
            if first < last:
                low, high = int(unique[first]), int(unique[last - 1]) + 1
                if high - low == last - first:
                    self._fill(found[first:last], low)
                else:
                    found[first:last] = self._read(low, high)[unique[first:last] - low]
        return found[inverse.reshape(wanted.shape)]

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        """Read consecutive rows."""
        block = np.empty((stop - start, *self.shape[1:]), dtype=self.dtype)
        self._fill(block, start)
        return block

    def _fill(self, block: NDArray[Any], start: int) -> None:
        """Read as many rows as a contiguous array has."""
        left, offset = block.reshape(-1).view(np.uint8).data, self._offset + start * self._row_bytes
        while left:
            try:
                count = self._read_into(left, offset)
            except OSError as error:
                raise DataError(f"{self.path}: file cannot be read ({error.strerror}). {self._remedy}") from None
            if count == 0:
                raise self._cut_short()
            left, offset = left[count:], offset + count

    def _read_into(self, buffer: memoryview, offset: int) -> int:
        """Read bytes at an offset, and return how many."""
        if hasattr(os, "preadv"):
            return os.preadv(self._file.fileno(), [buffer], offset)
        with self._lock:  # Windows: the position belongs to the file, not to the call
            self._file.seek(offset)
            return self._file.readinto(buffer)

    def _cut_short(self) -> DataError:
        return DataError(f"{self.path}: file was cut short while it is in use. {self._remedy}")


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Read the header of a NumPy file; return shape and type."""
    try:
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, is_fortran, dtype = read(file)
    except Exception as error:  # NumPy's parser of a damaged header raises TokenError, SyntaxError, ...
        raise ValueError(f"no header of a NumPy file ({error})") from None
    if dtype.hasobject or not shape or min(shape) < 0 or (is_fortran and len(shape) > 1):
        raise ValueError(f"expected rows of numbers in C order, got {dtype} of shape {shape}")
    return shape, dtype
