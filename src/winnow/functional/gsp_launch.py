"""How the kernels of the fused GSP are launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.functional.gsp_backward import gradient_kernel, weights_gradient_kernel
from winnow.functional.gsp_forward import pool_kernel, scores_kernel
from winnow.functional.gsp_prototypes import multiply_kernel, prototypes_kernel, unclip_kernel

_PULL_SHARE = 0.07  # of the features and their gradient, that the backward may take for P


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
        R: Rows of a tile, each a feature.
        N: Rows of an image, whole tiles of them.
        back_R: Rows of a tile in the gradient.
        back_N: Rows of an image there; several images may share a tile.
        M: Prototypes, padded.
        K: Columns of a feature taken at a time.
        wide: The same in the gradient.
        spread: Whether the product that makes the prototypes' gradient has a kernel of its own.
        parts: bfloat16 parts a float32 is split into for products.
    """

    R: int
    N: int
    back_R: int
    back_N: int
    M: int
    K: int
    wide: int
    spread: bool
    parts: int
    forward_stages: int = 2
    backward_stages: int = 1


def plan(n: int, d: int, m: int, dtype: torch.dtype, eps: float | None) -> Launch:
    """Choose a launch; `eps` is None where it is a tensor."""
    rows, places = min(64, _padded(n)), _padded(m)
    narrow = dtype == torch.bfloat16
    # Scores show eps times the distances' error, in which long sums average more: then two parts (16 bits) do.
    parts = 1 if narrow else (2 if d >= 128 and eps is not None and eps <= 5 else 3)
    spread = d > 128
    return Launch(
        R=rows, N=-(-n // rows) * rows, back_R=128, back_N=_padded(n) if n <= 128 else -(-n // 128) * 128,
        M=places, K=min(64, _padded(d)),
        wide=min(32, _padded(d)), spread=spread, parts=parts,
    )  # fmt: skip


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
    weights, x = torch.empty(2, batch, n, device=device)
    unused = weights if mask is None else mask
    numbers = _numbers(mu, eps, weights)
    shared = {"R": launch.R, "N": launch.N, "M": launch.M, "K": launch.K, "PARTS": launch.parts,
              "MASKED": mask is not None, "EPS_TENSOR": numbers.eps_tensor,
              "num_warps": 4, "num_stages": launch.forward_stages}  # fmt: skip
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
    R, N = launch.back_R, launch.back_N
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
    shared = {"R": R, "N": N, "M": launch.M, "K": launch.K, "PARTS": launch.parts,
              "MASKED": mask is not None, "EPS_TENSOR": numbers.eps_tensor,
              "HAS_DG": dg is not None, "HAS_DP": dp is not None, "HAS_DZ": dz is not None}  # fmt: skip
    q = x
    if N > R:
        q = torch.empty_like(x)
        weights_gradient_kernel[(batch * N // R,)](
            features, prototypes, out.parts, out.squares, unused, numbers.eps, q, *gradients, numbers.eps_value,
            *features.stride(), n, d, m,
            num_warps=R // 16, num_stages=launch.forward_stages, **shared,
        )  # fmt: skip
    step, pull = batch, weights
    if launch.spread:
        row_bytes = 2 * d * features.element_size()
        slices = min(batch, max(1, -(-int(2 * launch.M * launch.parts) // int(_PULL_SHARE * row_bytes))))
        together = max(1, R // N)  # images of one tile stay together
        step = -(-batch // slices // together) * together
        rows = -(-step * N // R) * R
        pull = torch.empty(rows, launch.parts * launch.M, device=device, dtype=torch.bfloat16)
    for start in range(0, batch, step):
        first, tiles = start * N // R, -(-min(step, batch - start) * N // R)
        gradient_kernel[(tiles,)](
            features, prototypes, out.parts, out.squares, unused, numbers.mu, numbers.eps, weights, x, q, *gradients,
            df, dw, sums, pull, dmu, deps,
            numbers.mu_value, numbers.eps_value, numbers.mu_stride, *features.stride(), first, batch, n, d, m,
            ALL=_padded(n), MU_TENSOR=numbers.mu_tensor, SCALARS=scalars, SPREAD=launch.spread,
            num_warps=R // 16, num_stages=launch.backward_stages, **(shared | {"K": launch.wide}),
        )  # fmt: skip
        if launch.spread:
            wide = min(128, _padded(d))
            columns = -(-d // wide)
            multiply_kernel[(columns, min(tiles, max(1, 132 // columns)))](
                features, unused, pull, dw, *features.stride(), first, tiles, batch, n, d, m,
                R=R, N=N, M=launch.M, WIDE=wide, PARTS=launch.parts, MASKED=mask is not None,
                num_warps=8, num_stages=2,
            )  # fmt: skip
    unclip_kernel[(m,)](
        prototypes, out.parts, dw, sums, m, d, D=_padded(d), PARTS=launch.parts, num_warps=1
    )  # fmt: skip
    return df, dw, dmu, deps
