"""Fused GSP against the closed form in float64, in Triton's interpreter on a CPU and on a GPU."""

from __future__ import annotations

import os
from itertools import product

import pytest
import torch
from torch import Tensor

from tests.kernels.interpreter import run_interpreted
from winnow.errors import DataError
from winnow.functional import gsp
from winnow.kernels import gsp as kernels

NAMES = ("vector", "weights", "attributes", "features", "prototypes", "mu", "eps")


def problem(seed: int, batch: int, n: int, d: int, m: int, gap: float) -> tuple[Tensor, Tensor]:
    """Features and prototypes in float32, half of the features about `gap` from a prototype, some of them clipped."""
    generator = torch.Generator().manual_seed(seed)
    scale = 3.4 / d**0.5
    features = scale * torch.randn(batch, n, d, generator=generator) * torch.linspace(0.1, 1, n)[:, None]
    prototypes = scale * torch.randn(m, d, generator=generator) * torch.linspace(0.1, 1, m)[:, None]
    near = features[:, ::2]
    offsets = torch.nn.functional.normalize(near, dim=-1)
    which = torch.arange(near.shape[1]) % m
    features[:, ::2] = prototypes[which] + gap * torch.linspace(0.5, 1, near.shape[1])[:, None] * offsets
    return features, prototypes


def evaluate(
    f: Tensor,
    w: Tensor,
    mu: Tensor | float,
    eps: Tensor | float,
    mask: Tensor | None,
    *,
    use: tuple[int, ...] = (0, 1, 2),
) -> dict[str, Tensor]:
    """Outputs and gradients of a loss over several of them, by the closed form in float64 and fused in other dtypes."""
    leaves = [t.detach().clone().requires_grad_() if isinstance(t, Tensor) else t for t in (f, w, mu, eps)]
    form = gsp if f.dtype == torch.float64 else kernels.fused_gsp
    out = form(*leaves, mask)
    slopes = [torch.linspace(-1, 2, x.shape[1], device=f.device, dtype=torch.float64) for x in out]
    sum((out[i].double().square() * slopes[i]).sum() for i in use).backward()
    values = [*out, *(t.grad if isinstance(t, Tensor) else torch.zeros(()) for t in leaves)]
    return {name: value.detach().double() for name, value in zip(NAMES, values, strict=True)}


def worst(actual: dict[str, Tensor], expected: dict[str, Tensor], names: tuple[str, ...] = NAMES[:5]) -> float:
    """The largest relative error, by norm, of values and of gradients of features and prototypes."""
    errors = []
    for name in names:
        scale = expected[name].norm()
        errors.append(float((actual[name] - expected[name]).norm() / (scale if scale > 1e-12 else 1.0)))
    return max(errors)


def compare(
    device: str,
    size: tuple[int, ...],
    mu: float,
    eps: float,
    gap: float,
    *,
    dtype: torch.dtype = torch.float32,
    masked: bool = False, names: tuple[str, ...] = NAMES[:5],
) -> float:  # fmt: skip
    f, w = (t.to(device) for t in problem(sum(size), *size, gap))
    f = f.to(dtype)
    mask = None
    if masked:
        mask = torch.rand(f.shape[:2], generator=torch.Generator().manual_seed(1)).to(device) > 0.3
        mask[:, 0] = True
    return worst(evaluate(f, w, mu, eps, mask), evaluate(f.double(), w.double(), mu, eps, mask), names)


def check_accuracy(device: str) -> None:
    for mu, eps, gap in product((0.05, 0.3, 1.0), (0.5, 5.0, 20.0), (1.0, 0.01)):
        error = compare(device, (3, 24, 32, 8), mu, eps, gap, masked=gap == 1.0)
        assert error < 1e-5, (mu, eps, gap, error)
    for eps in (100.0, 1e4):
        error = compare(device, (3, 24, 32, 8), 0.3, eps, 0.01)
        assert error < 1e-3, (eps, error)


