"""References against the loss with references written out, and their shared contract."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor

from winnow.errors import ConfigError
from winnow.functional import greedy_k_center, l2_normalize
from winnow.functional.pairs import compare_within_batch
from winnow.losses import LOSSES, ContrastiveLoss, MultiSimilarityLoss, ProxyAnchorLoss, ReferenceLoss
from winnow.references import (
    REFERENCES,
    BatchReferences,
    ChanceConstrainedProxies,
    CrossBatchMemory,
    MemoryNotInUseWarning,
    ProxyReferences,
)
from winnow.training import load_config

CONTEXT = {"num_classes": 3, "embedding_size": 4, "batch_size": 6}
LABELS = torch.tensor([0, 0, 1, 1, 2, 2])
all_references = pytest.mark.parametrize("name", list(REFERENCES))


def batch(seed: int, count: int = 6) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


def test_batch_references_equal_the_loss_alone() -> None:
    loss = MultiSimilarityLoss()
    assert torch.equal(BatchReferences()(loss, batch(0), LABELS), loss(batch(0), LABELS))


def test_batch_references_ignore_proxies_of_the_loss() -> None:
    loss = ProxyAnchorLoss(3, 4)
    assert torch.equal(BatchReferences()(loss, batch(0), LABELS), compare_within_batch(loss, batch(0), LABELS))


def test_proxy_references_equal_the_loss_with_references_and_get_gradients() -> None:
    loss, references = ContrastiveLoss(neg_margin=1.5), ProxyReferences(3, 4, proxies_per_class=2)
    value = references(loss, batch(0), LABELS)
    by_hand = loss(batch(0), LABELS, ref_emb=references.proxies, ref_labels=torch.tensor([0, 0, 1, 1, 2, 2]))
    assert torch.equal(value, by_hand)
    value.backward()
    assert references.proxies.grad is not None
    assert references.proxies.grad.any(dim=1).all()


def test_proxy_references_add_weighted_losses_within_the_batch_and_the_proxies() -> None:
    loss, references = (
        MultiSimilarityLoss(),
        ProxyReferences(3, 4, proxies_per_class=2, batch_weight=0.3, proxy_weight=0.7),
    )
    proxies = references.proxies.detach()
    against = loss(batch(0), LABELS, ref_emb=proxies, ref_labels=LABELS)
    expected = against + 0.3 * loss(batch(0), LABELS) + 0.7 * loss(proxies, LABELS)
    torch.testing.assert_close(references(loss, batch(0), LABELS), expected)


def test_ccp_normalizes_the_last_proxies_before_it_selects_away_from_them() -> None:
    """With proxies as they are, the short one at 0 degrees would repel all candidates alike, and 180 degrees win."""
    ccp = ChanceConstrainedProxies(1, 2, proxies_per_class=2, pool_size=5, normalize_proxies=True)
    with torch.no_grad():
        ccp.proxies.copy_(torch.tensor([[0.01, 0.0], [0.0, 10.0]]))
    angles = torch.tensor([0.0, 45.0, 90.0, 180.0, 225.0]).deg2rad()
    pool = torch.stack([angles.cos(), angles.sin()], dim=1)
    ccp.seed(7.0 * pool[None], torch.tensor([0]), first=False, normalize=l2_normalize)
    torch.testing.assert_close(ccp.proxies[0].detach(), pool[4])


@pytest.mark.parametrize("count", [1, 3])
def test_ccp_starts_from_the_longest_embedding_also_of_normalized_ones(count: int) -> None:
    """Their lengths differ by rounding, which differs between machines."""
    ccp = ChanceConstrainedProxies(2, 8, proxies_per_class=count, pool_size=40)
    pool = torch.randn(2, 40, 8)
    pool[0, 17] *= 10
    pool[1, 5] *= 10
    ccp.seed(pool, torch.tensor([0, 1]), first=True, normalize=l2_normalize)
    chosen = ccp.proxies.detach().view(2, count, 8)
    torch.testing.assert_close(chosen[:, 0], l2_normalize(torch.stack([pool[0, 17], pool[1, 5]])))
    if count > 1:
        away = greedy_k_center(l2_normalize(pool), count - 1, chosen[:, :1])
        torch.testing.assert_close(chosen[:, 1:], l2_normalize(pool).take_along_dim(away[..., None], dim=1))


@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 2, 3], [-1, 0, 1, 1, 2, 2]])
def test_proxies_reject_labels_of_unknown_classes(labels: list[int]) -> None:
    for references in (ProxyReferences(3, 4), ChanceConstrainedProxies(3, 4)):
        with pytest.raises(ValueError, match="labels: expected values from 0 to 2"):
            references(MultiSimilarityLoss(), batch(0), torch.tensor(labels))


def slow_memory(steps: list[tuple[Tensor, Tensor]], capacity: int, start_after: int, weight: float) -> list[Tensor]:
    """Return the loss of each step, with the memory as a list of (embedding, label, origin)."""
    loss, stored, values = MultiSimilarityLoss(), [], []
    for number, (queries, labels) in enumerate(steps):
        stored += [(queries[i], labels[i], (number, i)) for i in range(len(queries))]
        stored = stored[-capacity:]
        value = loss(queries, labels)
        if number >= start_after:
            exclude = torch.tensor([[(number, i) == origin for _, _, origin in stored] for i in range(len(queries))])
            rows = torch.stack([row for row, _, _ in stored])
            row_labels = torch.stack([label for _, label, _ in stored])
            value = value + weight * loss(queries, labels, ref_emb=rows, ref_labels=row_labels, exclude=exclude)
        values.append(value)
    return values


@pytest.mark.parametrize(("num_batches", "start_step"), [(1, 0), (3, 0), (2, 3)])
def test_memory_equals_a_list_of_the_last_batches(num_batches: int, start_step: int) -> None:
    # Batches of different sizes, as with classes that lost images.
    steps = [(batch(n, 6 if n % 3 else 5), LABELS[: 6 if n % 3 else 5]) for n in range(9)]
    memory = CrossBatchMemory(4, 6, num_batches=num_batches, start_step=start_step, weight=0.7)
    expected = slow_memory(steps, 6 * num_batches, start_step + num_batches, 0.7)
    for (queries, labels), value in zip(steps, expected, strict=True):
        torch.testing.assert_close(memory(MultiSimilarityLoss(), queries, labels), value)


def test_batch_larger_than_the_memory_leaves_its_last_rows() -> None:
    memory = CrossBatchMemory(4, 2, num_batches=2, start_step=0)
    memory(ContrastiveLoss(), batch(0), LABELS)
    assert torch.equal(memory.memory.sort(0).values, batch(0)[-4:].sort(0).values)
    memory(ContrastiveLoss(), batch(1, 1), LABELS[:1])
    remaining = torch.cat([batch(0)[-3:], batch(1, 1)])  # the oldest row is overwritten
    assert torch.equal(memory.memory.sort(0).values, remaining.sort(0).values)


def test_memory_gets_no_gradient_and_does_not_change_in_evaluation() -> None:
    memory = CrossBatchMemory(4, 6, num_batches=2, start_step=0)
    queries = batch(0).requires_grad_()
    memory(ContrastiveLoss(), queries, LABELS).backward()
    assert not memory.memory.requires_grad
    before = copy.deepcopy(memory.state_dict())
    memory.eval()(ContrastiveLoss(), batch(1), LABELS)
    assert all(torch.equal(before[key], value) for key, value in memory.state_dict().items())


def test_memory_warns_once_when_it_takes_effect_much_later() -> None:
    memory = CrossBatchMemory(4, 6)
    with pytest.warns(MemoryNotInUseWarning, match="after 1025 training batches"):
        memory(ContrastiveLoss(), batch(0), LABELS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory(ContrastiveLoss(), batch(1), LABELS)


def test_memory_does_not_warn_in_evaluation_or_close_to_its_start() -> None:
    late = CrossBatchMemory(4, 6, num_batches=2)
    late.steps += 950  # as loaded from a checkpoint
    reported = CrossBatchMemory(4, 6)
    assert reported.warnings(10_000, [9]) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CrossBatchMemory(4, 6).eval()(ContrastiveLoss(), batch(0), LABELS)
        CrossBatchMemory(4, 6, num_batches=2, start_step=20)(ContrastiveLoss(), batch(0), LABELS)
        late(ContrastiveLoss(), batch(0), LABELS)
        reported(ContrastiveLoss(), batch(0), LABELS)


def test_memory_takes_effect_after_the_reported_number_of_batches() -> None:
    loss, memory = MultiSimilarityLoss(), CrossBatchMemory(4, 6, num_batches=2, start_step=3)
    for number in range(memory.start_after + 1):
        value = memory(loss, batch(number), LABELS)
        assert torch.equal(value, loss(batch(number), LABELS)) == (number < memory.start_after)


def short_memory(name: str) -> dict[str, int]:
    """Return settings with which a memory takes effect within two steps."""
    return {"num_batches": 2, "start_step": 0} if name == "memory" else {}


@all_references
def test_loaded_references_continue_as_the_saved_ones(name: str) -> None:
    settings = {"name": name, **short_memory(name)}
    source = REFERENCES.build(settings, **CONTEXT)
    for step in range(4):
        source(MultiSimilarityLoss(), batch(step), LABELS)
    loaded = REFERENCES.build(settings, **CONTEXT)
    loaded.load_state_dict(source.state_dict())
    ours, expected = (one(MultiSimilarityLoss(), batch(9), LABELS) for one in (loaded, source))
    assert torch.equal(ours, expected)


@all_references
@pytest.mark.parametrize("loss", list(LOSSES))
def test_all_losses_work_with_all_references(name: str, loss: str) -> None:
    references = REFERENCES.build({"name": name, **short_memory(name)}, **CONTEXT)
    criterion = ReferenceLoss(LOSSES.build({"name": loss}), references)
    for step in range(4):
        queries = batch(step).requires_grad_()
        criterion(queries, LABELS).backward()
        assert queries.grad is not None
        assert queries.grad.isfinite().all()


@all_references
def test_empty_batch_has_zero_loss(name: str) -> None:
    references = REFERENCES.build({"name": name}, **CONTEXT)
    queries = batch(0, 0).requires_grad_()
    value = references(MultiSimilarityLoss(), queries, LABELS[:0])
    value.backward()
    assert float(value.detach()) == 0


@all_references
def test_autocast_changes_no_parameter_and_no_value(name: str) -> None:
    references = REFERENCES.build({"name": name, **short_memory(name)}, **CONTEXT)
    plain = copy.deepcopy(references)(MultiSimilarityLoss(), batch(0), LABELS)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(references(MultiSimilarityLoss(), batch(0), LABELS), plain)
    assert all(p.dtype == torch.float32 for p in references.parameters())


def test_state_keys_are_stable() -> None:
    """Checkpoints of earlier versions have these keys."""
    keys = {name: list(REFERENCES.build(name, **CONTEXT).state_dict()) for name in REFERENCES}
    assert keys == {
        "batch": [], "proxies": ["proxies"], "memory": ["memory", "labels", "steps", "rows"], "ccp": ["proxies"],
    }  # fmt: skip


def test_old_names_of_settings_load() -> None:
    memory = REFERENCES.build({"name": "cross_batch_memory", "batches": 3, "start": 7}, **CONTEXT)
    assert isinstance(memory, CrossBatchMemory)
    assert (memory.num_batches, memory.start_step) == (3, 7)
    old = {"per_class": 2, "pool": 5, "pull": 0.1, "problems": 4, "start": "last", "normalised": True}
    ccp = REFERENCES.build({"name": "ccp", **old}, **CONTEXT)
    assert isinstance(ccp, ChanceConstrainedProxies)
    new = (ccp.proxies_per_class, ccp.pool_size, ccp.proximal_weight, ccp.max_problems, ccp.start_from)
    assert (*new, ccp.normalize_proxies) == (2, 5, 0.1, 4, "last", True)
    assert REFERENCES.resolve({"name": "proxies", "per_class": 2}).arguments()["proxies_per_class"] == 2
    assert REFERENCES.resolve("in_batch").name == "batch"


def test_proxy_losses_use_proxies_by_default() -> None:
    for loss, overrides, name in (
        ("ms", [], "batch"),
        ("proxy_anchor", [], "proxies"),
        ("proxy_nca", ["references=batch"], "batch"),
        ("proxy_nca", ["references.proxies_per_class=2"], "proxies"),
    ):
        assert load_config(None, [f"loss={loss}", *overrides]).references.name == name


@pytest.mark.parametrize(
    ("setting", "section"),
    [
        ("proxies_per_class", {"name": "proxies", "proxies_per_class": 0}),
        ("num_batches", {"name": "memory", "num_batches": 0}),
        ("start_step", {"name": "memory", "start_step": -1}),
        ("pool_size", {"name": "ccp", "proxies_per_class": 4, "pool_size": 3}),
        ("proximal_weight", {"name": "ccp", "proximal_weight": -1.0}),
        ("batch_weight", {"name": "ccp", "batch_weight": -1.0}),
        ("patience", {"name": "ccp", "patience": 0}),
        ("max_problems", {"name": "ccp", "max_problems": 0}),
        ("max_steps", {"name": "ccp", "max_steps": 0}),
    ],
    ids=str,
)
def test_invalid_settings_raise(setting: str, section: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"{setting}: expected at least"):
        REFERENCES.build(section, **CONTEXT)


def test_settings_without_effect_give_warnings() -> None:
    memory = CrossBatchMemory(4, 8, num_batches=5, start_step=10)
    assert memory.warnings(16, [9]) == []
    assert "after 15 steps" in memory.warnings(15, [9])[0]
    ccp = ChanceConstrainedProxies(3, 4, proxies_per_class=2, pool_size=3)
    assert ccp.warnings(10, [3, 4, 3]) == []
    assert ccp.warnings(10, [3, 2, 1])[0].startswith("references.proxies_per_class: 2 classes have at most 2 images")
    assert BatchReferences().warnings(1, [1]) == []


def test_seeding_covers_the_pool_of_each_class() -> None:
    """The first proxy is the longest embedding; each further one is the farthest from those selected."""
    ccp = ChanceConstrainedProxies(3, 4, proxies_per_class=2, pool_size=5)
    pool = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(1))
    before = ccp.proxies.detach().clone()
    ccp.seed(pool, torch.tensor([0, 2]), first=True, normalize=lambda x: x)
    for row, class_ in enumerate((0, 2)):
        longest = pool[row][pool[row].norm(dim=1).argmax()]
        farthest = pool[row][(pool[row] - longest).norm(dim=1).argmax()]
        assert torch.equal(ccp.class_proxies(torch.tensor([class_]))[0], torch.stack([longest, farthest]))
    assert torch.equal(ccp.class_proxies(torch.tensor([1]))[0], before[2:4])


def test_reference_loss_trains_a_model_with_its_proxies() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    criterion = ReferenceLoss(ProxyAnchorLoss(), ProxyReferences(3, 4))
    assert any(parameter is criterion.references.proxies for parameter in criterion.parameters())
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.05)
    values = []
    for _ in range(20):
        optimizer.zero_grad()
        value = criterion(model(batch(0)), LABELS)
        value.backward()
        optimizer.step()
        values.append(float(value.detach()))
    assert values[-1] < 0.8 * values[0]
    assert "proxies_per_class=1" in repr(criterion)


def test_reference_loss_restores_a_memory() -> None:
    criterion = ReferenceLoss(ContrastiveLoss(), CrossBatchMemory(4, 6, num_batches=2, start_step=0))
    for step in range(4):
        criterion(batch(step), LABELS)
    loaded = ReferenceLoss(ContrastiveLoss(), CrossBatchMemory(4, 6, num_batches=2, start_step=0))
    loaded.load_state_dict(criterion.state_dict())
    assert torch.equal(loaded(batch(9), LABELS), criterion(batch(9), LABELS))


def test_reference_loss_rejects_a_loss_with_proxies_of_its_own() -> None:
    with pytest.raises(ValueError, match="loss: ProxyAnchorLoss owns proxies"):
        ReferenceLoss(ProxyAnchorLoss(3, 4), BatchReferences())
