"""Hard selection is the linear program, and the limit of the soft one."""

import numpy as np
import pytest
import torch

from winnow.functional import gsp_weights, hard_selection


@pytest.mark.parametrize("share", [0.07, 0.2, 0.55, 1.0])
def test_it_solves_the_linear_program(share):
    optimize = pytest.importorskip("scipy.optimize")
    n, m = 13, 3
    costs = np.random.default_rng(0).uniform(size=(m, n))
    # (P1): plan (m n numbers) and residual (n), every column has mass 1 / n, the plan moves the share.
    columns = np.hstack([np.tile(np.eye(n), m), np.eye(n)])
    total = np.concatenate([np.ones(m * n), np.zeros(n)])
    solved = optimize.linprog(
        np.concatenate([costs.ravel(), np.zeros(n)]),
        A_eq=np.vstack([columns, total]),
        b_eq=np.concatenate([np.full(n, 1 / n), [share]]),
    )
    weights = (1 / n - solved.x[m * n :]) / share
    found = hard_selection(-torch.from_numpy(costs).amin(dim=0), share)
    assert torch.allclose(found, torch.from_numpy(weights), atol=1e-9)


def test_the_soft_selection_tends_to_it():
    costs = torch.rand(4, 3, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    soft = gsp_weights(costs, 0.35, 1e4).weights
    assert torch.allclose(soft, hard_selection(-costs.amin(dim=1), 0.35), atol=1e-3)


def test_ties_go_by_position_and_a_share_out_of_range_is_refused():
    assert hard_selection(torch.zeros(4), 0.5).tolist() == [0.5, 0.5, 0.0, 0.0]
    with pytest.raises(ValueError, match="share"):
        hard_selection(torch.zeros(4), 0.0)
