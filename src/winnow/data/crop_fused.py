"""Crops of a whole batch as one GPU kernel: when it can be used, and how it is launched."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.data.ragged import Ragged
from winnow.functional.kernel import find_kernels, launching_for

_BLOCK = 512
_KERNELS = "winnow.data.crop_kernel"


def can_fuse(pixels: Tensor) -> bool:
    """Whether crops of these pixels can be made by the kernel."""
    return pixels.is_cuda and find_kernels(_KERNELS) is not None


def crop_fused(
    batch: Ragged, boxes: Tensor, size: tuple[int, int], flips: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """Do what [`crop_batch`][winnow.data.crop_batch] does, in one kernel that writes channels-last crops.

    The host waits for nothing: all that the kernel needs to know travels in one pinned copy.

    Raises:
        ValueError: if `out` is not what the kernel writes.
    """
    device, (height, width) = batch.pixels.device, size
    shape = (len(batch), 3, height, width)
    if out is None:
        out = torch.empty(shape, device=device, memory_format=torch.channels_last)
    fits = out.shape == shape and out.dtype == torch.float32 and out.device == device
    if not (fits and out.permute(0, 2, 3, 1).is_contiguous()):
        raise ValueError(f"out must be a channels-last float32 tensor {shape} on {device}")
    if len(batch) == 0:
        return out
    kernels = find_kernels(_KERNELS)
    assert kernels is not None, "can_fuse says so"
    table = _table(batch, boxes, size, flips).to(device, non_blocking=True)
    grid = (len(batch), -(-height * width // _BLOCK))
    with launching_for(out):
        # Without fused multiply-adds a crop is the same number for number as on the CPU but for the last bit.
        kernels.crop_kernel[grid](
            out, batch.pixels, table, table.view(torch.float32), height, width, BLOCK=_BLOCK, enable_fp_fusion=False
        )
    return out


def _table(batch: Ragged, boxes: Tensor, size: tuple[int, int], flips: Tensor | None) -> Tensor:
    """Return (B, 6) int64: first pixel, height, width, flip; then, as four float32, top, left and the two scales."""
    # Pinned memory is reused only once the copy from it is done; torch sees to that.
    table = torch.empty(len(batch), 6, dtype=torch.int64, pin_memory=batch.pixels.is_cuda)
    table[:, 0] = batch.offsets // 3
    table[:, 1] = batch.heights
    table[:, 2] = batch.widths
    table[:, 3] = 0 if flips is None else flips
    numbers = table.view(torch.float32)[:, 8:]
    numbers[:, :2] = boxes[:, :2]
    numbers[:, 2:] = boxes[:, 2:].float() / torch.tensor(size, dtype=torch.float32)
    return table
