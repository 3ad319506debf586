"""Fused GSP on a GPU, for autograd and torch.compile."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from winnow.kernels.launch import Kernel

SWITCH = "WINNOW_FUSED"
"""Name of the environment variable that forces the plain PyTorch form everywhere if set to 0."""

_HAS_TRITON = find_spec("triton") is not None


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def can_fuse(features: Tensor, prototypes: Tensor) -> bool:
    """Return whether the fused form supports these inputs."""
    if os.environ.get(SWITCH, "1") == "0":
        return False
    if not (features.is_cuda or _interpreted()) or features.numel() == 0:
        return False
    if features.dtype not in (torch.float32, torch.bfloat16, torch.float16) or prototypes.dtype != torch.float32:
        return False
    return features.shape[1] <= 4096 and len(prototypes) <= 128 and _HAS_TRITON


def fused_gsp(
    features: Tensor, prototypes: Tensor, mu: Tensor | float, eps: Tensor | float, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Pool by the fused kernels.

    [`gsp`][winnow.functional.gsp] describes the arguments and validates them.

    Returns:
        Pooled vectors (B, d), weights (B, n), and attributes (B, m).
    """
    if not (features.is_contiguous() or features.mT.is_contiguous()):
        features = features.contiguous()

    def as_tensor(value: Tensor | float) -> Tensor | None:
        return value.to(torch.float32).reshape(-1).contiguous() if isinstance(value, Tensor) else None

    def as_number(value: Tensor | float) -> float:
        return 0.0 if isinstance(value, Tensor) else float(value)

    outputs: tuple[Tensor, Tensor, Tensor] = _FusedGSP.apply(  # type: ignore[no-untyped-call]
        features, prototypes.contiguous(), as_tensor(mu), as_number(mu), as_tensor(eps), as_number(eps),
        None if mask is None else mask.contiguous(),
    )  # fmt: skip
    return outputs


# ---- autograd and torch.compile


