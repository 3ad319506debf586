"""Inverses of small positive definite matrices on a GPU, in one kernel and without waiting for the device.

torch solves batches of such systems through MAGMA, which waits for the device and cannot be part of a CUDA graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from winnow.functional.kernel import find_kernels, launching_for

_KERNELS = "winnow.losses.inverse_kernel"
_LARGEST = 128  # what the registers of one program hold


def can_invert(matrices: Tensor) -> bool:
    """Whether `spd_inverse` takes these matrices."""
    return matrices.is_cuda and matrices.dtype in (torch.float32, torch.float64) and find_kernels(_KERNELS) is not None


def spd_inverse(matrices: Tensor) -> Tensor:
    """Return the inverses of symmetric positive definite matrices (..., n, n)."""
    n = matrices.shape[-1]
    if n <= _LARGEST:
        inverse: Tensor = _Inverse.apply(matrices)  # type: ignore[no-untyped-call]
        return inverse
    half = n // 2
    above, beside, below = matrices[..., :half, :half], matrices[..., :half, half:], matrices[..., half:, half:]
    first = spd_inverse(above)
    carried = first @ beside
    last = spd_inverse(below - beside.mT @ carried)  # of the Schur complement, positive definite too
    off = -carried @ last
    return torch.cat([torch.cat([first - off @ carried.mT, off], -1), torch.cat([off.mT, last], -1)], -2)


class _Inverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrices: Tensor) -> Tensor:
        kernels = find_kernels(_KERNELS)
        assert kernels is not None, "can_invert says so"
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
