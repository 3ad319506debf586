"""Checks of embeddings, labels, and counts, shared by retrieval and the index."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from winnow.errors import ConfigError, DataError

Array: TypeAlias = Tensor | np.ndarray[Any, np.dtype[Any]]
"""A torch tensor or a numpy array."""

_INT64_MAX = 2**63 - 1


def as_embeddings(values: Array, name: str = "embeddings", *, empty: bool = False) -> Tensor:
    """Return embeddings as a finite float32 or float64 tensor of shape (N, D).

    float64 stays float64. float16 and bfloat16 become float32 without loss.

    Args:
        values: Shape (N, D), any float type.
        name: Name of the argument, for error messages.
        empty: Accept an array without rows.

    Raises:
        DataError: If the shape or type is wrong, the array is empty, or an entry is NaN or infinite.
    """
    tensor = _as_tensor(values, name)
    if tensor.ndim != 2:
        raise DataError(f"{name}: expected shape (N, D), one row per image, got {tuple(tensor.shape)}. Reshape it.")
    if not tensor.is_floating_point():
        raise DataError(f"{name}: expected a float type, got {tensor.dtype}. Convert it with .float().")
    if tensor.numel() == 0 and not (empty and tensor.shape[1]):
        raise DataError(f"{name}: array is empty, shape {tuple(tensor.shape)}. Pass at least one row and one column.")
    if tensor.dtype != torch.float64:
        tensor = tensor.float()
    finite = torch.isfinite(tensor).all(dim=1)
    if not bool(finite.all()):
        bad = (~finite).nonzero().flatten()
        raise DataError(
            f"{name}: {len(bad)} of {len(tensor)} rows contain NaN or infinity (first: row {int(bad[0])}). "
            "Check the weights of the model, or remove these rows."
        )
    return tensor.contiguous()


def as_labels(values: Array, count: int, device: torch.device, name: str = "labels") -> Tensor:
    """Return labels as an int64 tensor of shape (count,) on `device`.

    Labels are never cast to float, so large labels stay distinct.

    Args:
        values: Shape (count,), any integer type.
        count: Number of embeddings.
        device: Device of the result.
        name: Name of the argument, for error messages.

    Raises:
        DataError: If the shape or length is wrong, or a label is not an integer within int64.
    """
    if isinstance(values, np.ndarray) and values.dtype.kind == "u":
        if values.size and int(values.max()) > _INT64_MAX:
            raise DataError(f"{name}: {int(values.max())} does not fit into int64. Renumber the classes.")
        values = values.astype(np.int64)
    tensor = _as_tensor(values, name)
    if tensor.ndim != 1 or len(tensor) != count:
        raise DataError(
            f"{name}: expected shape ({count},), one label per embedding, got {tuple(tensor.shape)}. "
            "Pass one integer per row."
        )
    if tensor.is_floating_point() or tensor.is_complex():
        raise DataError(f"{name}: expected integers, got {tensor.dtype}. Convert them with .long().")
    if tensor.dtype == torch.uint64 and int(tensor.view(torch.int64).min()) < 0:
        raise DataError(f"{name}: a label does not fit into int64. Renumber the classes.")
    return tensor.to(device=device, dtype=torch.int64)


def as_pair(queries: Array, references: Array) -> tuple[Tensor, Tensor]:
    """Return checked queries and references with equal dimension, device, and type.

    Raises:
        DataError: If one of them is unusable, or their dimensions or devices differ.
    """
    left, right = as_embeddings(queries, "embeddings"), as_embeddings(references, "gallery")
    check_dimensions(left, right)
    if left.device != right.device:
        raise DataError(f"gallery: on {right.device}, but embeddings are on {left.device}. Move one with .to(device).")
    dtype = torch.promote_types(left.dtype, right.dtype)
    return left.to(dtype), right.to(dtype)


def check_gallery(gallery: Array | None, gallery_labels: Array | None) -> None:
    """Raise `DataError` if only one of gallery and gallery labels is given."""
    if (gallery is None) != (gallery_labels is None):
        missing = "gallery" if gallery is None else "gallery_labels"
        raise DataError(f"{missing}: missing. Pass both gallery and gallery_labels, or neither.")


def check_dimensions(queries: Tensor, references: Tensor) -> None:
    """Raise `DataError` if queries and references differ in dimension."""
    if queries.shape[1] != references.shape[1]:
        raise DataError(
            f"gallery: expected {queries.shape[1]} dimensions to match embeddings, got {references.shape[1]}. "
            "Embed both with the same model."
        )


def as_count(value: int, name: str, least: int) -> int:
    """Return a whole number that is at least `least`.

    Raises:
        ConfigError: If `value` is no whole number or is too small.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ConfigError(f"{name}: expected a whole number of at least {least}, got {value!r}.")
    return int(value)


def _as_tensor(values: Array, name: str) -> Tensor:
    """Return a detached tensor that shares memory with `values` where that is safe."""
    if isinstance(values, Tensor):
        return values.detach()
    if not isinstance(values, np.ndarray):
        raise DataError(f"{name}: expected a torch tensor or a numpy array, got {type(values).__name__}. Convert it.")
    values = np.ascontiguousarray(values)
    try:
        return torch.from_numpy(values if values.flags.writeable else values.copy())
    except TypeError as error:
        raise DataError(f"{name}: torch has no type for {values.dtype}. Convert it first.") from error
