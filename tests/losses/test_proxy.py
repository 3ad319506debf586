"""Proxy losses: proxies of their own, Proxy-Anchor on one class, and the centers of SoftTriple."""

import math

import pytest
import torch
from torch import Tensor

from winnow.losses import (
    LOSSES,
    ArcFaceLoss,
    NormalizedSoftmaxLoss,
    ProxyAnchorLoss,
    ProxyLoss,
    SoftTripleLoss,
)
from winnow.losses.proxy import class_columns, mean_distance_within_classes, softmax_means


def vectors(count: int, width: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


LABELS = torch.tensor([0, 0, 1, 1, 2, 2])
every_loss = pytest.mark.parametrize("kind", [LOSSES[name] for name in LOSSES if issubclass(LOSSES[name], ProxyLoss)])


@every_loss
@pytest.mark.parametrize("per_class", [1, 3])
def test_own_proxies_are_those_of_a_call_with_references(kind: type[ProxyLoss], per_class: int) -> None:
    loss, plain = kind(3, 5, proxies_per_class=per_class), kind()
    assert loss.proxies is not None
    assert loss.proxies.shape == (3 * per_class, 5)
    value = loss(vectors(6).float(), LABELS)
    labels = torch.arange(3).repeat_interleave(per_class)
    references = loss.proxies.detach().clone().requires_grad_()
    wanted = plain(vectors(6).float(), LABELS, ref_emb=references, ref_labels=labels)
    assert torch.equal(value, wanted)
    value.backward()
    wanted.backward()
    assert torch.equal(loss.proxies.grad, references.grad)


@every_loss
def test_an_optimizer_of_the_parameters_trains_the_proxies(kind: type[ProxyLoss]) -> None:
    torch.manual_seed(0)
    loss = kind(3, 5, proxies_per_class=1)
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.05)
    values = []
    for _ in range(50):
        optimizer.zero_grad()
        value = loss(vectors(6).float(), LABELS)
        value.backward()
        optimizer.step()
        values.append(float(value.detach()))
    assert values[-1] < 0.7 * values[0]


@every_loss
def test_references_replace_the_proxies(kind: type[ProxyLoss]) -> None:
    loss, references = kind(3, 5), vectors(4, seed=1).float()
    given = {"ref_emb": references, "ref_labels": torch.tensor([7, 8, 9, 7])}
    value = loss(vectors(6).float(), LABELS + 7, **given)
    assert torch.equal(value, kind()(vectors(6).float(), LABELS + 7, **given))


@every_loss
def test_a_loss_without_proxies_needs_references(kind: type[ProxyLoss]) -> None:
    with pytest.raises(ValueError, match=r"no proxies.*num_classes"):
        kind()(vectors(6), LABELS)
    for sizes in ({"num_classes": 3}, {"embedding_size": 5}):
        with pytest.raises(ValueError, match="num_classes, embedding_size: "):
            kind(**sizes)
    with pytest.raises(ValueError, match="proxies_per_class: "):
        kind(3, 5, proxies_per_class=0)


@every_loss
def test_proxies_are_saved_and_follow_the_module(kind: type[ProxyLoss]) -> None:
    loss, fresh = kind(3, 5), kind(3, 5)
    fresh.load_state_dict(loss.state_dict())
    assert torch.equal(fresh(vectors(6).float(), LABELS), loss(vectors(6).float(), LABELS))
    assert loss.double().proxies.dtype is torch.float64
    assert loss.to("meta").proxy_labels.device.type == "meta"


@pytest.mark.parametrize("labels", [[1] * 6, [0, 0, 1, 1, 2, 2]], ids=["one class", "three classes"])
def test_proxy_anchor_divides_by_the_number_of_all_proxies(labels: list[int]) -> None:
    from pytorch_metric_learning import losses

    theirs = losses.ProxyAnchorLoss(4, 5, margin=0.2, alpha=3.0).double()
    ours = ProxyAnchorLoss(4, 5, margin=0.2, alpha=3.0).double()
    ours.load_state_dict(theirs.state_dict())
    found = []
    for loss in (ours, theirs):
        x = vectors(6).requires_grad_()
        value = loss(x, torch.tensor(labels))
        value.backward()
        found.append((value.detach(), x.grad, loss.proxies.grad))
    torch.testing.assert_close(*found)


def test_a_class_uses_the_column_of_its_first_reference() -> None:
    columns, own = class_columns(torch.tensor([7, -3, 7, 2, -3]), torch.tensor([2, 5, 7, -4]))
    assert columns.tolist() == [0, 1, 0, 3, 1]
    assert own.int().tolist() == [[0, 0, 0, 1, 0], [0] * 5, [1, 0, 0, 0, 0], [0] * 5]


def test_means_of_large_logits_do_not_overflow() -> None:
    values = torch.tensor([[1.0, 3.0, 5.0]])
    logits = torch.tensor([[1000.0, 1000.0 + math.log(3), -1000.0]])
    means, present = softmax_means(values, logits, torch.tensor([[True, True, True]]), torch.tensor([0, 0, 2]))
    torch.testing.assert_close(means, torch.tensor([[2.5, 0.0, 5.0]]))
    assert present.tolist() == [[True, False, True]]


