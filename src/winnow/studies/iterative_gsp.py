r"""Iterative solver of GSP from [GSP], and synthetic problems for solvers.

Proposition 4.1 of [GSP]: with $K_{ij} = e^{-\varepsilon c_{ij}}$, $k_j = \sum_i K_{ij}$ and $t = 1$, repeat 100 times,
then once more,

$$\rho_j = \frac{1/n}{1 + t k_j}, \qquad t = \frac{\mu}{\sum_j \rho_j k_j},$$

and return $\pi_{ij} = t K_{ij} \rho_j$, the weights $p_j = (1/n - \rho_j) / \mu$ and the attributes
$z_i = \sum_j \pi_{ij} / \mu$. winnow solves for $t$ directly (`winnow.functional.gsp`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import normalize

from winnow.functional import clip_norm, gsp

MU = 0.3
STEPS = 100

Size = tuple[int, int, int]
"""Number n of features per image, their dimension d, and number m of prototypes."""


class Pooled(NamedTuple):
    """Pooled vectors (B, d) and, for methods that have them, attributes (B, m)."""

    vector: Tensor
    attributes: Tensor | None


PoolFunction = Callable[[Tensor, Tensor, float, float], Pooled]
"""Pools features (B, n, d) with prototypes (m, d), mu, and eps."""


@dataclass(frozen=True)
class PoolingCase:
    """Sizes and settings of one pooling problem."""

    batch: int
    size: Size
    dtype: torch.dtype = torch.float32  # of the features; prototypes are float32
    eps: float = 5.0
    near: bool = False  # half of the features lie within 0.01 of a prototype, where rounding errors are largest

    def __str__(self) -> str:
        n, d, m = self.size
        near = f", eps {self.eps:g}, features near prototypes" if self.near else ""
        return f"B {self.batch}, n {n}, d {d}, m {m}, {str(self.dtype).removeprefix('torch.')}{near}"


@dataclass(frozen=True)
class PoolingProblem:
    """Features (B, n, d), prototypes (m, d), and gradients of the outputs."""

    features: Tensor
    prototypes: Tensor
    vector_gradient: Tensor
    attributes_gradient: Tensor

    def solve(self, pool: PoolFunction, eps: float) -> tuple[list[Tensor], list[Tensor]]:
        """Return the outputs of a forward pass and the gradients of a backward pass."""
        pooled = pool(self.features, self.prototypes, MU, eps)
        outputs, slopes = [pooled.vector], [self.vector_gradient.to(pooled.vector.dtype)]
        if pooled.attributes is not None:
            outputs, slopes = [*outputs, pooled.attributes], [*slopes, self.attributes_gradient]
        gradients = torch.autograd.grad(outputs, [self.features, self.prototypes], slopes, allow_unused=True)
        return outputs, [one for one in gradients if one is not None]

    @property
    def nbytes(self) -> int:
        """Bytes of features and prototypes."""
        return self.features.nbytes + self.prototypes.nbytes

    def copy(self) -> PoolingProblem:
        """Return the problem with features at another address."""
        features = self.features.detach().clone().requires_grad_()
        return PoolingProblem(features, self.prototypes, self.vector_gradient, self.attributes_gradient)

    def double(self) -> PoolingProblem:
        """Return the problem in float64."""
        features, prototypes = (one.detach().double().requires_grad_() for one in (self.features, self.prototypes))
        return PoolingProblem(features, prototypes, self.vector_gradient.double(), self.attributes_gradient.double())


def make_problem(case: PoolingCase, device: torch.device, seed: int = 0) -> PoolingProblem:
    """Return features around prototypes, few near and most far.

    One feature in six lies within the unit ball.
    """
    generator = torch.Generator(device).manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, device=device)

    (n, d, m), batch = case.size, case.batch
    prototypes = normalize(noise(m, d), dim=1) * (0.7 + 0.3 * uniform(m, 1))
    nearest = prototypes[(m * uniform(batch, n)).long().clamp(max=m - 1)]
    spread = 0.3 + 2.7 * uniform(batch, n, 1)
    features = normalize(nearest + spread * noise(batch, n, d) / d**0.5, dim=2) * (0.5 + 0.5 * noise(batch, n, 1)).exp()
    if case.near:
        close = nearest[:, ::2]
        features[:, ::2] = close + 0.01 * normalize(noise(*close.shape), dim=2)
    return PoolingProblem(
        features.to(case.dtype).requires_grad_(),
        prototypes.requires_grad_(),
        noise(batch, d).to(case.dtype),
        noise(batch, m),
    )


def scalar_root(features: Tensor, prototypes: Tensor, mu: float, eps: float) -> Pooled:
    """GSP as winnow computes it: fused on a GPU, in PyTorch on the CPU."""
    out = gsp(features, prototypes, mu, eps)
    return Pooled(out.vector, out.attributes)


def unrolled(features: Tensor, prototypes: Tensor, mu: float, eps: float, steps: int = STEPS) -> Pooled:
    """The iteration of [GSP], differentiated step by step."""
    features = features.float()
    return _pool(features, *iterate(distances(features, prototypes), mu, eps, steps), mu)


def closed_form(features: Tensor, prototypes: Tensor, mu: float, eps: float, steps: int = STEPS) -> Pooled:
    """The iteration of [GSP] with the gradient of its Proposition 4.2."""
    features = features.float()
    rho, plan = _Transport.apply(distances(features, prototypes), mu, eps, steps)  # type: ignore[no-untyped-call]
    return _pool(features, rho, plan, mu)


def distances(features: Tensor, prototypes: Tensor) -> Tensor:
    r"""Return distances (B, m, n) by $\sqrt{|w|^2 + |f|^2 - 2 w f}$.

    The gradient of a distance of 0 is 0.
    """
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


def _pool(features: Tensor, rho: Tensor, plan: Tensor, mu: float) -> Pooled:
    weights = (1 / rho.shape[1] - rho) / mu
    return Pooled((weights[:, None] @ features).squeeze(1), plan.sum(dim=2) / mu)


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
