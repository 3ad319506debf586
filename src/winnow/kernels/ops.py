"""Fused GPU operations: crops, frozen norm with shortcut and ReLU, SPD inverse."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import relu

from winnow.kernels.launch import find_kernels, launching_for

_KERNELS = "winnow.kernels.ops_triton"
_CROP_BLOCK = 512  # pixels per program
_NORM_ROWS, _NORM_COLUMNS = 32, 128  # tile of a program
_LARGEST_INVERSE = 128  # matrix size that fits the registers of one program


# ---- crops


class RaggedBatch(Protocol):
    """Images of different sizes in one buffer, as `winnow.data` stores them."""

    @property
    def pixels(self) -> Tensor:
        """Flat uint8 buffer with a run of H * W * 3 interleaved RGB bytes for each image."""

    @property
    def offsets(self) -> Tensor:
        """(B,) int64 on the CPU, the first byte of each image."""

    @property
    def heights(self) -> Tensor:
        """(B,) int64 on the CPU."""

    @property
    def widths(self) -> Tensor:
        """(B,) int64 on the CPU."""

    def __len__(self) -> int: ...


def can_fuse_crops(pixels: Tensor) -> bool:
    """Return whether the kernel can crop these pixels."""
    return pixels.is_cuda and find_kernels(_KERNELS) is not None


def fused_crops(
    batch: RaggedBatch, boxes: Tensor, size: tuple[int, int], flips: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """Compute `crop_batch` in one kernel that writes channels-last crops.

    [`crop_batch`][winnow.data.crop_batch] describes the arguments. The host never waits for the device: all arguments
    of the kernel travel in one pinned copy.

    Raises:
        ValueError: If `out` is not a channels-last float32 tensor of the right shape and device.
    """
    device, (height, width) = batch.pixels.device, size
    shape = (len(batch), 3, height, width)
    if out is None:
        out = torch.empty(shape, device=device, memory_format=torch.channels_last)
    fits = out.shape == shape and out.dtype == torch.float32 and out.device == device
    if not (fits and out.permute(0, 2, 3, 1).is_contiguous()):
        order = "channels-last" if out.dim() == 4 and out.permute(0, 2, 3, 1).is_contiguous() else "not channels-last"
        raise ValueError(
            f"out: expected a channels-last float32 tensor {shape} on {device}, "
            f"got {order} {out.dtype} {tuple(out.shape)} on {out.device}. "
            "Create it with memory_format=torch.channels_last."
        )
    if len(batch) == 0:
        return out
    kernels = find_kernels(_KERNELS)
    assert kernels is not None, "checked by can_fuse_crops"
    table = _crop_table(batch, boxes, size, flips).to(device, non_blocking=True)
    grid = (len(batch), -(-height * width // _CROP_BLOCK))
    with launching_for(out):
        # Without fused multiply-adds, crops on the GPU and on the CPU differ by at most the last bit.
        kernels.crop_kernel[grid](
            out, batch.pixels, table, table.view(torch.float32), height, width,
            BLOCK=_CROP_BLOCK, enable_fp_fusion=False,
        )  # fmt: skip
    return out


def _crop_table(batch: RaggedBatch, boxes: Tensor, size: tuple[int, int], flips: Tensor | None) -> Tensor:
    """Return the arguments of the crops as (B, 6) int64.

    They are first pixel, height, width, and flip; then top, left, and two scales as four float32.
    """
    # torch reuses pinned memory only after the copy from it has finished.
    table = torch.empty(len(batch), 6, dtype=torch.int64, pin_memory=batch.pixels.is_cuda)
    table[:, 0] = batch.offsets // 3
    table[:, 1] = batch.heights
    table[:, 2] = batch.widths
    table[:, 3] = 0 if flips is None else flips
    numbers = table.view(torch.float32)[:, 8:]
    numbers[:, :2] = boxes[:, :2]
    numbers[:, 2:] = boxes[:, 2:].float() / torch.tensor(size, dtype=torch.float32)
    return table


# ---- norm, shortcut, and ReLU: a third of the GPU time of a ResNet if computed one by one


def norm_relu(
    x: Tensor, norm: nn.BatchNorm2d, shortcut: Tensor | None = None, shortcut_norm: nn.BatchNorm2d | None = None
) -> Tensor:
    """Compute relu(norm(x) + shortcut_norm(shortcut)).

    The shortcut and its norm are optional. One kernel and one for its gradient are used on a GPU if the norms are
    frozen and the maps (B, C, H, W) are in channels-last order. Otherwise each operation runs by itself.
    """
    # A compiler fuses these operations by itself.
    if x.is_cuda and not torch.compiler.is_compiling() and can_fuse_norm(x, norm, shortcut, shortcut_norm):
        return fused_norm_relu(x, norm, shortcut, shortcut_norm)
    y = nn.BatchNorm2d.forward(norm, x)  # skips the ReLU of a subclass that adds one
    if shortcut is not None:
        y += shortcut if shortcut_norm is None else shortcut_norm(shortcut)
    return relu(y, inplace=True)


def can_fuse_norm(
    x: Tensor, norm: nn.BatchNorm2d, shortcut: Tensor | None, shortcut_norm: nn.BatchNorm2d | None
) -> bool:
    """Return whether the kernels support these maps and norms."""
    maps = [x] if shortcut is None else [x, shortcut]
    norms = [norm] if shortcut_norm is None else [norm, shortcut_norm]
    return (
        find_kernels(_KERNELS) is not None
        and all(m.dtype == x.dtype and m.is_contiguous(memory_format=torch.channels_last) for m in maps)
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and all(n.weight.dtype == torch.float32 and not (n.training or n.weight.requires_grad) for n in norms)
    )


def fused_norm_relu(
    x: Tensor, norm: nn.BatchNorm2d, shortcut: Tensor | None = None, shortcut_norm: nn.BatchNorm2d | None = None
) -> Tensor:
    """Compute [`norm_relu`][winnow.kernels.ops.norm_relu] by the kernels."""
    result: Tensor = _NormReLU.apply(x, shortcut, norm, shortcut_norm)  # type: ignore[no-untyped-call]
    return result


class _NormReLU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shortcut: Tensor | None, norm: nn.BatchNorm2d, shortcut_norm: nn.BatchNorm2d | None
    ) -> Tensor:
        kernels = find_kernels(_KERNELS)
        assert kernels is not None, "checked by can_fuse_norm"
        other = shortcut_norm or norm  # placeholder for pointers that the kernel does not read
        out = torch.empty_like(x)
        count, channels = x.numel() // x.shape[1], x.shape[1]
        ctx.norms, ctx.added, ctx.normed = (norm, other), shortcut is not None, shortcut_norm is not None
        if x.numel():
            with launching_for(x):
                kernels.norm_forward_kernel[_norm_grid(count, channels)](
                    x, x if shortcut is None else shortcut, out,
                    norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.eps,
                    other.weight, other.bias, other.running_mean, other.running_var, other.eps,
                    count, channels, ADDED=ctx.added, NORMED=ctx.normed, ROWS=_NORM_ROWS, COLUMNS=_NORM_COLUMNS,
                )  # fmt: skip
        ctx.save_for_backward(out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        kernels = find_kernels(_KERNELS)
        assert kernels is not None, "used by forward"
        (out,) = ctx.saved_tensors
        norm, other = ctx.norms
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        grad_x = torch.empty_like(out)
        grad_shortcut = torch.empty_like(out) if ctx.added else None
        count, channels = out.numel() // out.shape[1], out.shape[1]
        if out.numel():
            with launching_for(out):
                kernels.norm_backward_kernel[_norm_grid(count, channels)](
                    grad, out, grad_x, grad_x if grad_shortcut is None else grad_shortcut,
                    norm.weight, norm.running_var, norm.eps, other.weight, other.running_var, other.eps,
                    count, channels, ADDED=ctx.added, NORMED=ctx.normed, ROWS=_NORM_ROWS, COLUMNS=_NORM_COLUMNS,
                )  # fmt: skip
        return grad_x, grad_shortcut, None, None


def _norm_grid(count: int, channels: int) -> tuple[int, int]:
    return -(-count // _NORM_ROWS), -(-channels // _NORM_COLUMNS)


# ---- inverse of symmetric positive definite matrices: torch uses MAGMA, which synchronizes and breaks CUDA graphs


def can_invert(matrices: Tensor) -> bool:
    """Return whether `spd_inverse` supports these matrices."""
    return matrices.is_cuda and matrices.dtype in (torch.float32, torch.float64) and find_kernels(_KERNELS) is not None


def spd_inverse(matrices: Tensor) -> Tensor:
    """Invert symmetric positive definite matrices (..., n, n).

    The host never waits for the device. Matrices larger than 128 are split into blocks and inverted by the Schur
    complement.
    """
    n = matrices.shape[-1]
    if n <= _LARGEST_INVERSE:
        inverse: Tensor = _Inverse.apply(matrices)  # type: ignore[no-untyped-call]
        return inverse
    half = n // 2
    top, corner, bottom = matrices[..., :half, :half], matrices[..., :half, half:], matrices[..., half:, half:]
    first = spd_inverse(top)
    carried = first @ corner
    last = spd_inverse(bottom - corner.mT @ carried)  # the Schur complement is positive definite too
    off = -carried @ last
    return torch.cat([torch.cat([first - off @ carried.mT, off], -1), torch.cat([off.mT, last], -1)], -2)


class _Inverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrices: Tensor) -> Tensor:
        kernels = find_kernels(_KERNELS)
        assert kernels is not None, "checked by can_invert"
        matrices = matrices.contiguous()
        inverses, n = torch.empty_like(matrices), matrices.shape[-1]
        size = max(16, 1 << (n - 1).bit_length())
        with launching_for(matrices):
            kernels.inverse_kernel[(matrices[..., 0, 0].numel(),)](
                matrices, inverses, n, N=size, num_warps=max(1, size // 16)
            )
        ctx.save_for_backward(inverses)
        return inverses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (inverses,) = ctx.saved_tensors
        result: Tensor = -inverses.mT @ grads[0] @ inverses.mT
        return result
