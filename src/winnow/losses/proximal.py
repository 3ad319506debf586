"""Proximal penalty on the distance of weights from earlier ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class _HalfSquare(torch.autograd.Function):
    """Half the squared distance of two lists of tensors, in few kernels."""

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


class ProximalPenalty(nn.Module):
    r"""Proximal penalty on the trained weights of a network.

    $$P = \frac\lambda2 \lVert \theta - \theta_{prev} \rVert_2^2$$

    Target weights and lambda are buffers that change in place, so captured steps stay valid. They are in no state
    dict: a model or the best weights do not need them, and a checkpoint reads `target`.

    Reference: the term between subproblems of [CCP]; FedProx uses the same term.

    Args:
        network: The network whose weights are penalized. Frozen weights are ignored.

    Attributes:
        weight: Weight lambda, a scalar tensor; 0 at first.
    """

    weight: Tensor

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        trained = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
        self._names, self._weights = list(trained), list(trained.values())
        for number, value in enumerate(self._weights):
            self.register_buffer(f"target{number}", value.detach().clone(), persistent=False)
        self.register_buffer("weight", torch.zeros(()), persistent=False)

    def forward(self) -> Tensor:
        """Return the scalar penalty."""
        if not self._weights:
            return self.weight
        gap: Tensor = _HalfSquare.apply(len(self._weights), *self._weights, *self.target.values())  # type: ignore[no-untyped-call]
        return self.weight * gap

    @property
    def target(self) -> dict[str, Tensor]:
        """Target weights by their names in the network."""
        return {name: self.get_buffer(f"target{number}") for number, name in enumerate(self._names)}

    @torch.no_grad()
    def set_target(self, weights: Mapping[str, Tensor]) -> None:
        """Copy the target weights from a state dict of the network."""
        for name, target in self.target.items():
            target.copy_(weights[name])
