"""The pull of weights towards what they were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class _HalfSquare(torch.autograd.Function):
    """Half the squared distance of two lists of tensors: few kernels for all of them, forward and backward."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> Tensor:
        gaps = torch._foreach_sub(tensors[:count], tensors[count:])
        ctx.save_for_backward(*gaps)
        return torch.stack(torch._foreach_norm(gaps)).square().sum() / 2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gaps = ctx.saved_tensors
        return None, *torch._foreach_mul(gaps, grads[0]), *[None] * len(gaps)


class Pull(nn.Module):
    r"""Pull of a network's trained weights towards earlier ones: $\frac\lambda2 \lVert\theta-\theta_{prev}\rVert_2^2$.

    Earlier weights and lambda are buffers that change in place, so that captured steps stay valid. They are in no state
    dict: a model or the best weights have no use for them, and a checkpoint asks for `previous`.

    Args:
        network: Whose weights; those that are not trained now have no part in it.

    Attributes:
        weight: lambda, a scalar; 0 at first.
    """

    weight: Tensor

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        trained = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
        self._names, self._weights = list(trained), list(trained.values())
        for number, value in enumerate(self._weights):
            self.register_buffer(f"previous{number}", value.detach().clone(), persistent=False)
        self.register_buffer("weight", torch.zeros(()), persistent=False)

    def forward(self) -> Tensor:
        """Return the scalar term."""
        if not self._weights:
            return self.weight
        gap: Tensor = _HalfSquare.apply(len(self._weights), *self._weights, *self.previous.values())  # type: ignore[no-untyped-call]
        return self.weight * gap

    @property
    def previous(self) -> dict[str, Tensor]:
        """The earlier weights, by their names in the network."""
        return {name: self.get_buffer(f"previous{number}") for number, name in enumerate(self._names)}

    @torch.no_grad()
    def towards(self, weights: Mapping[str, Tensor]) -> None:
        """Set the earlier weights from a state of the network."""
        for name, previous in self.previous.items():
            previous.copy_(weights[name])
