"""Slow, independent implementations of `winnow.functional` for the tests of this folder."""

from __future__ import annotations

import numpy as np
import scipy.optimize
import torch
from hypothesis import settings
from torch import Tensor

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)


def random_problem(
    seed: int, batch: int = 2, n: int = 5, m: int = 3, d: int = 4, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Features (B, n, d) and prototypes (m, d), some inside and some outside the unit ball."""
    generator = torch.Generator().manual_seed(seed)
    features = 0.6 * torch.randn(batch, n, d, generator=generator, dtype=dtype)
    prototypes = 0.6 * torch.randn(m, d, generator=generator, dtype=dtype)
    return features, prototypes


def distinct_costs(seed: int, m: int, n: int) -> np.ndarray:
    """(m, n) costs in [0, 1), at least 1 / (m n) apart, so hard selections are unique."""
    return np.random.default_rng(seed).permutation(m * n).reshape(m, n) / (m * n)


def plain_costs(features: Tensor, prototypes: Tensor) -> np.ndarray:
    """(m, n) distances between clipped vectors, written out pair by pair in numpy."""
    f, w = features.double().numpy(), prototypes.double().numpy()
    f = np.stack([x / max(1.0, np.sqrt((x * x).sum())) for x in f])
    w = np.stack([x / max(1.0, np.sqrt((x * x).sum())) for x in w])
    return np.array([[np.sqrt(((a - b) ** 2).sum()) for b in f] for a in w])


def alternating_iteration(costs: np.ndarray, mu: float, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """Proposition 4.1 of [GSP] iterated to convergence: residual masses rho (n,) and plan pi (m, n)."""
    n = costs.shape[1]
    kernel = np.exp(-eps * costs)
    mass = kernel.sum(0)
    t = 1.0
    for _ in range(300_000):
        rho = (1 / n) / (1 + t * mass)
        before, t = t, mu / (rho * mass).sum()
        if abs(t - before) <= 4e-16 * t:
            return rho, t * kernel * rho
    raise AssertionError(f"the alternating iteration has not converged at mu={mu}, eps={eps}")


def linear_program(costs: np.ndarray, mu: float) -> tuple[np.ndarray, np.ndarray]:
    """Problem (P1) of [GSP], without entropy: residual masses (n,) and plan (m, n)."""
    m, n = costs.shape
    columns = np.hstack([np.tile(np.eye(n), (1, m)), np.eye(n)])
    total = np.concatenate([np.ones(m * n), np.zeros(n)])[None]
    solution = scipy.optimize.linprog(
        np.concatenate([costs.ravel(), np.zeros(n)]),
        A_eq=np.vstack([columns, total]),
        b_eq=np.append(np.full(n, 1 / n), mu),
        method="highs-ds",
    )
    assert solution.success
    return solution.x[m * n :], solution.x[: m * n].reshape(m, n)


def smoothed_dual(costs: np.ndarray, mu: float, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """(P2) of [GSP] by its unconstrained dual, one multiplier per feature and one for mu: rho (n,) and pi (m, n)."""
    n = costs.shape[1]

    def masses(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.exp(x[:n] - 1), np.exp(x[:n] + x[n] - eps * costs - 1)

    def value(x: np.ndarray) -> float:
        rho, pi = masses(x)
        return rho.sum() + pi.sum() - x[:n].mean() - mu * x[n]

    def gradient(x: np.ndarray) -> np.ndarray:
        rho, pi = masses(x)
        return np.append(rho + pi.sum(0) - 1 / n, pi.sum() - mu)

    def hessian(x: np.ndarray) -> np.ndarray:
        rho, pi = masses(x)
        corner = np.diag(np.append(rho + pi.sum(0), pi.sum()))
        corner[n, :n] = corner[:n, n] = pi.sum(0)
        return corner

    options = {"gtol": 1e-13, "maxiter": 5000}
    x = scipy.optimize.minimize(
        value, np.zeros(n + 1), jac=gradient, hess=hessian, method="trust-exact", options=options
    ).x
    for _ in range(5):  # the minimizer stops when rounding of the value hides its progress
        x = x - np.linalg.solve(hessian(x), gradient(x))
    assert np.abs(gradient(x)).max() < 1e-13
    return masses(x)


def smoothed_primal(costs: np.ndarray, mu: float, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """(P2) of [GSP] as written, by sequential quadratic programming, for tiny sizes: rho (n,) and pi (m, n)."""
    m, n = costs.shape

    def split(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return x[m * n :], x[: m * n].reshape(m, n)

    def value(x: np.ndarray) -> float:
        return (split(x)[1] * costs).sum() + (x * np.log(x)).sum() / eps

    def gradient(x: np.ndarray) -> np.ndarray:
        return np.append(costs.ravel(), np.zeros(n)) + (np.log(x) + 1) / eps

    def violation(x: np.ndarray) -> np.ndarray:
        rho, pi = split(x)
        return np.append(rho + pi.sum(0) - 1 / n, pi.sum() - mu)

    start = np.append(np.full(m * n, mu / (m * n)), np.full(n, (1 - mu) / n))
    solution = scipy.optimize.minimize(
        value,
        start,
        jac=gradient,
        bounds=[(1e-12, None)] * len(start),
        constraints={"type": "eq", "fun": violation},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 2000},
    )
    return split(solution.x)
