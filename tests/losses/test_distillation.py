"""Relational self-distillation against loops over pairs, and its limits."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from winnow.functional import l2_normalize
from winnow.losses import RelationalDistillation


def embeddings(rows: int, dim: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slow(student: Tensor, teacher: Tensor, temperature: float) -> float:
    """Sum p log(p / q) over all pairs of different samples, one at a time."""

    def neighbors(vectors: Tensor, i: int) -> dict[int, float]:
        unit = [vector / vector.norm() for vector in vectors]
        scores = {j: math.exp(float(unit[i] @ unit[j]) / temperature) for j in range(len(unit)) if j != i}
        return {j: score / sum(scores.values()) for j, score in scores.items()}

    total = 0.0
    for i in range(len(student)):
        p, q = neighbors(teacher, i), neighbors(student, i)
        total += sum(p[j] * math.log(p[j] / q[j]) for j in p)
    return total / len(student)


@pytest.mark.parametrize("rows", [3, 4, 9])
@pytest.mark.parametrize("temperature", [0.05, 0.1, 1.0])
def test_the_value_is_that_of_loops(rows: int, temperature: float) -> None:
    student, teacher = embeddings(rows), embeddings(rows, dim=7, seed=1)
    found = RelationalDistillation(temperature=temperature)(student, teacher)
    assert float(found) == pytest.approx(slow(student, teacher, temperature), rel=1e-10)


def test_gradients() -> None:
    student, teacher = embeddings(6).requires_grad_(), embeddings(6, seed=1).requires_grad_()
    loss = RelationalDistillation(temperature=0.2)
    assert torch.autograd.gradcheck(lambda x: loss(x, teacher.detach()), (student,))
    loss(student, teacher).backward()
    assert teacher.grad is None


def test_it_is_zero_for_equal_similarities_alone() -> None:
    loss, student = RelationalDistillation(), embeddings(8)
    turn, _ = torch.linalg.qr(embeddings(5, seed=2))
    assert float(loss(student, student)) == pytest.approx(0, abs=1e-12)
    assert float(loss(3 * student @ turn, student)) == pytest.approx(0, abs=1e-12)  # no length and no direction
    assert float(loss(student, embeddings(8, seed=3))) > 0.1


def test_a_step_along_the_gradient_brings_similarities_closer() -> None:
    student, teacher = embeddings(8).requires_grad_(), embeddings(8, seed=1)
    loss = RelationalDistillation()

    def distance() -> float:
        ours, theirs = l2_normalize(student.detach()), l2_normalize(teacher)
        return float((ours @ ours.T - theirs @ theirs.T).norm())

    before = distance()
    optimizer = torch.optim.Adam([student], lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        loss(student, teacher).backward()
        optimizer.step()
    assert distance() < 0.5 * before


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_small_batches_have_no_others_to_compare(rows: int) -> None:
    student = embeddings(rows).requires_grad_()
    found = RelationalDistillation()(student, embeddings(rows, seed=1))
    found.backward()
    assert float(found.detach()) == 0
    assert student.grad is not None
    assert not student.grad.any()


def test_it_is_computed_in_single_precision_under_autocast() -> None:
    student, teacher = embeddings(8).float(), embeddings(8, seed=1).float()
    loss = RelationalDistillation()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = loss(student.bfloat16(), teacher.bfloat16())
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(float(loss(student.bfloat16().float(), teacher.bfloat16().float())), rel=1e-6)
