"""Embeddings and labels as they come in: checked once, with errors that say what to do."""

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
    """Return `values` as a float32 (or, if given so, float64) tensor of shape (N, D).

    float16 and bfloat16 become float32 without loss.

    Raises:
        DataError: for a wrong shape or type, an empty array, NaN or infinite entries; an array of no rows is let
            through if `empty`.
    """
    tensor = _as_tensor(values, name)
    if tensor.ndim != 2:
        raise DataError(
            f"{name} has shape {tuple(tensor.shape)}, but (N, D), one row per image, is needed; "
            "flatten or stack it first"
        )
    if not tensor.is_floating_point():
        raise DataError(f"{name} holds {tensor.dtype}, but floats are needed; convert it with .float()")
    if tensor.numel() == 0 and not (empty and tensor.shape[1]):
        raise DataError(f"{name} is empty (shape {tuple(tensor.shape)}); give at least one row and one column")
    if tensor.dtype != torch.float64:
        tensor = tensor.float()
    finite = torch.isfinite(tensor).all(dim=1)
    if not bool(finite.all()):
        bad = (~finite).nonzero().flatten()
        raise DataError(
            f"{len(bad)} of {len(tensor)} rows of {name} hold NaN or infinity (the first is row {int(bad[0])}); "
            "check the model's weights, or leave these rows out"
        )
    return tensor.contiguous()


def as_labels(values: Array, count: int, device: torch.device, name: str = "labels") -> Tensor:
    """Return `values` as an int64 tensor of shape (count,) on `device`; labels are never cast to float.

    Raises:
        DataError: for a wrong shape or length, labels that are not integers, or integers beyond int64.
    """
    if isinstance(values, np.ndarray) and values.dtype.kind == "u":
        if values.size and int(values.max()) > _INT64_MAX:
            raise DataError(f"{name} holds {int(values.max())}, more than int64 holds; renumber the classes")
        values = values.astype(np.int64)
    tensor = _as_tensor(values, name)
    if tensor.ndim != 1 or len(tensor) != count:
        raise DataError(f"{name} has shape {tuple(tensor.shape)}, but ({count},), one label per embedding, is needed")
    if tensor.is_floating_point() or tensor.is_complex():
        raise DataError(f"{name} holds {tensor.dtype}, but integers are needed; convert it with .long()")
    if tensor.dtype == torch.uint64 and int(tensor.view(torch.int64).min()) < 0:
        raise DataError(f"{name} holds integers beyond int64; renumber the classes")
    return tensor.to(device=device, dtype=torch.int64)


def as_pair(queries: Array, references: Array) -> tuple[Tensor, Tensor]:
    """Return queries and references checked, of one dimension, one device and the wider of their types."""
    left, right = as_embeddings(queries, "embeddings"), as_embeddings(references, "gallery")
    check_width(left, right)
    if left.device != right.device:
        raise DataError(f"embeddings are on {left.device} and the gallery on {right.device}; move one with .to(device)")
    dtype = torch.promote_types(left.dtype, right.dtype)
    return left.to(dtype), right.to(dtype)


def check_together(gallery: Array | None, gallery_labels: Array | None) -> None:
    """Refuse a gallery without its labels, and labels without a gallery."""
    if (gallery is None) != (gallery_labels is None):
        raise DataError("gallery and gallery_labels belong together; give both or neither")


def check_width(queries: Tensor, references: Tensor) -> None:
    """Refuse queries and references of different dimensions."""
    if queries.shape[1] != references.shape[1]:
        raise DataError(
            f"embeddings have {queries.shape[1]} dimensions and the gallery {references.shape[1]}; "
            "embed both with the same model"
        )


def as_count(value: int, name: str, least: int) -> int:
    """Return the whole number `value` if it is at least `least`.

    Raises:
        ConfigError: otherwise.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return int(value)


def _as_tensor(values: Array, name: str) -> Tensor:
    """Return a detached tensor that shares memory with `values` where that is safe."""
    if isinstance(values, Tensor):
        return values.detach()
    if not isinstance(values, np.ndarray):
        raise DataError(f"{name} is a {type(values).__name__}; give a torch tensor or a numpy array")
    values = np.ascontiguousarray(values)
    try:
        return torch.from_numpy(values if values.flags.writeable else values.copy())
    except TypeError as error:
        raise DataError(f"{name} holds {values.dtype}, which torch does not know; convert it first") from error
