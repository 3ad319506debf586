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


def _forward(
    features: Tensor, prototypes: Tensor, mu: Tensor | None, mu_value: float, eps: Tensor | None, eps_value: float,
    mask: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    how = _launch()
    launch = how.plan(*features.shape[1:], len(prototypes), features.dtype, eps_value if eps is None else None)
    numbers = mu_value if mu is None else mu, eps_value if eps is None else eps
    return list(how.forward(features, prototypes, *numbers, mask, launch))


def _backward(
    features: Tensor, prototypes: Tensor, mu: Tensor | None, mu_value: float, eps: Tensor | None, eps_value: float,
    mask: Tensor | None, out: list[Tensor], dg: Tensor | None, dp: Tensor | None, dz: Tensor | None, scalars: bool,
) -> list[Tensor | None]:  # fmt: skip
    how = _launch()
    launch = how.plan(*features.shape[1:], len(prototypes), features.dtype, eps_value if eps is None else None)
    numbers = mu_value if mu is None else mu, eps_value if eps is None else eps
    return list(
        how.backward(features, prototypes, *numbers, mask, how.FusedOutput(*out), dg, dp, dz, scalars, launch)
    )  # fmt: skip


# As operators torch.compile takes the launches as single nodes of its graph.
_forward_op = torch.library.custom_op("winnow::gsp_forward", _forward, mutates_args=())


@_forward_op.register_fake
def _(
    features: Tensor, prototypes: Tensor, mu: Tensor | None, mu_value: float, eps: Tensor | None, eps_value: float,
    mask: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    (batch, n, d), m = features.shape, len(prototypes)
    parts = _launch().plan(n, d, m, features.dtype, eps_value if eps is None else None).parts
    near = (batch, n) if parts > 1 else (0, 0)
    sizes = ((batch, n), (batch, m), (batch, n), (parts, m, d), (m,), (m,), (*near, 4), near)
    single, double = torch.float32, torch.float64
    dtypes = (single, single, single, torch.bfloat16, single, double, single, double)
    rest = [features.new_empty(size, dtype=dtype) for size, dtype in zip(sizes, dtypes, strict=True)]
    return [features.new_empty(batch, d), *rest]


@torch.library.custom_op("winnow::gsp_backward", mutates_args=())
def _backward_op(
    features: Tensor, prototypes: Tensor, mu: Tensor | None, mu_value: float, eps: Tensor | None, eps_value: float,
    mask: Tensor | None, out: list[Tensor], dg: Tensor | None, dp: Tensor | None, dz: Tensor | None, scalars: bool,
) -> list[Tensor]:  # fmt: skip
    df, dw, *numbers = _backward(
        features, prototypes, mu, mu_value, eps, eps_value, mask, out, dg, dp, dz, scalars
    )  # fmt: skip
    assert df is not None
    assert dw is not None
    # An operator returns tensors of its own, always as many, and no views.
    return [df, dw.clone(), *(prototypes.new_zeros(0) if one is None else one for one in numbers)]


@_backward_op.register_fake
def _(
    features: Tensor, prototypes: Tensor, mu: Tensor | None, mu_value: float, eps: Tensor | None, eps_value: float,
    mask: Tensor | None, out: list[Tensor], dg: Tensor | None, dp: Tensor | None, dz: Tensor | None, scalars: bool,
) -> list[Tensor]:  # fmt: skip
    sizes = (1 if mu is None else mu.numel(), 1) if scalars else (0, 0)
    return [torch.empty_like(features), torch.empty_like(prototypes), *(prototypes.new_empty(k) for k in sizes)]


class _FusedGSP(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, prototypes: Tensor, mu: Tensor | None, mu_value: float,
        eps: Tensor | None, eps_value: float, mask: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        # An operator costs some microseconds, which only a graph need not pay again.
        launch = _forward_op if torch.compiler.is_compiling() else _forward
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
        needs, (dg, dp, dz) = ctx.needs_input_grad, grads
        scalars = needs[2] or needs[4]
        launch = _backward_op if torch.compiler.is_compiling() else _backward
        df, dw, dmu, deps = launch(
            features, prototypes, mu, mu_value, eps, eps_value, mask, out, dg, dp, dz, scalars
        )  # fmt: skip
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
