"""Proximal penalty against its formula; weights and buffers that it must not change."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from winnow.losses import ProximalPenalty


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False)).to(dtype)
    for parameter in model[1].parameters():
        parameter.requires_grad_(False)
    return model


def moved(model: nn.Module, by: float) -> dict[str, torch.Tensor]:
    return {name: value.detach() + by for name, value in model.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_penalty_and_gradient_follow_the_formula(dtype: torch.dtype) -> None:
    model = network(dtype)
    penalty = ProximalPenalty(model).to(dtype)
    penalty.set_target(moved(model, 0.5))
    penalty.weight.fill_(0.3)
    value = penalty()
    assert value.dtype == dtype
    trained = [p for p in model.parameters() if p.requires_grad]
    count = sum(p.numel() for p in trained)
    torch.testing.assert_close(value.detach(), torch.tensor(0.3 / 2 * 0.25 * count, dtype=dtype))
    (2 * value).backward()
    for parameter in model.parameters():
        if parameter.requires_grad:  # 2 lambda (theta - theta_prev)
            torch.testing.assert_close(parameter.grad, torch.full_like(parameter, -2 * 0.3 * 0.5))
        else:
            assert parameter.grad is None


def test_gradient_equals_finite_differences() -> None:
    model = nn.Linear(2, 2).double()
    penalty = ProximalPenalty(model).double()
    penalty.set_target(moved(model, 0.1))
    penalty.weight.fill_(0.7)

    def value(*weights: torch.Tensor) -> torch.Tensor:
        penalty._weights = list(weights)
        return penalty()

    weights = [p.detach().clone().requires_grad_() for p in model.parameters()]
    assert torch.autograd.gradcheck(value, weights)


def test_penalty_is_zero_at_first_and_at_the_target() -> None:
    model = network()
    penalty = ProximalPenalty(model)
    with torch.no_grad():
        model[0].weight += 1
    assert float(penalty().detach()) == 0  # lambda is 0
    penalty.weight.fill_(1.0)
    penalty.set_target(dict(model.named_parameters()))
    penalty().backward()
    assert all(not p.grad.any() for p in model.parameters() if p.grad is not None)


def test_target_changes_in_place_and_is_not_in_the_state_dict() -> None:
    model = network()
    penalty = ProximalPenalty(model)
    addresses = [buffer.data_ptr() for buffer in penalty.buffers()]
    penalty.set_target(moved(model, 1.0))
    assert [buffer.data_ptr() for buffer in penalty.buffers()] == addresses
    assert not penalty.state_dict()
    assert not list(penalty.parameters())  # the network's weights are the network's


def test_a_copy_penalizes_its_own_network() -> None:
    model = network()
    both = nn.ModuleList([model, ProximalPenalty(model)])
    twin = copy.deepcopy(both)
    twin[1].weight.fill_(1.0)
    with torch.no_grad():
        model[0].weight += 1
    assert float(twin[1]().detach()) == 0
    with torch.no_grad():
        twin[0][0].weight += 1
    assert float(twin[1]().detach()) == pytest.approx(6.0)


def test_a_frozen_network_has_no_penalty() -> None:
    model = network().requires_grad_(False)
    assert float(ProximalPenalty(model)()) == 0


def test_it_compiles() -> None:
    model = network()
    penalty = ProximalPenalty(model)
    penalty.set_target(moved(model, 0.5))
    penalty.weight.fill_(0.3)
    compiled = torch.compile(penalty, backend="aot_eager")
    torch.testing.assert_close(compiled().detach(), penalty().detach())
