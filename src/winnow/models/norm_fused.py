"""A frozen norm, the shortcut and ReLU in one pass: on a GPU a third of a network's time goes to these alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import relu

from winnow.functional.kernel import find_kernels, launching_for

_KERNELS = "winnow.models.norm_kernel"
_ROWS, _COLUMNS = 32, 128


def norm_relu(
    x: Tensor, norm: nn.BatchNorm2d, shortcut: Tensor | None = None, shortcut_norm: nn.BatchNorm2d | None = None
) -> Tensor:
    """Return relu(norm(x) + shortcut_norm(shortcut)); without a shortcut relu(norm(x)).

    On a GPU, where the norms are frozen and the maps (B, C, H, W) in channels-last order, it is one kernel, and its
    gradient another. Otherwise it is computed operation by operation.
    """
    # A compiler joins operations by itself.
    if x.is_cuda and not torch.compiler.is_compiling() and can_fuse(x, norm, shortcut, shortcut_norm):
        return fused_norm_relu(x, norm, shortcut, shortcut_norm)
    y = nn.BatchNorm2d.forward(norm, x)  # the norm alone, also of a module that is norm and ReLU
    if shortcut is not None:
        y += shortcut if shortcut_norm is None else shortcut_norm(shortcut)
    return relu(y, inplace=True)


def can_fuse(x: Tensor, norm: nn.BatchNorm2d, shortcut: Tensor | None, shortcut_norm: nn.BatchNorm2d | None) -> bool:
    """Whether the kernels take these maps and norms."""
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
    """Do what `norm_relu` does by the kernels."""
    result: Tensor = _NormReLU.apply(x, shortcut, norm, shortcut_norm)  # type: ignore[no-untyped-call]
    return result


class _NormReLU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shortcut: Tensor | None, norm: nn.BatchNorm2d, shortcut_norm: nn.BatchNorm2d | None
    ) -> Tensor:
        kernels = find_kernels(_KERNELS)
        assert kernels is not None, "can_fuse says so"
        other = shortcut_norm or norm  # a kernel's pointers must point somewhere
        out = torch.empty_like(x)
        count, width = x.numel() // x.shape[1], x.shape[1]
        ctx.norms, ctx.added, ctx.normed = (norm, other), shortcut is not None, shortcut_norm is not None
        if x.numel():
            with launching_for(x):
                kernels.forward_kernel[_grid(count, width)](
                    x, x if shortcut is None else shortcut, out,
                    norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.eps,
                    other.weight, other.bias, other.running_mean, other.running_var, other.eps,
                    count, width, ADDED=ctx.added, NORMED=ctx.normed, ROWS=_ROWS, COLUMNS=_COLUMNS,
                )  # fmt: skip
        ctx.save_for_backward(out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        kernels = find_kernels(_KERNELS)
        assert kernels is not None, "forward has run"
        (out,) = ctx.saved_tensors
        norm, other = ctx.norms
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        grad_x = torch.empty_like(out)
        grad_shortcut = torch.empty_like(out) if ctx.added else None
        count, width = out.numel() // out.shape[1], out.shape[1]
        if out.numel():
            with launching_for(out):
                kernels.backward_kernel[_grid(count, width)](
                    grad, out, grad_x, grad_x if grad_shortcut is None else grad_shortcut,
                    norm.weight, norm.running_var, norm.eps, other.weight, other.running_var, other.eps,
                    count, width, ADDED=ctx.added, NORMED=ctx.normed, ROWS=_ROWS, COLUMNS=_COLUMNS,
                )  # fmt: skip
        return grad_x, grad_shortcut, None, None


def _grid(count: int, width: int) -> tuple[int, int]:
    return -(-count // _ROWS), -(-width // _COLUMNS)