def check_sizes(device: str) -> None:
    """One tile per image, several tiles per image, long vectors, and sizes that need padding."""
    for size in ((2, 70, 24, 20), (3, 49, 160, 8), (2, 130, 200, 5), (2, 9, 16, 3), (1, 1, 3, 1), (5, 33, 130, 17)):
        for masked in (False, True):
            error = compare(device, size, 0.3, 20.0, 0.01 if size[1] % 2 == 0 else 1.0, masked=masked and size[1] > 1)
            assert error < 1e-5, (size, masked, error)


def check_parts(device: str) -> None:
    """Two bfloat16 parts and one. The interpreter truncates to bfloat16 and a GPU rounds, so tolerances differ."""
    rounded = device == "cuda"
    assert compare(device, (3, 49, 128, 64), 0.3, 5.0, 1.0) < (1e-5 if rounded else 2e-4)
    assert compare(device, (2, 70, 160, 9), 0.3, 5.0, 0.01) < (1e-5 if rounded else 2e-4)
    assert compare(device, (2, 70, 128, 20), 0.3, 5.0, 1.0, dtype=torch.bfloat16) < (1e-2 if rounded else 4e-2)
    assert compare(device, (2, 20, 128, 20), 0.3, 5.0, 1.0, dtype=torch.bfloat16) < (1e-2 if rounded else 4e-2)
    assert compare(device, (2, 20, 32, 5), 0.3, 20.0, 1.0, dtype=torch.float16) < 2e-3


def check_numbers(device: str) -> None:
    """mu and eps as tensors, with their gradients, and one mu per image."""
    f, w = (t.to(device) for t in problem(0, 3, 70, 24, 8, 1.0))
    for mu in (torch.tensor(0.3), torch.tensor([0.2, 0.5, 0.9])):
        numbers = mu.to(device), torch.tensor([5.0], device=device)
        actual = evaluate(f, w, *numbers, None)
        expected = evaluate(f.double(), w.double(), *(t.double() for t in numbers), None)
        assert worst(actual, expected, NAMES) < 1e-4
        assert actual["mu"].shape == mu.shape


def check_outputs(device: str) -> None:
    """Any output may have no gradient; weights and attributes sum to one; masked features have weight zero."""
    f, w = (t.to(device) for t in problem(0, 2, 70, 24, 8, 1.0))
    for use in ((0,), (1,), (2,), (0, 2)):
        error = worst(
            evaluate(f, w, 0.3, 5.0, None, use=use), evaluate(f.double(), w.double(), 0.3, 5.0, None, use=use)
        )
        assert error < 1e-5, (use, error)
    mask = torch.arange(70, device=device).expand(2, 70) % 3 > 0
    f[~mask] = torch.nan  # masked features are never read
    out = evaluate(f, w, 0.3, 5.0, mask)
    assert torch.allclose(out["weights"].sum(1), torch.ones(2, device=device, dtype=torch.float64), atol=1e-6)
    assert torch.allclose(out["attributes"].sum(1), torch.ones(2, device=device, dtype=torch.float64), atol=1e-6)
    assert not out["weights"][~mask].any()
    assert not out["features"][~mask].any()
    assert all(value.isfinite().all() for value in out.values())


def check_strides(device: str) -> None:
    """Tokens that are a view of a map (B, d, H, W) are pooled without a copy, and the gradient keeps the layout."""
    f, w = (t.to(device) for t in problem(0, 2, 48, 16, 8, 1.0))
    tokens = f.mT.contiguous().mT
    assert not tokens.is_contiguous()
    leaf = tokens.detach().requires_grad_()
    kernels.fused_gsp(leaf, w, 0.3, 5.0, None)[0].square().sum().backward()
    plain = f.detach().clone().requires_grad_()
    kernels.fused_gsp(plain, w, 0.3, 5.0, None)[0].square().sum().backward()
    assert leaf.grad is not None
    assert plain.grad is not None
    assert torch.allclose(leaf.grad, plain.grad, atol=1e-6)


