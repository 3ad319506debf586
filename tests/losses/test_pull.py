"""The pull towards earlier weights against its formula, and what it leaves alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from winnow.losses import Pull


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False)).to(dtype)
    for parameter in model[1].parameters():
        parameter.requires_grad_(False)
    return model


def moved(model: nn.Module, by: float) -> dict[str, torch.Tensor]:
    return {name: value.detach() + by for name, value in model.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_term_and_its_gradient_are_those_of_the_formula(dtype: torch.dtype) -> None:
    model = network(dtype)
    pull = Pull(model).to(dtype)
    pull.towards(moved(model, 0.5))
    pull.weight.fill_(0.3)
    value = pull()
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


def test_the_gradient_is_that_of_finite_differences() -> None:
    model = nn.Linear(2, 2).double()
    pull = Pull(model).double()
    pull.towards(moved(model, 0.1))
    pull.weight.fill_(0.7)

    def value(*weights: torch.Tensor) -> torch.Tensor:
        pull._weights = list(weights)
        return pull()

    weights = [p.detach().clone().requires_grad_() for p in model.parameters()]
    assert torch.autograd.gradcheck(value, weights)


def test_it_pulls_nothing_at_first_and_where_nothing_has_moved() -> None:
    model = network()
    pull = Pull(model)
    with torch.no_grad():
        model[0].weight += 1
    assert float(pull().detach()) == 0  # lambda is 0
    pull.weight.fill_(1.0)
    pull.towards(dict(model.named_parameters()))
    pull().backward()
    assert all(not p.grad.any() for p in model.parameters() if p.grad is not None)


def test_its_memory_stays_in_place_and_out_of_the_state_dict() -> None:
    model = network()
    pull = Pull(model)
    places = [buffer.data_ptr() for buffer in pull.buffers()]
    pull.towards(moved(model, 1.0))
    assert [buffer.data_ptr() for buffer in pull.buffers()] == places
    assert not pull.state_dict()
    assert not list(pull.parameters())  # the network's weights are the network's


def test_a_copy_pulls_its_own_network() -> None:
    model = network()
    both = nn.ModuleList([model, Pull(model)])
    twin = copy.deepcopy(both)
    twin[1].weight.fill_(1.0)
    with torch.no_grad():
        model[0].weight += 1
    assert float(twin[1]().detach()) == 0
    with torch.no_grad():
        twin[0][0].weight += 1
    assert float(twin[1]().detach()) == pytest.approx(6.0)


def test_a_network_with_nothing_to_train_is_not_pulled() -> None:
    model = network().requires_grad_(False)
    assert float(Pull(model)()) == 0


def test_it_compiles() -> None:
    model = network()
    pull = Pull(model)
    pull.towards(moved(model, 0.5))
    pull.weight.fill_(0.3)
    compiled = torch.compile(pull, backend="aot_eager")
    torch.testing.assert_close(compiled().detach(), pull().detach())
