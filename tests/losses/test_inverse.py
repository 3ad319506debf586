"""Inverses of positive definite matrices: through Triton's interpreter, and on a GPU where there is one."""

from __future__ import annotations

import pytest
import torch

from tests.interpreter import run_interpreted
from winnow.losses.inverse import spd_inverse

pytest.importorskip("triton")


def check(device: str, sizes: list[int]) -> None:
    for n in sizes:
        generator = torch.Generator().manual_seed(n)
        # As the regression makes them: few attributes that sum to one, and a small ridge.
        z = torch.rand(2, n, max(1, n // 2), generator=generator, dtype=torch.float64).softmax(-1)
        exact = (z @ z.mT + 0.05 * torch.eye(n)).requires_grad_()
        weights = torch.randn(2, n, n, generator=generator, dtype=torch.float64)
        expected = torch.linalg.inv(exact)
        (expected * weights).sum().backward()
        for dtype, tolerance in ((torch.float32, 2e-4), (torch.float64, 1e-11)):
            matrices = exact.detach().to(device, dtype).requires_grad_()
            found = spd_inverse(matrices)
            (found * weights.to(device, dtype)).sum().backward()
            assert matrices.grad is not None
            assert exact.grad is not None
            # Of matrices that stay symmetric only the symmetric part of a gradient has a meaning.
            for a, b in ((found, expected), (matrices.grad + matrices.grad.mT, exact.grad + exact.grad.mT)):
                error = (a.detach().cpu().double() - b.detach()).norm() / b.detach().norm()
                assert float(error) < tolerance, (n, dtype, float(error))


def test_inverses_and_gradients_in_the_interpreter() -> None:
    run_interpreted("from tests.losses.test_inverse import check; check('cpu', [1, 5, 16, 20, 140])")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_inverses_and_gradients_on_the_gpu() -> None:
    check("cuda", [1, 5, 32, 64, 100, 128, 200, 300])
