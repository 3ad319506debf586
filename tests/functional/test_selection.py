"""Hard selection solves the linear program, and is the limit of soft selection."""

import numpy as np
import pytest
import torch
from scipy import optimize

from winnow.functional import gsp_weights, hard_selection


@pytest.mark.parametrize("mu", [0.07, 0.2, 0.55, 1.0])
def test_hard_selection_solves_the_linear_program(mu):
    n, m = 13, 3
    costs = np.random.default_rng(0).uniform(size=(m, n))
    # (P1) of [GSP]: plan (m n numbers) and residual (n); every column has mass 1 / n; the plan moves mass mu.
    columns = np.hstack([np.tile(np.eye(n), m), np.eye(n)])
    total = np.concatenate([np.ones(m * n), np.zeros(n)])
    solved = optimize.linprog(
        np.concatenate([costs.ravel(), np.zeros(n)]),
        A_eq=np.vstack([columns, total]),
        b_eq=np.concatenate([np.full(n, 1 / n), [mu]]),
    )
    weights = (1 / n - solved.x[m * n :]) / mu
    found = hard_selection(-torch.from_numpy(costs).amin(dim=0), mu)
    assert torch.allclose(found, torch.from_numpy(weights), atol=1e-9)


def test_soft_selection_converges_to_hard_selection():
    costs = torch.rand(4, 3, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    soft = gsp_weights(costs, 0.35, 1e4).weights
    assert torch.allclose(soft, hard_selection(-costs.amin(dim=1), 0.35), atol=1e-3)


def test_hard_selection_breaks_ties_by_position_and_validates_mu():
    assert hard_selection(torch.zeros(4), 0.5).tolist() == [0.5, 0.5, 0.0, 0.0]
    with pytest.raises(ValueError, match=r"mu: expected a fraction in \(0, 1\], got 0.0"):
        hard_selection(torch.zeros(4), 0.0)