@pytest.mark.parametrize("reach", [4, 5, 7, 40])
def test_mean_distance_within_classes_equals_a_loop(reach: int) -> None:
    # Classes of 1, 2, 3, and 4 vectors in mixed order, and one of 5 with two excluded.
    classes = torch.tensor([4, 3, 9, 3, 9, 9, 3, 0, 0, 3, 5, 5, 5, 5, 5])
    x, counted = vectors(15), torch.tensor([True] * 13 + [False] * 2)
    within = [
        math.dist(x[i].tolist(), x[j].tolist())
        for i in range(15) for j in range(i) if classes[i] == classes[j] and counted[i] and counted[j]
    ]  # fmt: skip
    assert len(within) == 6 + 3 + 1 + 3
    found = mean_distance_within_classes(x, classes, counted, reach)
    torch.testing.assert_close(float(found), sum(within) / len(within))
    assert torch.autograd.gradcheck(
        lambda x: mean_distance_within_classes(x, classes, counted, reach), x.requires_grad_()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_equal_centers_have_no_gradient(dtype: torch.dtype) -> None:
    same = torch.nn.functional.normalize(vectors(1, 128), dim=1).to(dtype).repeat(4, 1).requires_grad_()
    spread = mean_distance_within_classes(same, torch.zeros(4, dtype=torch.int64), torch.ones(4, dtype=torch.bool), 4)
    spread.backward()
    assert float(spread.detach()) == 0
    assert same.grad is not None
    assert not same.grad.any()


def test_only_the_last_term_merges_centers() -> None:
    apart = {}
    for tau in (0.0, 5.0):
        centers = vectors(6).requires_grad_()
        loss = SoftTripleLoss(tau=tau, gamma=1.0)
        optimizer = torch.optim.SGD([centers], lr=0.1)
        labels = torch.arange(2).repeat_interleave(3)
        for _ in range(300):
            optimizer.zero_grad()
            loss(vectors(8, seed=1), torch.arange(8) % 2, ref_emb=centers, ref_labels=labels).backward()
            optimizer.step()
        unit = torch.nn.functional.normalize(centers.detach(), dim=1)
        apart[tau] = float(mean_distance_within_classes(unit, labels, torch.ones(6, dtype=torch.bool), 6))
    assert apart[5.0] < 0.15 < 0.3 < apart[0.0]


def test_one_center_is_the_normalized_softmax_with_a_margin() -> None:
    queries, centers, labels = vectors(6), vectors(4, seed=1), torch.tensor([0, 3, 1, 1, 2, 0])
    cosines = torch.nn.functional.normalize(queries) @ torch.nn.functional.normalize(centers).mT
    wanted = torch.nn.functional.cross_entropy(9 * (cosines - 0.3 * torch.eye(4)[labels]), labels)
    torch.testing.assert_close(
        SoftTripleLoss(scale=9.0, margin=0.3)(queries, labels, ref_emb=centers, ref_labels=torch.arange(4)), wanted
    )


@pytest.mark.parametrize("margin", [0.0, 0.5, 1.4])
def test_arcface_agrees_with_pytorch_metric_learning(margin: float) -> None:
    from pytorch_metric_learning import losses

    theirs = losses.ArcFaceLoss(3, 5, margin=math.degrees(margin), scale=7.0).double()
    compare_with_classifier(ArcFaceLoss(3, 5, margin=margin, scale=7.0).double(), theirs)


def test_normalized_softmax_agrees_with_pytorch_metric_learning() -> None:
    from pytorch_metric_learning import losses

    theirs = losses.NormalizedSoftmaxLoss(3, 5, temperature=0.3).double()
    compare_with_classifier(NormalizedSoftmaxLoss(3, 5, temperature=0.3).double(), theirs)


def compare_with_classifier(ours: ProxyLoss, theirs: torch.nn.Module) -> None:
    """PML has the classes of a classifier in columns."""
    assert ours.proxies is not None
    with torch.no_grad():
        theirs.W.copy_(ours.proxies.mT)
    found = []
    for loss in (ours, theirs):
        x = vectors(6).requires_grad_()
        value = loss(torch.nn.functional.normalize(x, dim=1), LABELS)
        value.backward()
        found.append((value.detach(), x.grad))
    torch.testing.assert_close(*found)
    torch.testing.assert_close(ours.proxies.grad, theirs.W.grad.mT)


@pytest.mark.parametrize("cosine", [1.0, -1.0, 0.2])
def test_the_margin_of_arcface_has_finite_gradients_everywhere(cosine: float) -> None:
    from winnow.losses.classification import add_angle

    value = torch.tensor(cosine, dtype=torch.float64, requires_grad=True)
    moved = add_angle(value, 0.5)
    moved.backward()
    assert value.grad is not None
    assert value.grad.isfinite()
    assert float(moved.detach()) < cosine


def test_the_margin_of_arcface_never_rewards_a_larger_angle() -> None:
    from winnow.losses.classification import add_angle

    cosines = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    assert (add_angle(cosines, 0.5).diff() > 0).all()
