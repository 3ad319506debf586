"""Distances between vectors, accurate also where two vectors nearly coincide."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def clip_norm(vectors: Tensor) -> Tensor:
    r"""Shorten vectors longer than one to unit length: $\bar u = u / \max(1, \lVert u \rVert_2)$.

    The documents call it the Lipschitz normalisation: unlike $u / \lVert u \rVert_2$ it never stretches.

    Args:
        vectors: (..., d).
    """
    length: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / length.clamp(min=1.0)


class _Distance(torch.autograd.Function):
    """Euclidean distance by one matrix product, in double precision inside.

    The product form $|x|^2 + |y|^2 - 2xy$ loses half the digits of a small distance, which in float32 leaves nothing
    of a feature within 0.01 of a prototype. Products of float32 numbers are exact in float64, so the same form there
    keeps them; it costs no (B, n, m, d) tensor, and its backward is a matrix product too.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        wide_x, wide_y = x.double(), y.double()
        squares = wide_x.square().sum(1)[:, None] + wide_y.square().sum(1)[None, :]
        distance = torch.addmm(squares, wide_x, wide_y.mT, alpha=-2).clamp_(min=0).sqrt_()
        ctx.save_for_backward(x, y, distance)
        return distance.to(x.dtype, copy=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, y, distance = ctx.saved_tensors
        # d|x - y| / dx = (x - y) / |x - y|, and 0 where the two coincide.
        pull = torch.where(distance > 0, grads[0] / distance, 0.0)
        wide_x, wide_y = x.double(), y.double()
        grad_x = torch.addmm(pull.sum(1)[:, None] * wide_x, pull, wide_y, alpha=-1)
        grad_y = torch.addmm(pull.sum(0)[:, None] * wide_y, pull.mT, wide_x, alpha=-1)
        return grad_x.to(x.dtype), grad_y.to(y.dtype)


def pairwise_distance(x: Tensor, y: Tensor) -> Tensor:
    r"""Return all distances $d_{ij} = \lVert x_i - y_j \rVert_2$; their gradient is 0 where $d_{ij} = 0$.

    Args:
        x: (n, d) or (B, n, d), float32 or float64.
        y: (m, d), shared by the batch.

    Returns:
        (n, m) or (B, n, m).
    """
    # All rows of the batch in one matrix product, forward and backward.
    rows: Tensor = _Distance.apply(x.flatten(0, -2), y)  # type: ignore[no-untyped-call]
    return rows.view(*x.shape[:-1], len(y))
