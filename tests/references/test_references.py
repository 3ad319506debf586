"""Sources of references: each against the loss with references written out, and what all of them share."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from winnow.errors import ConfigError
from winnow.losses import C2, LOSSES, MultiSimilarity
from winnow.references import CCP, REFERENCES, Batch, Memory, Proxies
from winnow.training import load_config

CONTEXT = {"num_classes": 3, "width": 4, "batch": 6}
LABELS = torch.tensor([0, 0, 1, 1, 2, 2])
every_source = pytest.mark.parametrize("name", list(REFERENCES))


def batch(seed: int, count: int = 6) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


def test_the_batch_is_its_own_reference() -> None:
    loss = MultiSimilarity()
    assert torch.equal(Batch()(loss, batch(0), LABELS), loss(batch(0), LABELS))


def test_proxies_stand_for_their_classes_and_learn() -> None:
    loss, proxies = C2(negative_margin=1.5), Proxies(3, 4, per_class=2)
    value = proxies(loss, batch(0), LABELS)
    assert torch.equal(value, loss(batch(0), LABELS, proxies.proxies, torch.tensor([0, 0, 1, 1, 2, 2])))
    value.backward()
    assert proxies.proxies.grad is not None
    assert proxies.proxies.grad.any(dim=1).all()


def slow_memory(steps: list[tuple[Tensor, Tensor]], capacity: int, begin: int, weight: float) -> list[Tensor]:
    """The loss of each step, with the memory as a list of (embedding, label, where it came from)."""
    loss, kept, values = MultiSimilarity(), [], []
    for number, (queries, labels) in enumerate(steps):
        kept += [(queries[i], labels[i], (number, i)) for i in range(len(queries))]
        kept = kept[-capacity:]
        value = loss(queries, labels)
        if number >= begin:
            exclude = torch.tensor([[(number, i) == origin for _, _, origin in kept] for i in range(len(queries))])
            rows, row_labels = torch.stack([row for row, _, _ in kept]), torch.stack([label for _, label, _ in kept])
            value = value + weight * loss(queries, labels, rows, row_labels, exclude)
        values.append(value)
    return values


@pytest.mark.parametrize(("batches", "start"), [(1, 0), (3, 0), (2, 3)])
def test_memory_equals_a_list_of_the_last_batches(batches: int, start: int) -> None:
    # Batches of different sizes, as when a class lost images.
    steps = [(batch(n, 6 if n % 3 else 5), LABELS[: 6 if n % 3 else 5]) for n in range(9)]
    memory = Memory(4, 6, batches=batches, start=start, weight=0.7)
    expected = slow_memory(steps, 6 * batches, start + batches, 0.7)
    for (queries, labels), value in zip(steps, expected, strict=True):
        torch.testing.assert_close(memory(MultiSimilarity(), queries, labels), value)


def test_a_batch_larger_than_the_memory_leaves_its_last_rows() -> None:
    memory = Memory(4, 2, batches=2, start=0)
    memory(C2(), batch(0), LABELS)
    assert torch.equal(memory.memory.sort(0).values, batch(0)[-4:].sort(0).values)


def test_memory_gets_no_gradient_and_judging_leaves_it_alone() -> None:
    memory = Memory(4, 6, batches=2, start=0)
    queries = batch(0).requires_grad_()
    memory(C2(), queries, LABELS).backward()
    assert not memory.memory.requires_grad
    before = copy.deepcopy(memory.state_dict())
    memory.eval()(C2(), batch(1), LABELS)
    assert all(torch.equal(before[key], value) for key, value in memory.state_dict().items())


@every_source
def test_a_loaded_source_goes_on_as_the_saved_one(name: str) -> None:
    settings = {"batches": 2, "start": 0} if name == "memory" else {}
    source = REFERENCES.build({"name": name, **settings}, **CONTEXT)
    for step in range(4):
        source(MultiSimilarity(), batch(step), LABELS)
    loaded = REFERENCES.build({"name": name, **settings}, **CONTEXT)
    loaded.load_state_dict(source.state_dict())
    found, wanted = (one(MultiSimilarity(), batch(9), LABELS) for one in (loaded, source))
    assert torch.equal(found, wanted)


@every_source
@pytest.mark.parametrize("loss", list(LOSSES))
def test_every_loss_takes_every_source(name: str, loss: str) -> None:
    settings = {"batches": 2, "start": 0} if name == "memory" else {}
    source = REFERENCES.build({"name": name, **settings}, **CONTEXT)
    for step in range(4):
        queries = batch(step).requires_grad_()
        source(LOSSES.build({"name": loss}), queries, LABELS).backward()
        assert queries.grad is not None
        assert queries.grad.isfinite().all()


@every_source
def test_an_empty_batch_propagates_nothing(name: str) -> None:
    source = REFERENCES.build({"name": name}, **CONTEXT)
    queries = batch(0, 0).requires_grad_()
    value = source(MultiSimilarity(), queries, LABELS[:0])
    value.backward()
    assert float(value.detach()) == 0


@every_source
def test_autocast_changes_no_parameter_and_no_value(name: str) -> None:
    source = REFERENCES.build({"name": name}, **CONTEXT)
    plain = copy.deepcopy(source)(MultiSimilarity(), batch(0), LABELS)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(source(MultiSimilarity(), batch(0), LABELS), plain)
    assert all(p.dtype == torch.float32 for p in source.parameters())


def test_proxy_losses_take_proxies_where_nothing_is_named() -> None:
    for loss, words, name in (
        ("ms", [], "batch"),
        ("proxy_anchor", [], "proxies"),
        ("proxy_nca", ["references=batch"], "batch"),
        ("proxy_nca", ["references.per_class=2"], "proxies"),
    ):
        assert load_config(None, [f"loss={loss}", *words]).references["name"] == name


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one proxy"):
        REFERENCES.build({"name": "proxies", "per_class": 0}, **CONTEXT)
    with pytest.raises(ConfigError, match="at least 1 batch"):
        REFERENCES.build({"name": "memory", "batches": 0}, **CONTEXT)


def test_settings_under_which_a_source_changes_nothing_are_told():
    memory = Memory(4, 8, batches=5, start=10)
    assert memory.notes(16, [9]) == []
    assert "begins at step 15" in memory.notes(15, [9])[0]
    ccp = CCP(3, 4, per_class=2, pool=3)
    assert ccp.notes(10, [3, 4, 3]) == []
    assert ccp.notes(10, [3, 2, 1])[0].startswith("2 classes have at most 2 images")
    assert Batch().notes(1, [1]) == []
