"""GSP in PyTorch, for the CPU and wherever the fused form cannot be used: how autograd and torch.compile see it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from winnow.functional.closed_form import Kept, backward, forward
from winnow.functional.exporting import is_exporting


@torch.library.custom_op("winnow::gsp_unfused_forward", mutates_args=())
def _forward_op(
    features: Tensor, prototypes: Tensor, mu: Tensor, eps: Tensor, mask: Tensor | None
) -> list[Tensor]:  # fmt: skip
    """Hide from torch.compile what depends on the data, so that a whole model compiles to one graph."""
    with torch.autocast(features.device.type, enabled=False):
        pooled, attributes, kept = forward(features, prototypes, mu, eps, mask)
    return [pooled, attributes, *kept]


@_forward_op.register_fake
def _(features: Tensor, prototypes: Tensor, mu: Tensor, eps: Tensor, mask: Tensor | None) -> list[Tensor]:
    (batch, n, d), m = features.shape, len(prototypes)
    dtype = torch.promote_types(features.dtype, torch.float32)
    sizes = ((batch, m), (batch, n), (batch, n), (batch, n, m), (batch, n, m))
    made = [features.new_empty(size, dtype=dtype) for size in sizes]
    return [features.new_empty(batch, d), *made, features.new_empty(batch, n, dtype=torch.float64)]


@torch.library.custom_op("winnow::gsp_unfused_backward", mutates_args=())
def _backward_op(
    features: Tensor, prototypes: Tensor, mu: Tensor, eps: Tensor, mask: Tensor | None, kept: list[Tensor],
    dg: Tensor | None, dp: Tensor | None, dz: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    with torch.autocast(features.device.type, enabled=False):
        return list(backward(features, prototypes, mu, eps, mask, Kept(*kept), dg, dp, dz))


@_backward_op.register_fake
def _(
    features: Tensor, prototypes: Tensor, mu: Tensor, eps: Tensor, mask: Tensor | None, kept: list[Tensor],
    dg: Tensor | None, dp: Tensor | None, dz: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    return [
        features.new_empty(features.shape), prototypes.new_empty(prototypes.shape),
        mu.new_empty(mu.shape), eps.new_empty(()),
    ]  # fmt: skip


class _UnfusedGSP(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, prototypes: Tensor, mu: Tensor, eps: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        # The operator costs some microseconds that only a compiled graph has to pay, once.
        compute = _forward_op if torch.compiler.is_compiling() else _forward_op._init_fn
        pooled, attributes, *kept = compute(features, prototypes, mu, eps, mask)
        ctx.save_for_backward(features, prototypes, mu, eps, mask, *kept)
        ctx.set_materialize_grads(False)
        return pooled, kept[0], attributes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        features, prototypes, mu, eps, mask, *kept = ctx.saved_tensors
        compute = _backward_op if torch.compiler.is_compiling() else _backward_op._init_fn
        return *compute(features, prototypes, mu, eps, mask, kept, *grads), None


def unfused_gsp(
    features: Tensor, prototypes: Tensor, mu: Tensor | float, eps: Tensor | float, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return pooled (B, d), weights (B, n) and attributes (B, m); the arguments are those of `gsp`, and checked."""
    dtype = torch.promote_types(features.dtype, torch.float32)

    def as_tensor(value: Tensor | float) -> Tensor:
        return value.to(dtype) if isinstance(value, Tensor) else features.new_full((), value, dtype=dtype)

    share = as_tensor(mu).reshape(-1, 1).expand(features.shape[0], 1)
    if is_exporting():
        pooled, attributes, kept = forward(features, prototypes, share, as_tensor(eps).reshape(()), mask)
        return pooled, kept.weights, attributes
    found: tuple[Tensor, Tensor, Tensor] = _UnfusedGSP.apply(  # type: ignore[no-untyped-call]
        features, prototypes, share, as_tensor(eps).reshape(()), mask
    )
    return found
