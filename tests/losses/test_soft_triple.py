"""What is special about SoftTriple: classes of any size, and centres that merge."""

import math

import pytest
import torch
from torch import Tensor

from winnow.losses import SoftTriple
from winnow.losses.groups import first_of_class, softmax_means, spread_within_classes


def vectors(count: int, width: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_class_is_named_by_its_first_reference() -> None:
    places, own = first_of_class(torch.tensor([7, -3, 7, 2, -3]), torch.tensor([2, 5, 7, -4]))
    assert places.tolist() == [0, 1, 0, 3, 1]
    assert own.int().tolist() == [[0, 0, 0, 1, 0], [0] * 5, [1, 0, 0, 0, 0], [0] * 5]


def test_means_survive_logits_that_would_overflow() -> None:
    values = torch.tensor([[1.0, 3.0, 5.0]])
    logits = torch.tensor([[1000.0, 1000.0 + math.log(3), -1000.0]])
    means, present = softmax_means(values, logits, torch.tensor([[True, True, True]]), torch.tensor([0, 0, 2]))
    torch.testing.assert_close(means, torch.tensor([[2.5, 0.0, 5.0]]))
    assert present.tolist() == [[True, False, True]]


@pytest.mark.parametrize("reach", [4, 5, 7, 40])
def test_spread_is_the_mean_distance_within_classes(reach: int) -> None:
    # Classes of 1, 2, 3 and 4 vectors, in no order; one of 5 of which two do not count.
    classes = torch.tensor([4, 3, 9, 3, 9, 9, 3, 0, 0, 3, 5, 5, 5, 5, 5])
    x, counted = vectors(15), torch.tensor([True] * 13 + [False] * 2)
    within = [
        math.dist(x[i].tolist(), x[j].tolist())
        for i in range(15) for j in range(i) if classes[i] == classes[j] and counted[i] and counted[j]
    ]  # fmt: skip
    assert len(within) == 6 + 3 + 1 + 3
    found = spread_within_classes(x, classes, counted, reach)
    torch.testing.assert_close(float(found), sum(within) / len(within))
    assert torch.autograd.gradcheck(lambda x: spread_within_classes(x, classes, counted, reach), x.requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_centres_that_have_met_stay(dtype: torch.dtype) -> None:
    same = torch.nn.functional.normalize(vectors(1, 128), dim=1).to(dtype).repeat(4, 1).requires_grad_()
    spread = spread_within_classes(same, torch.zeros(4, dtype=torch.int64), torch.ones(4, dtype=torch.bool), 4)
    spread.backward()
    assert float(spread.detach()) == 0
    assert same.grad is not None
    assert not same.grad.any()


def test_the_regulariser_merges_centres_and_nothing_else_does() -> None:
    apart = {}
    for tau in (0.0, 5.0):
        centres = vectors(6).requires_grad_()
        loss = SoftTriple(tau=tau, gamma=1.0)
        optimizer = torch.optim.SGD([centres], lr=0.1)
        labels = torch.arange(2).repeat_interleave(3)
        for _ in range(300):
            optimizer.zero_grad()
            loss(vectors(8, seed=1), torch.arange(8) % 2, centres, labels).backward()
            optimizer.step()
        unit = torch.nn.functional.normalize(centres.detach(), dim=1)
        apart[tau] = float(spread_within_classes(unit, labels, torch.ones(6, dtype=torch.bool), 6))
    assert apart[5.0] < 0.15 < 0.3 < apart[0.0]


def test_one_centre_is_the_normalised_softmax_with_a_margin() -> None:
    queries, centres, labels = vectors(6), vectors(4, seed=1), torch.tensor([0, 3, 1, 1, 2, 0])
    cosines = torch.nn.functional.normalize(queries) @ torch.nn.functional.normalize(centres).mT
    wanted = torch.nn.functional.cross_entropy(9 * (cosines - 0.3 * torch.eye(4)[labels]), labels)
    torch.testing.assert_close(SoftTriple(scale=9.0, margin=0.3)(queries, labels, centres, torch.arange(4)), wanted)
