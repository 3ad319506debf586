"""Smooth-AP and the recall@k surrogate: limits, the code of others, and repeated positives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from winnow.losses import RecallAtKLoss, SmoothAPLoss

LABELS = torch.arange(4).repeat_interleave(3)


def vectors(count: int = 12, width: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def true_ranks(queries: Tensor) -> list[list[int]]:
    """Return the ranks of each query's positives among the other vectors, in ascending order."""
    unit = torch.nn.functional.normalize(queries, dim=1)
    found = []
    for q in range(len(unit)):
        order = (unit @ unit[q]).argsort(descending=True).tolist()
        order.remove(q)
        found.append([rank for rank, r in enumerate(order, 1) if LABELS[r] == LABELS[q]])
    return found


def test_smooth_ap_with_a_small_temperature_is_one_minus_average_precision() -> None:
    precisions = [sum(i / rank for i, rank in enumerate(ranks, 1)) / len(ranks) for ranks in true_ranks(vectors())]
    value = SmoothAPLoss(temperature=1e-6)(vectors(), LABELS)
    assert float(value) == pytest.approx(1 - sum(precisions) / len(precisions))


def test_recall_with_small_temperatures_is_one_minus_recall() -> None:
    ks = (1, 2, 4)
    # At rank k the sigmoid is 1/2, so ranks are compared with k + 1/2 by a rank temperature that is not too small.
    found = [
        min(k, sum(1.0 if rank < k else 0.5 if rank == k else 0.0 for rank in ranks)) / min(k, len(ranks))
        for ranks in true_ranks(vectors()) for k in ks
    ]  # fmt: skip
    value = RecallAtKLoss(ks=ks, temperature=1e-6, rank_temperature=1e-3)(vectors(), LABELS)
    assert float(value) == pytest.approx(1 - sum(found) / len(found))


def test_smooth_ap_of_a_batch_that_ranks_itself_agrees_with_pytorch_metric_learning() -> None:
    """As many classes as images per class: PML takes one number for the other."""
    from pytorch_metric_learning import losses

    labels, found = torch.arange(3).repeat_interleave(3), []
    for own in (True, False):
        x = vectors(9).requires_grad_()
        if own:
            value = SmoothAPLoss(temperature=0.2)(x, labels, ref_emb=x, ref_labels=labels)
        else:
            value = losses.SmoothAPLoss(temperature=0.2)(x, labels)
        value.backward()
        found.append((value.detach(), x.grad))
    torch.testing.assert_close(*found, check_dtype=False, rtol=1e-5, atol=1e-6)  # PML sums in float32


@pytest.mark.parametrize("loss", [SmoothAPLoss(temperature=0.3), RecallAtKLoss(temperature=0.3)], ids=str)
def test_more_rounds_than_positives_change_nothing(loss: SmoothAPLoss | RecallAtKLoss) -> None:
    value = loss(vectors(), LABELS)
    loss.max_positives = 2
    torch.testing.assert_close(loss(vectors(), LABELS), value)
    loss.max_positives = 1
    assert float(loss(vectors(), LABELS)) != pytest.approx(float(value))


@pytest.mark.parametrize("kind", [SmoothAPLoss, RecallAtKLoss])
def test_training_improves_the_order(kind: type[SmoothAPLoss | RecallAtKLoss]) -> None:
    x = vectors().requires_grad_()
    loss, optimizer = kind(temperature=0.1), torch.optim.Adam([x], lr=0.02)
    before = float(SmoothAPLoss(temperature=1e-6)(x, LABELS).detach())
    for _ in range(60):
        optimizer.zero_grad()
        loss(x, LABELS).backward()
        optimizer.step()
    assert float(SmoothAPLoss(temperature=1e-6)(x, LABELS).detach()) < 0.5 * before


@pytest.mark.parametrize(
    ("kind", "settings", "name"),
    [
        (SmoothAPLoss, {"temperature": 0}, "temperature"),
        (SmoothAPLoss, {"max_positives": 0}, "max_positives"),
        (RecallAtKLoss, {"ks": ()}, "ks"),
        (RecallAtKLoss, {"ks": (0, 1)}, "ks"),
        (RecallAtKLoss, {"rank_temperature": 0}, "rank_temperature"),
    ],
)
def test_settings_out_of_range_are_rejected(kind: type, settings: dict[str, object], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: "):
        kind(**settings)