def check_choice(device: str) -> None:
    """`gsp` uses the fused form by default, unless it is disabled or does not support the input."""
    f, w = (t.to(device) for t in problem(0, 2, 20, 16, 8, 1.0))
    assert kernels.can_fuse(f, w)
    assert not kernels.can_fuse(f.double(), w.double())
    assert not kernels.can_fuse(f[:0], w)
    assert not kernels.can_fuse(f, torch.zeros(129, 16, device=device))
    chosen = gsp(f, w, 0.3, 5.0)
    assert torch.equal(chosen.weights, kernels.fused_gsp(f, w, 0.3, 5.0, None)[1])
    os.environ[kernels.SWITCH] = "0"
    try:
        assert not kernels.can_fuse(f, w)
        assert torch.allclose(gsp(f, w, 0.3, 5.0).weights, chosen.weights, atol=1e-6)
    finally:
        del os.environ[kernels.SWITCH]
    for wrong in ({"mu": 0.0}, {"mu": 1.5}, {"eps": -1.0}, {"mu": torch.ones(3, device=device)}):
        with pytest.raises(ValueError, match=r"mu|eps"):
            gsp(f, w, **{"mu": 0.3, "eps": 5.0, **wrong})
    with pytest.raises(DataError, match="image 1 of the batch is masked"):
        gsp(f, w, 0.3, 5.0, torch.tensor([[True], [False]], device=device).expand(2, 20))


CHECKS = [check_accuracy, check_sizes, check_parts, check_numbers, check_outputs, check_strides, check_choice]


@pytest.mark.parametrize(
    "check",
    [check if check is check_choice else pytest.param(check, marks=pytest.mark.slow) for check in CHECKS],
    ids=lambda check: check.__name__,
)
def test_in_the_interpreter(check: object) -> None:
    run_interpreted(f"from tests.kernels.test_gsp import {check.__name__}; {check.__name__}('cpu')")  # type: ignore[attr-defined]


@pytest.mark.gpu
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_on_the_gpu(check: object) -> None:
    check("cuda")  # type: ignore[operator]


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(6, 49, 128, 64), (6, 64, 512, 128), (6, 196, 128, 64), (6, 256, 128, 128)], ids=str)
@pytest.mark.parametrize("gap", [1.0, 0.01])
def test_accuracy_at_the_usual_sizes(size: tuple[int, ...], gap: float) -> None:
    for eps in (0.5, 5.0, 20.0):
        assert compare("cuda", size, 0.3, eps, gap) < 1e-5, eps
    # With features far from prototypes and a hard selection, the gradient of the prototypes is zero up to rounding.
    assert compare("cuda", size, 0.3, 1e4, gap, names=NAMES[: 5 if gap < 0.1 else 4]) < 1e-3


@pytest.mark.gpu
def test_captured_and_compiled() -> None:
    """A captured CUDA graph replays on new values, and torch.compile sees one node."""
    f, w = (t.cuda() for t in problem(0, 4, 70, 32, 8, 1.0))
    leaf = f.clone().requires_grad_()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.autograd.grad(gsp(leaf, w, 0.3, 5.0).vector.square().sum(), leaf)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            (grad,) = torch.autograd.grad(gsp(leaf, w, 0.3, 5.0).vector.square().sum(), leaf)
        with torch.no_grad():
            leaf.copy_(f.flip(0))
        graph.replay()
        torch.cuda.synchronize()
    other = f.flip(0).requires_grad_()
    (expected,) = torch.autograd.grad(gsp(other, w, 0.3, 5.0).vector.square().sum(), other)
    assert torch.allclose(grad, expected, atol=1e-6)
    compiled = torch.compile(gsp, fullgraph=True)
    for places in (70, 81, 90):  # from the second size on, torch.compile makes the number of features symbolic
        other = problem(0, 4, places, 32, 8, 1.0)[0].cuda().requires_grad_()
        (expected,) = torch.autograd.grad(gsp(other, w, 0.3, 5.0).vector.square().sum(), other)
        (found,) = torch.autograd.grad(compiled(other, w, 0.3, 5.0).vector.square().sum(), other)
        assert torch.allclose(found, expected, atol=1e-6)
