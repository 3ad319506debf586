"""The fused GSP on a GPU: when it can be used, and how autograd and torch.compile see it."""

from __future__ import annotations

import os
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

SWITCH = "WINNOW_FUSED"
"""Set this environment variable to 0 to force the PyTorch form everywhere."""


_HAS_TRITON = find_spec("triton") is not None


def _launch() -> ModuleType:
    """Import the kernels, late, because Triton is not light."""
    from winnow.functional import gsp_launch

    return gsp_launch


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def can_fuse(features: Tensor, prototypes: Tensor) -> bool:
    """Whether the fused form takes these inputs; if not, the PyTorch form does."""
    if os.environ.get(SWITCH, "1") == "0":
        return False
    if not (features.is_cuda or _interpreted()) or features.numel() == 0:
        return False
    if features.dtype not in (torch.float32, torch.bfloat16, torch.float16) or prototypes.dtype != torch.float32:
        return False
    return features.shape[1] <= 4096 and len(prototypes) <= 128 and _HAS_TRITON


@torch.library.custom_op("winnow::gsp_forward", mutates_args=())
def _forward_op(
    features: Tensor, prototypes: Tensor, mu: Tensor | None, mu_value: float, eps: Tensor | None, eps_value: float,
    mask: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    """Hide the launches from torch.compile, which takes them as one node of its graph."""
    how = _launch()
    launch = how.plan(*features.shape[1:], len(prototypes), features.dtype, eps_value if eps is None else None)
    numbers = mu_value if mu is None else mu, eps_value if eps is None else eps
    return list(how.forward(features, prototypes, *numbers, mask, launch))


@_forward_op.register_fake
def _(
    features: Tensor, prototypes: Tensor, mu: Tensor | None, mu_value: float, eps: Tensor | None, eps_value: float,
    mask: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    (batch, n, d), m = features.shape, len(prototypes)
    how = _launch()
    parts = how.plan(n, d, m, features.dtype, eps_value if eps is None else None).parts
    sizes = ((batch, n), (batch, m), (batch, n), (parts, m, d), (m,))
    dtypes = (torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float32)
    rest = [features.new_empty(size, dtype=dtype) for size, dtype in zip(sizes, dtypes, strict=True)]
    return [features.new_empty(batch, d), *rest]


@torch.library.custom_op("winnow::gsp_backward", mutates_args=())
def _backward_op(
    features: Tensor, prototypes: Tensor, mu: Tensor | None, mu_value: float, eps: Tensor | None, eps_value: float,
    mask: Tensor | None, out: list[Tensor], dg: Tensor | None, dp: Tensor | None, dz: Tensor | None, scalars: bool,
) -> list[Tensor]:  # fmt: skip
    how = _launch()
    launch = how.plan(*features.shape[1:], len(prototypes), features.dtype, eps_value if eps is None else None)
    numbers = mu_value if mu is None else mu, eps_value if eps is None else eps
    gradients = how.backward(
        features, prototypes, *numbers, mask, how.FusedOutput(*out), dg, dp, dz, scalars, launch
    )  # fmt: skip
    return [gradient.clone() if gradient._is_view() else gradient for gradient in gradients]


@_backward_op.register_fake
def _(
    features: Tensor, prototypes: Tensor, mu: Tensor | None, mu_value: float, eps: Tensor | None, eps_value: float,
    mask: Tensor | None, out: list[Tensor], dg: Tensor | None, dp: Tensor | None, dz: Tensor | None, scalars: bool,
) -> list[Tensor]:  # fmt: skip
    numbers = [prototypes.new_empty(1 if mu is None else mu.numel()), prototypes.new_empty(1)]
    return [torch.empty_like(features), torch.empty_like(prototypes), *numbers]


class _FusedGSP(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, prototypes: Tensor, mu: Tensor | None, mu_value: float,
        eps: Tensor | None, eps_value: float, mask: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        # The operator costs some microseconds that only a compiled graph has to pay, once.
        launch = _forward_op if torch.compiler.is_compiling() else _forward_op._init_fn
        out = launch(features, prototypes, mu, mu_value, eps, eps_value, mask)
        ctx.save_for_backward(features, prototypes, mu, eps, mask, *out)
        ctx.numbers = mu_value, eps_value
        ctx.set_materialize_grads(False)
        pooled, weights, attributes = out[:3]
        return pooled, weights, attributes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        features, prototypes, mu, eps, mask, *out = ctx.saved_tensors
        mu_value, eps_value = ctx.numbers
        needs = ctx.needs_input_grad
        launch = _backward_op if torch.compiler.is_compiling() else _backward_op._init_fn
        df, dw, dmu, deps = launch(
            features, prototypes, mu, mu_value, eps, eps_value, mask, out, *grads, needs[2] or needs[4]
        )
        return df, dw, dmu if needs[2] else None, None, deps if needs[4] else None, None, None


def fused_gsp(
    features: Tensor, prototypes: Tensor, mu: Tensor | float, eps: Tensor | float, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return pooled (B, d), weights (B, n) and attributes (B, m); the arguments are those of `gsp`, and checked."""
    if not (features.is_contiguous() or features.mT.is_contiguous()):
        features = features.contiguous()

    def as_tensor(value: Tensor | float) -> Tensor | None:
        return value.to(torch.float32).reshape(-1).contiguous() if isinstance(value, Tensor) else None

    def as_number(value: Tensor | float) -> float:
        return 0.0 if isinstance(value, Tensor) else float(value)

    found: tuple[Tensor, Tensor, Tensor] = _FusedGSP.apply(  # type: ignore[no-untyped-call]
        features, prototypes.contiguous(), as_tensor(mu), as_number(mu), as_tensor(eps), as_number(eps),
        None if mask is None else mask.contiguous(),
    )  # fmt: skip
    return found
