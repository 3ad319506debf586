"""Cifar's pickles, read without running anything in them."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.errors import DataError


class _Array:
    """Stands for `numpy.ndarray`: takes its state, which for bytes is a shape and the bytes."""

    value: NDArray[np.uint8]

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, by_columns, content = state
        if not isinstance(kind, _Kind) or kind.name not in ("u1", "|u1"):
            raise pickle.UnpicklingError("an array holds something other than bytes")
        values = np.frombuffer(content, dtype=np.uint8)
        self.value = values.reshape([int(length) for length in shape], order="F" if by_columns else "C")


class _Kind:
    """Stands for `numpy.dtype`."""

    def __init__(self, name: str | bytes = "", *_: Any) -> None:
        self.name = name.decode() if isinstance(name, bytes) else str(name)

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like, of which bytes have none."""


def _array(*_: Any) -> _Array:
    return _Array()


def _encode(text: str, codec: str) -> bytes:
    """How Python 3 writes bytes into the old format."""
    return text.encode("latin1" if codec in ("latin1", b"latin1") else "ascii")


_ALLOWED = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("numpy.core.multiarray", "_reconstruct"): _array,
    ("numpy._core.multiarray", "_reconstruct"): _array,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    """Knows stand-ins for what arrays of bytes are made of, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a stand-in, or refuse."""
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which images do not need") from None


def read_batch(path: Path) -> dict[str, Any]:
    """Read one of Cifar's files: plain values by key, the images as an array of bytes.

    Raises:
        DataError: when the file is damaged, or asks for anything but arrays of bytes, numbers and text.
    """
    try:
        batch = _Unpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        if not isinstance(batch, dict):
            raise ValueError("it is no dictionary")
        named = {key.decode() if isinstance(key, bytes) else str(key): value for key, value in batch.items()}
    except Exception as error:  # a damaged pickle raises nearly anything
        raise DataError(f"{path} is no file of Cifar ({error}); get it anew") from None
    return {key: value.value if isinstance(value, _Array) else value for key, value in named.items()}
