"""The crop kernel against the plain form: through Triton's interpreter, and on a GPU where there is one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.interpreter import run_interpreted
from winnow.data import Ragged
from winnow.data.crop_fused import crop_fused
from winnow.data.crops import _crop_plain, train_boxes

pytest.importorskip("triton")

SIZES = [(9, 13), (20, 8), (1, 1), (8, 8), (40, 24), (3, 50)]


def ragged(device: str) -> Ragged:
    rng = np.random.default_rng(0)
    sizes = torch.tensor(SIZES)
    lengths = 3 * sizes.prod(1)
    pixels = torch.from_numpy(rng.integers(0, 256, 6 + int(lengths.sum()), dtype=np.uint8))
    return Ragged(pixels.to(device), 6 + lengths.cumsum(0) - lengths, sizes[:, 0], sizes[:, 1])


def check(device: str) -> None:
    """Compare the two forms on random boxes, boxes beyond the image, flips, and boxes of whole pixels."""
    batch = ragged(device)
    generator = torch.Generator().manual_seed(0)
    drawn = train_boxes(batch.heights, batch.widths, generator)
    beyond = drawn * torch.tensor([1.0, -1.0, 2.5, 3.0])
    flips = torch.tensor([True, False, True, False, True, True])
    for boxes, turned, size in ((drawn, flips, (7, 9)), (beyond, flips, (30, 31)), (drawn, None, (1, 1))):
        found, expected = crop_fused(batch, boxes, size, turned), _crop_plain(batch, boxes, size, turned)
        assert found.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(found, expected, rtol=3e-7, atol=3e-7)
    whole = torch.tensor([[0.0, 1.0, 5.0, 6.0]]).expand(6, 4)
    out = torch.full((6, 3, 5, 6), -1.0, device=device).contiguous(memory_format=torch.channels_last)
    assert crop_fused(batch, whole, (5, 6), None, out) is out
    assert torch.equal(out, _crop_plain(batch, whole, (5, 6), None))


def test_the_kernel_equals_the_plain_form_in_the_interpreter() -> None:
    run_interpreted("from tests.data.test_crop_kernel import check; check('cpu')")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_kernel_equals_the_plain_form_on_the_gpu() -> None:
    check("cuda")


@pytest.mark.parametrize("wrong", ["shape", "order", "type"])
def test_a_place_that_does_not_fit_is_refused(wrong: str) -> None:
    out = torch.empty(6, 3, 5, 4 if wrong == "shape" else 6, dtype=torch.float64 if wrong == "type" else None)
    if wrong != "order":
        out = out.contiguous(memory_format=torch.channels_last)
    with pytest.raises(ValueError, match="channels-last float32"):
        crop_fused(ragged("cpu"), torch.zeros(6, 4), (5, 6), None, out)
