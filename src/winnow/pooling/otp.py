"""Optimal-transport pooling: features shared out among prototypes."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from winnow.functional import Pooled, clip_norm, pairwise_distance
from winnow.pooling.base import counted, part_width, uniform_weights, weighted_sum
from winnow.pooling.prototypes import PrototypePooling
from winnow.registry import PartSettings


def transport_plan(costs: Tensor, eps: float, steps: int, masses: Tensor) -> Tensor:
    r"""Share the features' masses out equally among the prototypes, at nearly the least cost, by Sinkhorn's iteration.

    $$\pi_{ij} = u_i e^{-\varepsilon c_{ij}} v_j, \qquad \sum_j \pi_{ij} = \tfrac1m, \quad \sum_i \pi_{ij} = q_j$$

    Written in logarithms, so that no sharpness overflows; the last step is the features', whose sums are then exact.

    Args:
        costs: (B, m, n), from prototype i to feature j.
        eps: Sharpness, the inverse of the entropy's weight.
        steps: How often the prototypes' and the features' sums are set right in turn.
        masses: q, (B, n), each row summing to one; zero where features do not count.

    Returns:
        (B, m, n).
    """
    kernel, log_q = -eps * costs, masses.log()
    log_v = torch.zeros_like(masses).masked_fill(masses == 0, -torch.inf)
    for _ in range(steps):
        log_u = -math.log(costs.shape[1]) - (kernel + log_v[:, None]).logsumexp(dim=2)
        log_v = log_q - (kernel + log_u[..., None]).logsumexp(dim=1)
    return (kernel + log_u[..., None] + log_v[:, None]).exp()


class OTP(PrototypePooling):
    r"""Optimal-transport pooling: all features are shared out among the prototypes, and each prototype sums its own.

    $$g = \sqrt m \,\Big(\sum_j \pi_{1j} f_j, \dots, \sum_j \pi_{mj} f_j\Big), \qquad
      \pi = \arg\min_\pi \sum_{ij} \pi_{ij} c_{ij} + \tfrac1\varepsilon \sum_{ij} \pi_{ij} \log \pi_{ij}
      \;\text{ s.t. }\; \sum_j \pi_{ij} = \tfrac1m, \; \sum_i \pi_{ij} = \tfrac1n$$

    with the costs of [`GSP`][winnow.pooling.GSP], as in the documents' comparison; the original has a kernel in their
    place. It pools the projected map, m vectors of size dim / m: the documents' 8x16 is `dim=128
    pooling.prototypes=8`, their 64x128 is `dim=8192 pooling.prototypes=64`. Every feature and every prototype gets the
    same mass, so there are neither weights nor attributes. The prototypes start from data as those of GSP do; before
    that the plan is uniform.

    Reference: Mialon, Chen, d'Aspremont and Mairal, "A Trainable Optimal Transport Embedding for Feature Aggregation
    and its Relationship to Attention", ICLR 2021.

    Args:
        width: Size of the features.
        prototypes: Number of prototypes m; the embedding's size must be a multiple of it.
        eps: Sharpness of the plan: 0 is uniform, large the cheapest plan.
        steps: Sinkhorn's iterations.
        memory: Embeddings to collect before the prototypes are set from them; at least twice `prototypes`.
    """

    pools: ClassVar[Literal["raw", "projected"]] = "projected"
    has_weights: ClassVar[bool] = False

    def __init__(
        self, width: int, *, prototypes: int = 8, eps: float = 2.0, steps: int = 10, memory: int = 1024
    ) -> None:
        super().__init__(width, prototypes, memory)
        if not 0 <= eps < math.inf:
            raise ValueError(f"the sharpness eps of OTP must be finite and not negative, got {eps}")
        if steps < 1:
            raise ValueError(f"OTP needs at least one step, got {steps}")
        self.eps, self.steps = eps, steps

    @classmethod
    def local_width(cls, dim: int, settings: PartSettings) -> int:
        """Return dim / m."""
        return part_width("otp", dim, "prototypes", settings)

    def output_width(self, width: int) -> int:
        """Return m d."""
        return len(self.prototypes) * width

    def pool(self, features: Tensor, mask: Tensor | None) -> Pooled:
        """Pool tokens (B, n, d) to (B, m d)."""
        x, count = counted(features, mask), len(self.prototypes)
        masses = uniform_weights(x, mask)
        if self.is_ready:
            costs = pairwise_distance(clip_norm(x), clip_norm(self.prototypes.to(x.dtype))).mT
            parts = transport_plan(costs, self.eps, self.steps, masses) @ x
        else:
            mean = weighted_sum(x, masses)
            parts = mean[:, None].expand(-1, count, -1) / count
            if self.training:
                self.collect(mean)
        return Pooled((math.sqrt(count) * parts).flatten(1).to(features.dtype), None, None)
