"""Fused crops and SPD inverses against plain operations, in Triton's interpreter and on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.kernels.interpreter import run_interpreted
from winnow.data import RaggedImages
from winnow.data.crops import _crop_plain, train_boxes
from winnow.kernels.ops import fused_crops, spd_inverse

pytest.importorskip("triton")

SIZES = [(9, 13), (20, 8), (1, 1), (8, 8), (40, 24), (3, 50)]


def ragged(device: str) -> RaggedImages:
    rng = np.random.default_rng(0)
    sizes = torch.tensor(SIZES)
    lengths = 3 * sizes.prod(1)
    pixels = torch.from_numpy(rng.integers(0, 256, 6 + int(lengths.sum()), dtype=np.uint8))
    return RaggedImages(pixels.to(device), 6 + lengths.cumsum(0) - lengths, sizes[:, 0], sizes[:, 1])


def check_crops(device: str) -> None:
    """Compare both forms on random boxes, boxes beyond the image, flips, and boxes of whole pixels."""
    batch = ragged(device)
    generator = torch.Generator().manual_seed(0)
    drawn = train_boxes(batch.heights, batch.widths, generator)
    beyond = drawn * torch.tensor([1.0, -1.0, 2.5, 3.0])
    flips = torch.tensor([True, False, True, False, True, True])
    for boxes, turned, size in ((drawn, flips, (7, 9)), (beyond, flips, (30, 31)), (drawn, None, (1, 1))):
        found = fused_crops(batch, boxes, size, turned)
        expected = _crop_plain(batch, boxes, size, turned)
        assert found.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(found, expected, rtol=3e-7, atol=3e-7)
    whole = torch.tensor([[0.0, 1.0, 5.0, 6.0]]).expand(6, 4)
    out = torch.full((6, 3, 5, 6), -1.0, device=device).contiguous(memory_format=torch.channels_last)
    assert fused_crops(batch, whole, (5, 6), None, out) is out
    assert torch.equal(out, _crop_plain(batch, whole, (5, 6), None))


@pytest.mark.slow
def test_crops_in_the_interpreter() -> None:
    run_interpreted("from tests.kernels.test_ops import check_crops; check_crops('cpu')")


@pytest.mark.gpu
def test_crops_on_the_gpu() -> None:
    check_crops("cuda")


@pytest.mark.parametrize("wrong", ["shape", "order", "type"])
def test_an_unsuitable_output_of_crops_raises(wrong: str) -> None:
    out = torch.empty(6, 3, 5, 4 if wrong == "shape" else 6, dtype=torch.float64 if wrong == "type" else None)
    if wrong != "order":
        out = out.contiguous(memory_format=torch.channels_last)
    with pytest.raises(ValueError, match="out: expected a channels-last float32"):
        fused_crops(ragged("cpu"), torch.zeros(6, 4), (5, 6), None, out)


def check_inverses(device: str, sizes: list[int]) -> None:
    for n in sizes:
        generator = torch.Generator().manual_seed(n)
        # Matrices as in ridge regression: few attributes that sum to one, and a small ridge.
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
            # For symmetric matrices only the symmetric part of the gradient is defined.
            for a, b in ((found, expected), (matrices.grad + matrices.grad.mT, exact.grad + exact.grad.mT)):
                error = (a.detach().cpu().double() - b.detach()).norm() / b.detach().norm()
                assert float(error) < tolerance, (n, dtype, float(error))


@pytest.mark.slow
def test_inverses_in_the_interpreter() -> None:
    run_interpreted("from tests.kernels.test_ops import check_inverses; check_inverses('cpu', [1, 5, 16, 20, 140])")


@pytest.mark.gpu
def test_inverses_on_the_gpu() -> None:
    check_inverses("cuda", [1, 5, 32, 64, 100, 128, 200, 300])