def _forward(
    features: Tensor, prototypes: Tensor, mu: Tensor | None, mu_value: float, eps: Tensor | None, eps_value: float,
    mask: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    launch = plan(*features.shape[1:], len(prototypes), features.dtype, eps_value if eps is None else None)
    scalars = mu_value if mu is None else mu, eps_value if eps is None else eps
    return list(launch_forward(features, prototypes, *scalars, mask, launch))


def _backward(
    features: Tensor, prototypes: Tensor, mu: Tensor | None, mu_value: float, eps: Tensor | None, eps_value: float,
    mask: Tensor | None, out: list[Tensor], dg: Tensor | None, dp: Tensor | None, dz: Tensor | None, scalars: bool,
) -> list[Tensor | None]:  # fmt: skip
    launch = plan(*features.shape[1:], len(prototypes), features.dtype, eps_value if eps is None else None)
    numbers = mu_value if mu is None else mu, eps_value if eps is None else eps
    return list(
        launch_backward(features, prototypes, *numbers, mask, FusedOutput(*out), dg, dp, dz, scalars, launch)
    )  # fmt: skip


# As custom operators, the launches are single nodes in a graph of torch.compile.
_forward_op = torch.library.custom_op("winnow::gsp_forward", _forward, mutates_args=())


@_forward_op.register_fake
def _(
    features: Tensor, prototypes: Tensor, mu: Tensor | None, mu_value: float, eps: Tensor | None, eps_value: float,
    mask: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    (batch, n, d), m = features.shape, len(prototypes)
    # Not from `plan`: its cache cannot hold the symbolic sizes of torch.compile.
    parts = product_parts(d, features.dtype, eps_value if eps is None else None)
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
    # A custom operator must return a fixed number of tensors, none of them a view.
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
        # A custom operator costs several microseconds per call; only a compiled graph needs it.
        launch = _forward_op if torch.compiler.is_compiling() else _forward
        out = launch(features, prototypes, mu, mu_value, eps, eps_value, mask)
        ctx.save_for_backward(features, prototypes, mu, eps, mask, *out)
        ctx.numbers = mu_value, eps_value
        ctx.set_materialize_grads(False)
        vector, weights, attributes = out[:3]
        return vector, weights, attributes

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


# ---- launches


class FusedOutput(NamedTuple):
    """Three results of the forward kernels, and tensors saved for the backward."""

    vector: Tensor  # (B, d)
    weights: Tensor  # (B, n)
    attributes: Tensor  # (B, m)
    x: Tensor  # (B, n) tau + l
    parts: Tensor  # (parts, m, d) bfloat16 parts of the clipped prototypes
    squares: Tensor  # (m,) squared norms of the clipped prototypes
    long_squares: Tensor  # (m,) squared norms of the prototypes, float64
    near: Tensor  # (B, n, 4) remeasured distances to the two nearest prototypes; empty with one part
    near_squares: Tensor  # (B, n) squared norms of features near a prototype, float64; empty with one part


@dataclass(frozen=True)
class Launch:
    """Compile-time constants for one size and dtype."""

    R: int  # features per tile
    N: int  # features per image, padded to whole tiles
    M: int  # prototypes, padded
    K: int  # feature columns per step
    back_K: int  # feature columns per step of the gradient
    parts: int  # bfloat16 parts per number in matrix products


def product_parts(d: int, dtype: torch.dtype, eps: float | None) -> int:
    """Return the number of bfloat16 parts of each number in matrix products."""
    if dtype == torch.bfloat16:
        return 1
    # Scores multiply errors of distances by eps. Errors average out in long sums, so two parts (16 bits) suffice there.
    return 2 if d >= 128 and eps is not None and eps <= 5 else 3


@lru_cache(256)
def plan(n: int, d: int, m: int, dtype: torch.dtype, eps: float | None) -> Launch:
    """Choose the constants of a launch, tuned on an H200.

    `eps` is None if it is a tensor.
    """
    rows, columns = min(64, _padded(n)), _padded(m)
    parts = product_parts(d, dtype, eps)
    back = 32 if columns > 64 and parts > 1 else 64
    return Launch(
        R=rows, N=-(-n // rows) * rows, M=columns, K=min(64, _padded(d)), back_K=min(back, _padded(d)), parts=parts
    )  # fmt: skip


def _padded(size: int, least: int = 16) -> int:
    return max(least, 1 << (size - 1).bit_length())


def _stages(launch: Launch) -> int:
    # With one part, features need no splitting, and Triton (seen in 3.6) lets a product read the buffer that the
    # prefetch already overwrites with the next features. One stage has no prefetch, hence no race.
    return 1 if launch.parts == 1 else 2


class _Kernels(NamedTuple):
    prototypes: Kernel
    scores: Kernel
    pool: Kernel
    weights_gradient: Kernel
    gradient: Kernel
    unclip: Kernel


@cache
def _kernels() -> _Kernels:
    """Import the kernels at the first launch, because importing Triton is slow."""
    from winnow.kernels import gsp_backward, gsp_forward, gsp_tiles

    return _Kernels(
        prototypes=Kernel(gsp_tiles.prototypes_kernel),
        scores=Kernel(gsp_forward.scores_kernel),
        pool=Kernel(gsp_forward.pool_kernel),
        weights_gradient=Kernel(gsp_backward.weights_gradient_kernel),
        gradient=Kernel(gsp_backward.gradient_kernel),
        unclip=Kernel(gsp_tiles.unclip_kernel),
    )


class _Scalars(NamedTuple):
    """Kernel arguments for mu and eps, each as a pointer or as a number."""

    mu: Tensor
    mu_value: float
    mu_stride: int
    mu_tensor: bool
    eps: Tensor
    eps_value: float
    eps_tensor: bool

    @classmethod
    def of(cls, mu: Tensor | float, eps: Tensor | float, unused: Tensor) -> _Scalars:
        """Build the arguments; `unused` is a placeholder for a missing pointer."""
        mu_part = (mu, 0.0, int(mu.numel() > 1), True) if isinstance(mu, Tensor) else (unused, float(mu), 0, False)
        return cls(*mu_part, *((eps, 0.0, True) if isinstance(eps, Tensor) else (unused, float(eps), False)))


def _key(
    features: Tensor, prototypes: Tensor, launch: Launch, scalars: _Scalars, mask: Tensor | None
) -> tuple[Any, ...]:
    """Return the properties of the inputs that determine how the kernels compile."""
    kinds = scalars.mu_tensor, scalars.mu_stride, scalars.eps_tensor, mask is None
    return features.shape[1:], features.stride(), features.dtype, features.device, len(prototypes), launch, kinds


def launch_forward(
    features: Tensor, prototypes: Tensor, mu: Tensor | float, eps: Tensor | float, mask: Tensor | None, launch: Launch
) -> FusedOutput:
    """Launch the forward kernels."""
    kernels = _kernels()
    (batch, n, d), m, device = features.shape, len(prototypes), features.device
    tiles = batch * launch.N // launch.R
    several = launch.N > launch.R
    parts = torch.empty(launch.parts, m, d, device=device, dtype=torch.bfloat16)
    squares, long_squares = torch.empty(m, device=device), torch.empty(m, device=device, dtype=torch.float64)
    shape = (batch, n) if launch.parts > 1 else (0, 0)
    near = torch.empty(*shape, 4, device=device)
    near_squares = torch.empty(shape, device=device, dtype=torch.float64)
    weights, x = torch.empty(batch, n, device=device), torch.empty(batch, n, device=device)
    unused = weights if mask is None else mask
    numbers = _Scalars.of(mu, eps, weights)
    key = _key(features, prototypes, launch, numbers, mask)
    constants = {"D": _padded(d), "PARTS": launch.parts}
    kernels.prototypes.launch(m, key, (prototypes, parts, squares, long_squares, m, d), constants, warps=1)
    constants = {"R": launch.R, "N": launch.N, "M": launch.M, "K": launch.K, "PARTS": launch.parts,
                 "MASKED": mask is not None, "EPS_TENSOR": numbers.eps_tensor}  # fmt: skip
    prepared = features, prototypes, parts, squares, long_squares, near, near_squares
    if several:
        # Several tiles add to the sums of an image, so the sums start at zero and are in float32.
        vector, attributes = torch.zeros(batch, d, device=device), torch.zeros(batch, m, device=device)
        terms = torch.empty(2, batch, n, device=device).unbind(0)
        arguments = (*prepared, unused, numbers.eps, *terms, numbers.eps_value,
                     *features.stride(), n, d, m)  # fmt: skip
        kernels.scores.launch(tiles, key, arguments, constants, warps=4, stages=_stages(launch))
    else:
        vector, attributes = features.new_empty(batch, d), torch.empty(batch, m, device=device)
        terms = (weights, weights)
    arguments = (*prepared, unused, numbers.mu, numbers.eps, *terms, vector, weights, x, attributes,
                 numbers.mu_value, numbers.eps_value, numbers.mu_stride, *features.stride(), n, d, m)  # fmt: skip
    constants |= {"ALL": _padded(n), "MU_TENSOR": numbers.mu_tensor}
    kernels.pool.launch(tiles, key, arguments, constants, warps=4, stages=_stages(launch))
    return FusedOutput(
        vector.to(features.dtype), weights, attributes, x, parts, squares, long_squares, near, near_squares
    )  # fmt: skip


def launch_backward(
    features: Tensor, prototypes: Tensor, mu: Tensor | float, eps: Tensor | float, mask: Tensor | None,
    out: FusedOutput, dg: Tensor | None, dp: Tensor | None, dz: Tensor | None, scalars: bool, launch: Launch,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Launch the backward kernels.

    Args:
        features: (B, n, d), as in the forward.
        prototypes: (m, d), as in the forward.
        mu: As in the forward.
        eps: As in the forward.
        mask: (B, n) bool, as in the forward.
        out: Outputs of the forward.
        dg: (B, d) gradient of the pooled vectors, or None.
        dp: (B, n) gradient of the weights, or None.
        dz: (B, m) gradient of the attributes, or None.
        scalars: Whether to compute the gradients of mu and eps.
        launch: Constants of the forward.

    Returns:
        Gradients of features, prototypes, mu, and eps; the last two are None without `scalars`.
    """
    kernels = _kernels()
    (batch, n, d), m, device = features.shape, len(prototypes), features.device
    tiles = batch * launch.N // launch.R
    df = torch.empty_strided(features.shape, features.stride(), dtype=features.dtype, device=device)
    buffer = torch.zeros(m * (d + 1), device=device)  # one buffer, because each clear is a launch
    dw, sums = buffer[: m * d].view(m, d), buffer[m * d :]
    dmu = torch.zeros(mu.numel() if isinstance(mu, Tensor) else 1, device=device) if scalars else None
    deps = torch.zeros(1, device=device) if scalars else None
    weights, x = out.weights, out.x
    unused = weights if mask is None else mask
    numbers = _Scalars.of(mu, eps, weights)
    prepared = features, prototypes, out.parts, out.squares, out.long_squares, out.near, out.near_squares
    gradients = [weights if t is None else t.contiguous() for t in (dg, dp, dz)]
    given = dg is not None, dp is not None, dz is not None
    key = (*_key(features, prototypes, launch, numbers, mask), given, scalars, gradients[0].dtype)
    constants = {"R": launch.R, "N": launch.N, "M": launch.M, "K": launch.K, "PARTS": launch.parts,
                 "MASKED": mask is not None, "EPS_TENSOR": numbers.eps_tensor,
                 "HAS_DG": given[0], "HAS_DP": given[1], "HAS_DZ": given[2]}  # fmt: skip
    q = x
    if launch.N > launch.R:
        q = torch.empty_like(x)
        arguments = (*prepared, unused, numbers.eps, q, *gradients,
                     numbers.eps_value, *features.stride(), n, d, m)  # fmt: skip
        kernels.weights_gradient.launch(tiles, key, arguments, constants, warps=4, stages=_stages(launch))
    arguments = (*prepared, unused, numbers.mu, numbers.eps, weights, x, q,
                 *gradients, df, dw, sums, sums if dmu is None else dmu, sums if deps is None else deps,
                 numbers.mu_value, numbers.eps_value, numbers.mu_stride, *features.stride(), n, d, m)  # fmt: skip
    constants |= {"K": launch.back_K, "ALL": _padded(n), "MU_TENSOR": numbers.mu_tensor, "SCALARS": scalars}
    kernels.gradient.launch(tiles, key, arguments, constants, warps=4)
    arguments = (prototypes, out.parts, dw, sums, m, d)
    kernels.unclip.launch(m, key, arguments, {"D": _padded(d), "PARTS": launch.parts}, warps=1)
    return df, dw, dmu, deps
