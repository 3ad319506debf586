"""How the kernels of the fused GSP are launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.functional.gsp_backward import gradient_kernel, weights_gradient_kernel
from winnow.functional.gsp_forward import pool_kernel, scores_kernel
from winnow.functional.gsp_prototypes import prototypes_kernel, unclip_kernel


class FusedOutput(NamedTuple):
    """What the forward makes; `x` and `parts` and `squares` are for the backward alone."""

    pooled: Tensor
    weights: Tensor
    attributes: Tensor
    x: Tensor
    parts: Tensor
    squares: Tensor


def _padded(size: int, least: int = 16) -> int:
    return max(least, 1 << (size - 1).bit_length())


@dataclass(frozen=True)
class Launch:
    """Compile-time choices for one size and type.

    Attributes:
        R: Features in a tile.
        N: Features of an image, padded to whole tiles.
        M: Prototypes, padded.
        K: Columns of a feature taken at a time.
        back_K: The same in the gradient.
        parts: bfloat16 parts a number is split into for products.
    """

    R: int
    N: int
    M: int
    K: int
    back_K: int
    parts: int


def plan(n: int, d: int, m: int, dtype: torch.dtype, eps: float | None) -> Launch:
    """Choose a launch; `eps` is None where it is a tensor. Timed on an H200."""
    rows, places = min(64, _padded(n)), _padded(m)
    # Scores show eps times the distances' error, in which long sums average more: then two parts (16 bits) do.
    parts = 1 if dtype == torch.bfloat16 else (2 if d >= 128 and eps is not None and eps <= 5 else 3)
    back = 32 if places > 64 and parts > 1 else 64
    return Launch(
        R=rows, N=-(-n // rows) * rows, M=places, K=min(64, _padded(d)), back_K=min(back, _padded(d)), parts=parts
    )  # fmt: skip


def _stages(launch: Launch) -> int:
    # With one part the features need no splitting, and Triton (seen in 3.6) lets a product read the one buffer that the
    # next features are already copied into; without copies ahead there is no such race.
    return 1 if launch.parts == 1 else 2


class _Numbers(NamedTuple):
    """How mu and eps reach a kernel: by a pointer or as numbers."""

    mu: Tensor
    mu_value: float
    mu_stride: int
    mu_tensor: bool
    eps: Tensor
    eps_value: float
    eps_tensor: bool


def _numbers(mu: Tensor | float, eps: Tensor | float, unused: Tensor) -> _Numbers:
    by_pointer, eps_by_pointer = isinstance(mu, Tensor), isinstance(eps, Tensor)
    return _Numbers(
        mu if isinstance(mu, Tensor) else unused, 0.0 if isinstance(mu, Tensor) else float(mu),
        int(isinstance(mu, Tensor) and mu.numel() > 1), by_pointer,
        eps if isinstance(eps, Tensor) else unused, 0.0 if isinstance(eps, Tensor) else float(eps), eps_by_pointer,
    )  # fmt: skip


def forward(
    features: Tensor, prototypes: Tensor, mu: Tensor | float, eps: Tensor | float, mask: Tensor | None, launch: Launch
) -> FusedOutput:
    """Launch the forward kernels."""
    (batch, n, d), m, device = features.shape, len(prototypes), features.device
    tiles = batch * launch.N // launch.R
    several = launch.N > launch.R
    parts = torch.empty(launch.parts, m, d, device=device, dtype=torch.bfloat16)
    squares = torch.empty(m, device=device)
    prototypes_kernel[(m,)](
        prototypes, parts, squares, m, d, D=_padded(d), PARTS=launch.parts, num_warps=1
    )  # fmt: skip
    weights, x = torch.empty(batch, n, device=device), torch.empty(batch, n, device=device)
    unused = weights if mask is None else mask
    numbers = _numbers(mu, eps, weights)
    shared = {"R": launch.R, "N": launch.N, "M": launch.M, "K": launch.K, "PARTS": launch.parts,
              "MASKED": mask is not None, "EPS_TENSOR": numbers.eps_tensor,
              "num_warps": 4, "num_stages": _stages(launch)}  # fmt: skip
    if several:
        # Sums over the tiles of an image need a start at zero, and all the digits there are.
        pooled, attributes = torch.zeros(batch, d, device=device), torch.zeros(batch, m, device=device)
        terms = torch.empty(3, batch, n, device=device).unbind(0)
        scores_kernel[(tiles,)](
            features, prototypes, parts, squares, unused, numbers.eps, *terms, numbers.eps_value,
            *features.stride(), n, d, m, **shared,
        )  # fmt: skip
    else:
        pooled, attributes = features.new_empty(batch, d), torch.empty(batch, m, device=device)
        terms = (weights, weights, weights)
    pool_kernel[(tiles,)](
        features, prototypes, parts, squares, unused, numbers.mu, numbers.eps, *terms,
        pooled, weights, x, attributes,
        numbers.mu_value, numbers.eps_value, numbers.mu_stride, *features.stride(), n, d, m,
        ALL=_padded(n), MU_TENSOR=numbers.mu_tensor, **shared,
    )  # fmt: skip
    return FusedOutput(pooled.to(features.dtype), weights, attributes, x, parts, squares)


def backward(
    features: Tensor, prototypes: Tensor, mu: Tensor | float, eps: Tensor | float, mask: Tensor | None,
    out: FusedOutput, dg: Tensor | None, dp: Tensor | None, dz: Tensor | None, scalars: bool, launch: Launch,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Launch the backward kernels; return the gradients of features, prototypes, mu and eps."""
    (batch, n, d), m, device = features.shape, len(prototypes), features.device
    tiles = batch * launch.N // launch.R
    df = torch.empty_strided(features.shape, features.stride(), dtype=features.dtype, device=device)
    sums = torch.zeros(m * (d + 1), device=device)  # one buffer: a launch to clear it instead of two
    dw = sums[: m * d].view(m, d)
    sums = sums[m * d :]
    dmu = torch.zeros(batch if isinstance(mu, Tensor) and mu.numel() > 1 else 1, device=device) if scalars else sums
    deps = torch.zeros(1, device=device) if scalars else sums
    weights, x = out.weights, out.x
    unused = weights if mask is None else mask
    numbers = _numbers(mu, eps, weights)
    gradients = [weights if t is None else t.contiguous() for t in (dg, dp, dz)]
    shared = {"R": launch.R, "N": launch.N, "M": launch.M, "PARTS": launch.parts,
              "MASKED": mask is not None, "EPS_TENSOR": numbers.eps_tensor, "num_warps": 4,
              "HAS_DG": dg is not None, "HAS_DP": dp is not None, "HAS_DZ": dz is not None}  # fmt: skip
    q = x
    if launch.N > launch.R:
        q = torch.empty_like(x)
        weights_gradient_kernel[(tiles,)](
            features, prototypes, out.parts, out.squares, unused, numbers.eps, q, *gradients, numbers.eps_value,
            *features.stride(), n, d, m, K=launch.K, num_stages=_stages(launch), **shared,
        )  # fmt: skip
    gradient_kernel[(tiles,)](
        features, prototypes, out.parts, out.squares, unused, numbers.mu, numbers.eps, weights, x, q, *gradients,
        df, dw, sums, dmu, deps,
        numbers.mu_value, numbers.eps_value, numbers.mu_stride, *features.stride(), n, d, m,
        K=launch.back_K, ALL=_padded(n), MU_TENSOR=numbers.mu_tensor, SCALARS=scalars, num_stages=1, **shared,
    )  # fmt: skip
    unclip_kernel[(m,)](
        prototypes, out.parts, dw, sums, m, d, D=_padded(d), PARTS=launch.parts, num_warps=1
    )  # fmt: skip
    return df, dw, dmu, deps
