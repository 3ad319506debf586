"""GSP in every precision, under autocast and compiled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gsp_oracles import random_problem
from torch import Tensor

from winnow.errors import DataError
from winnow.functional import GSPOutput, gsp


def evaluate(
    function: Callable[..., GSPOutput], dtype: torch.dtype, *inputs: Tensor, mask: Tensor | None = None
) -> dict[str, Tensor]:
    """Outputs of gsp, a smooth loss of them and its gradients, all in float64."""
    leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
    out = function(*leaves, mask)
    slopes = [torch.linspace(-1, 2, x.shape[1], dtype=dtype) for x in out]
    loss = sum((x.square() * slope).sum() for x, slope in zip(out, slopes, strict=True))
    loss.backward()
    gradients = zip(("features", "prototypes", "mu", "eps"), (x.grad for x in leaves), strict=True)
    return {k: v.detach().double() for k, v in (*out._asdict().items(), ("loss", loss), *gradients)}


def near_prototypes(seed: int, gap: float) -> tuple[Tensor, Tensor]:
    """Half of the features within `gap` of a prototype, in float32, inside and outside the unit ball."""
    features, prototypes = random_problem(seed, batch=4, n=24, m=8, d=32, dtype=torch.float32)
    offsets = torch.nn.functional.normalize(features[:, ::2], dim=-1)
    features = features * torch.linspace(0.1, 1, 24)[:, None]
    prototypes = prototypes * torch.linspace(0.1, 1, 8)[:, None]
    which = torch.arange(12) % 8
    features[:, ::2] = prototypes[which] + gap * torch.linspace(0.5, 1, 12)[:, None] * offsets
    return features, prototypes


@pytest.mark.parametrize("gap", [1.0, 0.01])
@pytest.mark.parametrize("eps", [0.1, 0.5, 5.0, 20.0])
@pytest.mark.parametrize("mu", [0.05, 0.3, 0.7, 0.95])
def test_float32_has_the_digits_of_float64(mu: float, eps: float, gap: float) -> None:
    """Values and gradients within 1e-5, also for features within 0.01 of a prototype."""
    inputs = *near_prototypes(0, gap), torch.tensor(mu), torch.tensor(eps)
    single, double = evaluate(gsp, torch.float32, *inputs), evaluate(gsp, torch.float64, *inputs)
    for name in ("vector", "weights", "attributes", "features", "prototypes"):
        error = (single[name] - double[name]).norm() / double[name].norm()
        assert error < 1e-5, (name, float(error))
    for name, value in (("mu", mu), ("eps", eps)):
        # These are differences of nearly equal sums, so the error is relative to the loss.
        error = value * (single[name] - double[name]).abs() / double["loss"].abs()
        assert error < 1e-5, (name, float(error))


@pytest.mark.parametrize("eps", [100.0, 1e3, 1e4])
@pytest.mark.parametrize("mu", [0.05, 0.33, 0.7])
def test_float32_selects_the_same_features_at_any_sharpness(mu: float, eps: float) -> None:
    """The kept fraction n mu p_j of each feature is within 1e-3."""
    features, prototypes = random_problem(1, batch=8, n=49, m=16, d=32, dtype=torch.float32)
    single = gsp(features, prototypes, mu, eps).weights.double()
    double = gsp(features.double(), prototypes.double(), mu, eps).weights
    assert 49 * mu * (single - double).abs().max() < 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    features, prototypes = random_problem(2, dtype=torch.float32)
    half, prototypes = features.to(dtype), prototypes.to(dtype)
    out = gsp(half, prototypes, 0.3, 5.0)
    exact = gsp(half.float(), prototypes.float(), 0.3, 5.0)
    assert out.vector.dtype == dtype
    assert out.weights.dtype == out.attributes.dtype == torch.float32
    assert torch.equal(out.weights, exact.weights)
    assert torch.equal(out.attributes, exact.attributes)
    assert torch.equal(out.vector, exact.vector.to(dtype))


def test_half_precision_features_with_float32_prototypes() -> None:
    """As in mixed-precision training: parameters stay in float32, and each gradient has the dtype of its input."""
    features, prototypes = random_problem(3, dtype=torch.float32)
    half = features.bfloat16().requires_grad_()
    prototypes.requires_grad_()
    gsp(half, prototypes, 0.3, 5.0).vector.float().square().sum().backward()
    assert (half.grad.dtype, prototypes.grad.dtype) == (torch.bfloat16, torch.float32)
    assert half.grad.isfinite().all()
    assert prototypes.grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wide_input_keeps_its_dtype(dtype: torch.dtype) -> None:
    features, prototypes = random_problem(4, dtype=dtype)
    assert {x.dtype for x in gsp(features, prototypes, 0.3, 5.0)} == {dtype}


def test_mu_and_eps_do_not_change_the_dtype_of_the_result() -> None:
    features, prototypes = random_problem(5, dtype=torch.float32)
    mu, eps = torch.tensor([0.3], dtype=torch.float64), torch.tensor([5.0], dtype=torch.float64)
    out = gsp(features, prototypes, mu, eps)
    assert {x.dtype for x in out} == {torch.float32}
    assert torch.equal(out.vector, gsp(features, prototypes, 0.3, 5.0).vector)


def test_autocast_changes_nothing() -> None:
    features, prototypes = random_problem(6, dtype=torch.float32)
    plain = gsp(features, prototypes, 0.3, 5.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (features @ prototypes.mT).dtype == torch.bfloat16  # it is on
        cast = gsp(features, prototypes, 0.3, 5.0)
    for actual, expected in zip(cast, plain, strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "masked"), [("inductor", True), ("aot_eager", False)])
def test_compiled_to_one_graph_equals_eager(backend: str, masked: bool) -> None:
    """Values and gradients are equal; a fully masked image still raises."""
    torch.compiler.reset()
    compiled = torch.compile(gsp, fullgraph=True, backend=backend)
    features, prototypes = random_problem(7, n=6)
    mask = torch.tensor([[True] * 6, [True, False] * 3]) if masked else None
    inputs = features, prototypes, torch.tensor([0.3, 1.0]), torch.tensor(5.0)
    expected = evaluate(gsp, torch.float64, *inputs, mask=mask)
    for name, actual in evaluate(compiled, torch.float64, *inputs, mask=mask).items():
        torch.testing.assert_close(actual, expected[name], rtol=1e-10, atol=1e-12, msg=name)
    if mask is not None:
        wide = [x.double().requires_grad_() for x in inputs]
        with pytest.raises(DataError, match="image 1 of the batch is masked"):
            compiled(*wide, mask & torch.tensor([[True], [False]]))
