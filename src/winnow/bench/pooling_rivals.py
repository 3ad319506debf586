r"""The ways to pool that are compared: winnow, average pooling, the documents' iteration, POT.

The iteration is Proposition 4.1 of "Generalized Sum Pooling for Metric Learning" as its authors wrote it. With
$K_{ij} = e^{-\varepsilon c_{ij}}$, $k_j = \sum_i K_{ij}$ and $t = 1$, it repeats 100 times, and then once more,

$$\rho_j = \frac{1/n}{1 + t k_j}, \qquad t = \frac{\mu}{\sum_j \rho_j k_j},$$

and ends with $\pi_{ij} = t K_{ij} \rho_j$, the weights $p_j = (1/n - \rho_j) / \mu$ and the attributes
$z_i = \sum_j \pi_{ij} / \mu$.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from winnow.functional import clip_norm, gsp, pairwise_distance
from winnow.functional.closed_form import unfused_gsp

STEPS = 100


class Pair(NamedTuple):
    """Pooled vectors (B, d) and, where a pooling has them, attributes (B, m)."""

    vector: Tensor
    attributes: Tensor | None


Rival = Callable[[Tensor, Tensor, float, float], Pair]
"""Pools features (B, n, d) with prototypes (m, d), mu and eps."""


def average(features: Tensor, prototypes: Tensor, mu: float, eps: float) -> Pair:
    """The mean of the features."""
    return Pair(features.mean(dim=1), None)


def winnow(features: Tensor, prototypes: Tensor, mu: float, eps: float) -> Pair:
    """GSP in the form that winnow takes by itself: the fused one on a GPU."""
    out = gsp(features, prototypes, mu, eps)
    return Pair(out.vector, out.attributes)


def winnow_in_torch(features: Tensor, prototypes: Tensor, mu: float, eps: float) -> Pair:
    """GSP in its PyTorch form."""
    pooled, _, attributes = unfused_gsp(features, prototypes, mu, eps, None)
    return Pair(pooled, attributes)


def sums_alone(features: Tensor, prototypes: Tensor, mu: float, eps: float) -> Pair:
    r"""What no pooling by distances to prototypes can do without: costs, a log-sum-exp, a weighted sum.

    $$g = \sum_j \operatorname{softmax}_j(l)\, f_j, \qquad l_j = \log \sum_i e^{-\varepsilon c_{ij}}$$
    """
    wide = features.float()
    costs = pairwise_distance(clip_norm(wide), clip_norm(prototypes))
    weights = (-eps * costs).logsumexp(dim=2).softmax(dim=1)
    return Pair((weights[:, None] @ wide).squeeze(1), None)


def unrolled(features: Tensor, prototypes: Tensor, mu: float, eps: float, steps: int = STEPS) -> Pair:
    """The documents' iteration, differentiated step by step."""
    wide = features.float()
    return _pool(wide, *iterate(_costs(wide, prototypes), mu, eps, steps), mu)


def closed_form(features: Tensor, prototypes: Tensor, mu: float, eps: float, steps: int = STEPS) -> Pair:
    """The documents' iteration with the gradient of their Proposition 4.2."""
    wide = features.float()
    rho, plan = _Transport.apply(_costs(wide, prototypes), mu, eps, steps)  # type: ignore[no-untyped-call]
    return _pool(wide, rho, plan, mu)


def partial_transport(features: Tensor, prototypes: Tensor, mu: float, eps: float) -> Pair:
    """POT's entropic partial transport, image by image, to prototypes that could each take all of the mass.

    Its entropy is that of the plan alone, without the mass that stays behind, so that its weights are similar but not
    the same. It stops after as many steps as the documents' iteration.
    """
    import ot  # type: ignore[import-untyped]

    wide = features.float()
    costs = _costs(wide, prototypes)
    n, m = costs.shape[2], costs.shape[1]
    supply, room = costs.new_full((n,), 1 / n), costs.new_full((m,), mu)
    solve = ot.partial.entropic_partial_wasserstein
    plans = torch.stack([solve(supply, room, one.mT, 1 / eps, m=mu, numItermax=STEPS) for one in costs])
    return Pair((plans.sum(dim=2)[:, None] @ wide).squeeze(1) / mu, plans.sum(dim=1) / mu)


def has_pot() -> bool:
    """Whether POT is installed."""
    return find_spec("ot") is not None


def _costs(features: Tensor, prototypes: Tensor) -> Tensor:
    r"""Distances (B, m, n) by $\sqrt{|w|^2 + |f|^2 - 2 w f}$; the gradient is 0 where they are."""
    f, w = clip_norm(features), clip_norm(prototypes)
    squares = w.square().sum(dim=1)[:, None] + f.square().sum(dim=2)[:, None, :] - 2 * (w @ f.mT)
    return squares.clamp(min=1e-12).sqrt()


def iterate(costs: Tensor, mu: float, eps: float, steps: int = STEPS) -> tuple[Tensor, Tensor]:
    """Return the residual masses rho (B, n) and the plan (B, m, n) of costs (B, m, n)."""
    n = costs.shape[2]
    kernel = torch.exp(-eps * costs)
    total = kernel.sum(dim=1)
    t = total.new_ones(len(total), 1)
    for _ in range(steps + 1):
        rho = (1 / n) / (1 + t * total)
        t = mu / (rho * total).sum(dim=1, keepdim=True)
    return rho, t[:, None] * kernel * rho[:, None]


def _pool(features: Tensor, rho: Tensor, plan: Tensor, mu: float) -> Pair:
    weights = (1 / rho.shape[1] - rho) / mu
    return Pair((weights[:, None] @ features).squeeze(1), plan.sum(dim=2) / mu)


class _Transport(torch.autograd.Function):
    r"""The iteration with the gradient of Proposition 4.2.

    With $q_j = \rho_j \frac{\partial L}{\partial \rho_j} + \sum_i \pi_{ij} \frac{\partial L}{\partial \pi_{ij}}$ and
    $\eta = \sum_j \rho_j \frac{\partial L}{\partial \rho_j} - n \sum_j q_j \rho_j$,

    $$\frac{\partial L}{\partial c_{ij}} = -\varepsilon \pi_{ij} \Big(\frac{\partial L}{\partial \pi_{ij}}
      - n q_j + \frac{n \eta \rho_j}{1 - \mu - n \sum_k \rho_k^2}\Big).$$
    """

    @staticmethod
    def forward(ctx: Any, costs: Tensor, mu: float, eps: float, steps: int) -> tuple[Tensor, Tensor]:
        rho, plan = iterate(costs, mu, eps, steps)
        ctx.save_for_backward(rho, plan)
        ctx.mu, ctx.eps = mu, eps
        return rho, plan

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (grad_rho, grad_plan), (rho, plan) = grads, ctx.saved_tensors
        n = rho.shape[1]
        own = rho * grad_rho
        q = own + (plan * grad_plan).sum(dim=1)
        eta = own.sum(dim=1, keepdim=True) - n * (q * rho).sum(dim=1, keepdim=True)
        slope = 1 - ctx.mu - n * rho.square().sum(dim=1, keepdim=True)
        return -ctx.eps * plan * (grad_plan - n * (q - eta / slope * rho)[:, None]), None, None, None
