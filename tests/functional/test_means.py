"""Skewed means against their definitions, their limits, their order, and the hard mean they smooth."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from winnow.functional import hard_skewed_mean, log_exp_mean, power_mean

INF = math.inf
numbers = st.lists(st.floats(0.05, 3.0), min_size=1, max_size=7)
parameters = st.floats(-40, 40)
SOFT = {"log_exp": log_exp_mean, "power": power_mean}
EVERY = {
    "log_exp": lambda x, **rest: log_exp_mean(x, 3.0, **rest),
    "log_exp toward the smallest": lambda x, **rest: log_exp_mean(x, -3.0, **rest),
    "log_exp at 0": lambda x, **rest: log_exp_mean(x, 0.0, **rest),
    "log_exp at infinity": lambda x, **rest: log_exp_mean(x, INF, **rest),
    "power": lambda x, **rest: power_mean(x, 2.0, **rest),
    "harmonic": lambda x, **rest: power_mean(x, -1.0, **rest),
    "geometric": lambda x, **rest: power_mean(x, 0.0, **rest),
    "smallest": lambda x, **rest: power_mean(x, -INF, **rest),
    "hard": lambda x, **rest: hard_skewed_mean(x, 2, **rest),
    "hard smallest": lambda x, **rest: hard_skewed_mean(x, 2, largest=False, **rest),
}
every_mean = pytest.mark.parametrize("name", EVERY)
soft_mean = pytest.mark.parametrize("name", SOFT)


def sample(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1


def slow(name: str, values: list[float], parameter: float) -> float:
    if parameter == 0:
        return sum(values) / len(values) if name == "log_exp" else math.prod(values) ** (1 / len(values))
    if name == "log_exp":
        return math.log(sum(math.exp(parameter * x) for x in values) / len(values)) / parameter
    return (sum(x**parameter for x in values) / len(values)) ** (1 / parameter)


@soft_mean
@settings(max_examples=60, deadline=None)
@given(values=numbers, parameter=parameters)
def test_equals_its_definition(name: str, values: list[float], parameter: float) -> None:
    assume(parameter == 0 or abs(parameter) > 1e-3)  # the plain formula loses all digits near 0
    found = SOFT[name](torch.tensor(values, dtype=torch.float64), parameter)
    assert float(found) == pytest.approx(slow(name, values, parameter), rel=1e-9)


@soft_mean
@settings(max_examples=60, deadline=None)
@given(values=numbers, one=parameters, two=parameters)
@example(values=[1.0, 2.0], one=-1.0, two=-5e-324)
def test_increases_with_its_parameter_from_the_smallest_to_the_largest(
    name: str, values: list[float], one: float, two: float
) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    marks = [-INF, *sorted([one, two]), INF]
    means = torch.stack([SOFT[name](x, mark) for mark in marks])
    assert (means.diff() >= -1e-12).all()
    assert float(means[0]) == pytest.approx(min(values), rel=1e-15)
    assert float(means[-1]) == pytest.approx(max(values), rel=1e-15)


@soft_mean
def test_strictly_grows_for_different_numbers(name: str) -> None:
    x = sample(5)
    means = torch.stack([SOFT[name](x, mark) for mark in torch.linspace(-30, 30, 41).tolist()])
    assert (means.diff() > 1e-6).all()


@soft_mean
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("sign", [-1, 1])
def test_reaches_its_limits(name: str, dtype: torch.dtype, sign: int) -> None:
    x, mean = sample(6).to(dtype), SOFT[name]
    digits = 100 * torch.finfo(dtype).eps
    for tiny in (1e-9, 1e-30):  # the mean or the geometric mean, to all digits
        torch.testing.assert_close(mean(x, sign * tiny), mean(x, 0.0), rtol=digits, atol=5e-9)
    torch.testing.assert_close(mean(x, sign * 1e6), mean(x, sign * INF), rtol=1e-4, atol=0)
    torch.testing.assert_close(mean(x, sign * 1e30), mean(x, sign * INF), rtol=digits, atol=0)


def test_named_power_means() -> None:
    x = torch.tensor([1.0, 4.0, 4.0], dtype=torch.float64)
    for t, value in ((-INF, 1), (-1, 2), (0, 16 ** (1 / 3)), (1, 3), (2, 11**0.5), (INF, 4)):
        assert float(power_mean(x, t)) == pytest.approx(value, rel=1e-14)


@soft_mean
@pytest.mark.parametrize("parameter", [-700.0, -3.0, 1e-8, 3.0, 700.0])
def test_float32_keeps_its_digits(name: str, parameter: float) -> None:
    x = sample(200).float()
    for scale in (1e-6, 1.0, 1e6):
        wide = SOFT[name]((scale * x).double(), parameter)
        torch.testing.assert_close(SOFT[name](scale * x, parameter).double(), wide, rtol=3e-6, atol=0)


def test_delta_shifts_the_value_and_not_the_gradient() -> None:
    x = sample(5).requires_grad_()
    plain, shifted = log_exp_mean(x, 4.0), log_exp_mean(x, 4.0, delta=0.3)
    assert float((plain - shifted).detach()) == pytest.approx(0.3, rel=1e-12)
    torch.testing.assert_close(log_exp_mean(x - 0.3, 4.0), shifted)
    (one,), (two,) = (torch.autograd.grad(value, x) for value in (plain, shifted))
    assert torch.equal(one, two)
    torch.testing.assert_close(one, (4.0 * x).softmax(0).detach())


@settings(max_examples=60, deadline=None)
@given(values=numbers, k=st.integers(1, 9), largest=st.booleans())
def test_hard_mean_equals_the_mean_of_sorted_numbers(values: list[float], k: int, largest: bool) -> None:
    chosen = sorted(values, reverse=largest)[:k]
    found = hard_skewed_mean(torch.tensor(values, dtype=torch.float64), k, largest=largest)
    assert float(found) == pytest.approx(sum(chosen) / len(chosen), rel=1e-14)


@soft_mean
@settings(max_examples=60, deadline=None)
@given(values=numbers, k=st.integers(1, 7))
def test_smooths_the_hard_mean(name: str, values: list[float], k: int) -> None:
    """Some parameter from 0 (power: 1) to infinity gives the hard mean of every K (Theorem 1 of [Skewed])."""
    x, mean = torch.tensor(values, dtype=torch.float64), SOFT[name]
    plain = 0.0 if name == "log_exp" else 1.0
    top, bottom = hard_skewed_mean(x, k), hard_skewed_mean(x, k, largest=False)
    assert mean(x, plain) - 1e-12 <= top <= mean(x, INF) + 1e-12
    assert mean(x, -INF) - 1e-12 <= bottom <= mean(x, plain) + 1e-12
    low, high = plain, 1e6
    for _ in range(80):
        low, high = (low, (low + high) / 2) if mean(x, (low + high) / 2) > top else ((low + high) / 2, high)
    # With K = 1, or ties for the largest, both are equal only at infinity; the remaining gap is log(N) / 1e6.
    assert float(mean(x, low)) == pytest.approx(float(top), abs=1e-5)


def test_the_hard_mean_falls_with_k_from_the_largest_to_the_mean() -> None:
    x = sample(6)
    means = torch.stack([hard_skewed_mean(x, k) for k in range(1, 7)])
    assert (means.diff() < 0).all()
    torch.testing.assert_close(means[0], log_exp_mean(x, INF))
    torch.testing.assert_close(means[0], log_exp_mean(x, 1e5), atol=1e-4, rtol=0)
    torch.testing.assert_close(means[-1], log_exp_mean(x, 0.0))


@every_mean
def test_gradient_equals_finite_differences(name: str) -> None:
    mask = torch.tensor([[True, True, False, True], [True, True, True, True], [False, False, True, False]])
    x = sample(3, 4).requires_grad_()
    assert gradcheck(EVERY[name], x)
    assert gradcheck(lambda x: EVERY[name](x, mask=mask), x)


@every_mean
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_a_mask_drops_numbers(name: str, dim: int) -> None:
    x, mask = sample(4, 5), sample(4, 5, seed=1) > 0.5
    rows, kept = (x, mask) if dim != 0 else (x.mT, mask.mT)
    expected = [EVERY[name](row[keep]) if keep.any() else torch.zeros((), dtype=x.dtype)
                for row, keep in zip(rows, kept, strict=True)]  # fmt: skip
    for filling in (0.5, INF, math.nan):  # masked numbers are not read
        found = EVERY[name](x.masked_fill(~mask, filling), dim=dim, mask=mask)
        torch.testing.assert_close(found, torch.stack(expected))


@every_mean
@pytest.mark.parametrize("shape", [(2, 0), (2, 3), (0, 3)], ids=str)
def test_an_empty_selection_gives_zero_and_no_gradient(name: str, shape: tuple[int, int]) -> None:
    x = sample(*shape).requires_grad_()
    found = EVERY[name](x, mask=torch.zeros(shape, dtype=torch.bool))
    assert torch.equal(found, torch.zeros(shape[0], dtype=x.dtype))
    found.sum().backward()
    assert x.grad is not None
    assert not x.grad.any()


@every_mean
@pytest.mark.parametrize("value", [0.0, 1e-30, 1e30])
def test_equal_and_extreme_numbers_give_finite_gradients(name: str, value: float) -> None:
    for row in ([value] * 4, [value, 1.0, 1.0, 0.5]):
        x = torch.tensor(row, requires_grad=True)
        found = EVERY[name](x)
        found.backward()
        assert found.isfinite()
        assert x.grad is not None
        assert x.grad.isfinite().all()


@pytest.mark.slow
@every_mean
def test_compiles_to_one_graph_that_equals_eager(name: str) -> None:
    torch._dynamo.reset()
    x, mask = sample(3, 4), sample(3, 4, seed=1) > 0.5
    compiled = torch.compile(lambda x: EVERY[name](x, mask=mask), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), EVERY[name](x, mask=mask))


def test_parameters_out_of_range_raise() -> None:
    with pytest.raises(ValueError, match="k: expected at least 1, got 0"):
        hard_skewed_mean(sample(3), 0)
    with pytest.raises(ValueError, match="gamma: expected a real number"):
        power_mean(sample(3), math.nan)
