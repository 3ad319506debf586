"""Distances and normalizers of vectors, and checks of tensor arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Normalizer = Callable[[Tensor], Tensor]
"""Function that maps vectors (..., d) to vectors of the same shape."""


def clip_norm(vectors: Tensor) -> Tensor:
    r"""Scale vectors longer than 1 to unit length.

    $\bar u = u / \max(1, \lVert u \rVert_2)$

    Shorter vectors stay as they are, unlike in [`l2_normalize`][winnow.functional.l2_normalize]. [GSP] calls this
    Lipschitz normalization.

    Args:
        vectors: (..., d).
    """
    check_tensor(vectors, "vectors")
    length: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / length.clamp(min=1.0)


def l2_normalize(vectors: Tensor) -> Tensor:
    r"""Scale vectors to unit length: $u / \lVert u \rVert_2$.

    A zero vector stays zero, and the gradient passes through it unchanged. `torch.nn.functional.normalize` multiplies
    this gradient by $10^{12}$, and returns NaN in float16. Input in float16 is computed in float32.

    Args:
        vectors: (..., d).
    """
    check_tensor(vectors, "vectors")
    wide = vectors.float() if vectors.dtype == torch.float16 else vectors
    length: Tensor = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    # The test inspects the numbers, because the norm of tiny vectors underflows to zero as well.
    zero = (wide.detach() == 0).all(dim=-1, keepdim=True)
    return (wide / torch.where(zero, 1.0, length.clamp(min=1e-12))).to(vectors.dtype)


NORMALIZERS: Mapping[str, Normalizer] = {"unit": l2_normalize, "ball": clip_norm}
"""Normalizers by their name in a config: `unit` maps onto the sphere, `ball` into the ball."""


class _Distance(torch.autograd.Function):
    """Euclidean distance from one matrix product in float64.

    The form $|x|^2 + |y|^2 - 2xy$ loses half of the digits of a small distance. In float32, nothing remains of a
    feature within 0.01 of a prototype. Products of float32 numbers are exact in float64, so the form keeps the digits
    there. It needs no (B, n, m, d) tensor, and its backward is a matrix product too.
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
        # d|x - y| / dx = (x - y) / |x - y|, and 0 where both coincide.
        pull = torch.where(distance > 0, grads[0] / distance, 0.0)
        wide_x, wide_y = x.double(), y.double()
        grad_x = torch.addmm(pull.sum(1)[:, None] * wide_x, pull, wide_y, alpha=-1)
        grad_y = torch.addmm(pull.sum(0)[:, None] * wide_y, pull.mT, wide_x, alpha=-1)
        return grad_x.to(x.dtype), grad_y.to(y.dtype)


def pairwise_distance(x: Tensor, y: Tensor) -> Tensor:
    r"""Compute all distances $d_{ij} = \lVert x_i - y_j \rVert_2$.

    The gradient is 0 where $d_{ij} = 0$.

    Args:
        x: (n, d) or (B, n, d).
        y: (m, d), shared by the batch.

    Returns:
        (n, m) or (B, n, m), in the dtype of `x`.

    Raises:
        TypeError: If an argument is not a floating-point tensor.
        ValueError: If the shapes do not match.
    """
    check_tensor(x, "x", "(n, d) or (B, n, d)", 2, 3)
    check_tensor(y, "y", "(m, d)", 2)
    if y.shape[1] != x.shape[-1]:
        raise ValueError(f"y: expected shape (m, {x.shape[-1]}) to match x, got {tuple(y.shape)}.")
    # One matrix product for all rows of the batch, forward and backward.
    rows: Tensor = _Distance.apply(x.flatten(0, -2), y)  # type: ignore[no-untyped-call]
    return rows.view(*x.shape[:-1], len(y))


def check_tensor(
    value: object, name: str, shape: str = "", *dims: int, hint: str = "", floating: bool = True
) -> None:  # fmt: skip
    """Raise an error that names the argument unless it is a suitable tensor.

    Args:
        value: Argument to check.
        name: Name of the argument.
        shape: Description of the expected shape.
        dims: Supported numbers of dimensions; any if there are none.
        hint: Sentence to append if the number of dimensions is wrong.
        floating: Whether the tensor must hold floating-point numbers.

    Raises:
        TypeError: If the argument is not a tensor, or does not hold floating-point numbers.
        ValueError: If its number of dimensions is not in `dims`.
    """
    if not isinstance(value, Tensor):
        stack = isinstance(value, list | tuple) and len(value) > 0 and isinstance(value[0], Tensor)
        kind = type(value)
        got = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        do = f"Join its tensors with torch.stack({name})." if stack else f"Convert it with torch.as_tensor({name})."
        raise TypeError(f"{name}: expected a torch.Tensor, got {got}. {do}")
    if floating and not value.is_floating_point():
        raise TypeError(f"{name}: expected floating-point numbers, got {value.dtype}. Convert it with {name}.float().")
    if dims and value.dim() not in dims:
        raise ValueError(f"{name}: expected shape {shape}, got {tuple(value.shape)}.{hint and ' '}{hint}")
