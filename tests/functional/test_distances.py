"""Distances, and normalizers of vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gsp_oracles import PROPERTY
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from winnow.functional import NORMALIZERS, clip_norm, l2_normalize, pairwise_distance


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_distance_of_every_pair() -> None:
    x, y = draw(0, 2, 5, 3), draw(1, 4, 3)
    expected = [[[np.linalg.norm(a - b) for b in y.numpy()] for a in image] for image in x.numpy()]
    np.testing.assert_allclose(pairwise_distance(x, y), expected, rtol=1e-13)
    np.testing.assert_allclose(pairwise_distance(x[0], y), expected[0], rtol=1e-13)


@pytest.mark.parametrize("shape", [(5, 3), (2, 5, 3)])
def test_gradient_of_distances(shape: tuple[int, ...]) -> None:
    x, y = draw(2, *shape).requires_grad_(), draw(3, 4, 3).requires_grad_()
    assert torch.autograd.gradcheck(pairwise_distance, (x, y), atol=1e-7, rtol=1e-5)


def test_gradient_is_zero_where_points_coincide() -> None:
    """Small integers are exact, so distance and gradient are exactly zero; other pairs keep their gradients."""
    x = torch.tensor([[1.0, 2.0], [4.0, 6.0]], requires_grad=True)
    y = torch.tensor([[1.0, 2.0]], requires_grad=True)
    distance = pairwise_distance(x, y)
    assert distance.tolist() == [[0.0], [5.0]]
    distance.sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([[0.0, 0.0], [0.6, 0.8]]))
    torch.testing.assert_close(y.grad, torch.tensor([[-0.6, -0.8]]))


@pytest.mark.parametrize("gap", [1e-1, 1e-2, 1e-3, 1e-4])
def test_float32_keeps_the_digits_of_a_small_distance(gap: float) -> None:
    x = torch.nn.functional.normalize(draw(4, 20, 128), dim=-1)
    y = (x + gap * torch.nn.functional.normalize(draw(5, 20, 128), dim=-1)).float()
    x = x.float()
    exact = (x.double() - y.double()).norm(dim=1)
    torch.testing.assert_close(pairwise_distance(x, y).diagonal().double(), exact, rtol=2e-7, atol=0)


def test_float32_keeps_the_direction_of_a_small_distance() -> None:
    x = torch.nn.functional.normalize(draw(6, 20, 128), dim=-1)
    y = (x + 1e-3 * torch.nn.functional.normalize(draw(7, 20, 128), dim=-1)).float()
    x = x.float().requires_grad_()
    pairwise_distance(x, y).diagonal().sum().backward()
    gap = x.detach().double() - y.double()
    torch.testing.assert_close(x.grad.double(), gap / gap.norm(dim=1, keepdim=True), rtol=1e-6, atol=1e-7)


@PROPERTY
@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 4)), elements=st.floats(-3, 3)))
def test_clip_norm_never_stretches(vectors: np.ndarray) -> None:
    """Vectors of length at most one stay, bit for bit; longer ones keep their direction and get length one."""
    clipped = clip_norm(torch.from_numpy(vectors)).numpy()
    for before, after in zip(vectors, clipped, strict=True):
        length = np.linalg.norm(before)
        if length < 1 - 1e-12:
            np.testing.assert_array_equal(after, before)
        else:
            np.testing.assert_allclose(after, before / length, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("length", [0.0, 0.3, 0.99, 1.01, 5.0])
def test_gradient_of_clip_norm(length: float) -> None:
    """Inside, outside, and at the zero vector, where the map is the identity."""
    x = (length * torch.nn.functional.normalize(draw(8, 2, 3), dim=-1)).requires_grad_()
    assert torch.autograd.gradcheck(clip_norm, (x,), atol=1e-8, rtol=1e-6)


def test_a_second_derivative_raises() -> None:
    x, y = torch.randn(3, 2, requires_grad=True), torch.randn(2, 2)
    first = torch.autograd.grad(pairwise_distance(x, y).square().sum(), x, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.square().sum().backward()


DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [1e10, 1.0, 1e-13, 1e-30])
def test_l2_normalize_equals_torch_for_nonzero_vectors(scale: float, dtype: torch.dtype) -> None:
    """Values and gradients, bit for bit, also where the squared norm underflows."""
    leaves = [(scale * draw(9, 6, 5, 16)).to(dtype).requires_grad_() for _ in range(2)]
    slope = draw(10, 6, 5, 16).to(dtype)
    found, expected = l2_normalize(leaves[0]), torch.nn.functional.normalize(leaves[1], dim=-1)
    found.backward(slope)
    expected.backward(slope)
    assert torch.equal(found, expected)
    assert torch.equal(leaves[0].grad, leaves[1].grad)


@DTYPES
@pytest.mark.parametrize("name", list(NORMALIZERS))
def test_a_zero_vector_is_normalized_to_zero_with_the_gradient_of_the_identity(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([[0.0, 0.0, 0.0], [3.0, 0.0, 4.0]], dtype=dtype, requires_grad=True)
    found = NORMALIZERS[name](x)
    assert found.dtype == dtype
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.0, 0.0], [0.6, 0.0, 0.8]], dtype=dtype))
    found.backward(torch.ones_like(found))
    assert x.grad[0].tolist() == [1, 1, 1]
    assert x.grad.isfinite().all()


@DTYPES
def test_distances_of_zero_vectors_have_finite_gradients(dtype: torch.dtype) -> None:
    """Between zero vectors the distance is 0; to others the gradient is a unit vector."""
    x = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.6, 0.8]], dtype=dtype, requires_grad=True)
    unit = l2_normalize(x)
    distance = pairwise_distance(unit, unit)
    torch.testing.assert_close(distance[0], torch.tensor([0.0, 0.0, 1.0], dtype=dtype))
    distance.sum().backward()
    assert x.grad.isfinite().all()
    assert x.grad[0].norm() < 3


def test_l2_normalize_in_float16_keeps_small_and_large_vectors() -> None:
    x = torch.tensor([[3e-7, 4e-7], [3e4, 4e4]], dtype=torch.float16)
    expected = torch.nn.functional.normalize(x.double(), dim=-1).half()
    assert torch.equal(l2_normalize(x), expected)


def test_l2_normalize_accepts_an_empty_batch() -> None:
    assert l2_normalize(torch.zeros(0, 4)).shape == (0, 4)
