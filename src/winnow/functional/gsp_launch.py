"""How the kernels of the fused GSP are launched."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from winnow.functional import gsp_backward, gsp_forward, gsp_prototypes
from winnow.functional.kernel import Kernel

_PROTOTYPES = Kernel(gsp_prototypes.prototypes_kernel)
_SCORES = Kernel(gsp_forward.scores_kernel)
_POOL = Kernel(gsp_forward.pool_kernel)
_WEIGHTS_GRADIENT = Kernel(gsp_backward.weights_gradient_kernel)
_GRADIENT = Kernel(gsp_backward.gradient_kernel)
_UNCLIP = Kernel(gsp_prototypes.unclip_kernel)


class FusedOutput(NamedTuple):
    """What the forward makes; all but the first three is for the backward alone.

    Attributes:
        x: (B, n) tau + l.
        parts: (parts, m, d) of clipped prototypes.
        squares: (m,) of clipped prototypes.
        long_squares: (m,) of prototypes, in float64.
        near: (B, n, 4) what was measured of the two nearest prototypes; empty where that is not done.
        near_squares: (B, n) of features that are near one, in float64; likewise.
    """

    pooled: Tensor
    weights: Tensor
    attributes: Tensor
    x: Tensor
    parts: Tensor
    squares: Tensor
    long_squares: Tensor
    near: Tensor
    near_squares: Tensor


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


@lru_cache(256)
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

    @classmethod
    def of(cls, mu: Tensor | float, eps: Tensor | float, unused: Tensor) -> _Numbers:
        """Take mu and eps apart; `unused` stands where there is no pointer."""
        mu_part = (mu, 0.0, int(mu.numel() > 1), True) if isinstance(mu, Tensor) else (unused, float(mu), 0, False)
        return cls(*mu_part, *((eps, 0.0, True) if isinstance(eps, Tensor) else (unused, float(eps), False)))


def _key(
    features: Tensor, prototypes: Tensor, launch: Launch, numbers: _Numbers, mask: Tensor | None
) -> tuple[Any, ...]:
    """Return all that decides how kernels are compiled for these inputs."""
    kinds = numbers.mu_tensor, numbers.mu_stride, numbers.eps_tensor, mask is None
    return features.shape[1:], features.stride(), features.dtype, features.device, len(prototypes), launch, kinds


def forward(
    features: Tensor, prototypes: Tensor, mu: Tensor | float, eps: Tensor | float, mask: Tensor | None, launch: Launch
) -> FusedOutput:
    """Launch the forward kernels."""
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
    numbers = _Numbers.of(mu, eps, weights)
    key = _key(features, prototypes, launch, numbers, mask)
    constants = {"D": _padded(d), "PARTS": launch.parts}
    _PROTOTYPES.launch(m, key, (prototypes, parts, squares, long_squares, m, d), constants, warps=1)
    constants = {"R": launch.R, "N": launch.N, "M": launch.M, "K": launch.K, "PARTS": launch.parts,
                 "MASKED": mask is not None, "EPS_TENSOR": numbers.eps_tensor}  # fmt: skip
    prepared = features, prototypes, parts, squares, long_squares, near, near_squares
    if several:
        # Sums over the tiles of an image need a start at zero, and all the digits there are.
        pooled, attributes = torch.zeros(batch, d, device=device), torch.zeros(batch, m, device=device)
        terms = torch.empty(2, batch, n, device=device).unbind(0)
        arguments = (*prepared, unused, numbers.eps, *terms, numbers.eps_value,
                     *features.stride(), n, d, m)  # fmt: skip
        _SCORES.launch(tiles, key, arguments, constants, warps=4, stages=_stages(launch))
    else:
        pooled, attributes = features.new_empty(batch, d), torch.empty(batch, m, device=device)
        terms = (weights, weights)
    arguments = (*prepared, unused, numbers.mu, numbers.eps, *terms, pooled, weights, x, attributes,
                 numbers.mu_value, numbers.eps_value, numbers.mu_stride, *features.stride(), n, d, m)  # fmt: skip
    constants |= {"ALL": _padded(n), "MU_TENSOR": numbers.mu_tensor}
    _POOL.launch(tiles, key, arguments, constants, warps=4, stages=_stages(launch))
    return FusedOutput(
        pooled.to(features.dtype), weights, attributes, x, parts, squares, long_squares, near, near_squares
    )  # fmt: skip


def backward(
    features: Tensor, prototypes: Tensor, mu: Tensor | float, eps: Tensor | float, mask: Tensor | None,
    out: FusedOutput, dg: Tensor | None, dp: Tensor | None, dz: Tensor | None, scalars: bool, launch: Launch,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Launch the backward kernels; return the gradients of features, prototypes and, for scalars, mu and eps."""
    (batch, n, d), m, device = features.shape, len(prototypes), features.device
    tiles = batch * launch.N // launch.R
    df = torch.empty_strided(features.shape, features.stride(), dtype=features.dtype, device=device)
    buffer = torch.zeros(m * (d + 1), device=device)  # one, because to clear it is a launch too
    dw, sums = buffer[: m * d].view(m, d), buffer[m * d :]
    dmu = torch.zeros(mu.numel() if isinstance(mu, Tensor) else 1, device=device) if scalars else None
    deps = torch.zeros(1, device=device) if scalars else None
    weights, x = out.weights, out.x
    unused = weights if mask is None else mask
    numbers = _Numbers.of(mu, eps, weights)
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
        _WEIGHTS_GRADIENT.launch(tiles, key, arguments, constants, warps=4, stages=_stages(launch))
    arguments = (*prepared, unused, numbers.mu, numbers.eps, weights, x, q,
                 *gradients, df, dw, sums, sums if dmu is None else dmu, sums if deps is None else deps,
                 numbers.mu_value, numbers.eps_value, numbers.mu_stride, *features.stride(), n, d, m)  # fmt: skip
    constants |= {"K": launch.back_K, "ALL": _padded(n), "MU_TENSOR": numbers.mu_tensor, "SCALARS": scalars}
    _GRADIENT.launch(tiles, key, arguments, constants, warps=4)
    arguments = (prototypes, out.parts, dw, sums, m, d)
    _UNCLIP.launch(m, key, arguments, {"D": _padded(d), "PARTS": launch.parts}, warps=1)
    return df, dw, dmu, deps
