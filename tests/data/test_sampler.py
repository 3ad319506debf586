from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from winnow.data import MPerClassSampler, RandomSampler
from winnow.errors import ConfigError

SIZES = st.lists(st.integers(1, 9), min_size=2, max_size=12)


def labels_of(sizes: list[int], seed: int = 0) -> np.ndarray:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return np.random.default_rng(seed).permutation(labels)


@given(sizes=SIZES, data=st.data())
@settings(deadline=None)
def test_layout_of_every_batch(sizes: list[int], data: st.DataObject) -> None:
    classes = data.draw(st.integers(1, len(sizes)))
    each = data.draw(st.integers(1, 6))
    labels = labels_of(sizes)
    sampler = MPerClassSampler(labels, classes, each, seed=data.draw(st.integers(0, 99)))
    for batch in islice(sampler.iterate(), 12):
        assert batch.shape == (classes * each,)
        assert batch.dtype == np.int64
        blocks = batch.reshape(classes, each)
        found = labels[blocks]
        assert (found == found[:, :1]).all()
        assert len(set(found[:, 0].tolist())) == classes
        for block, label in zip(blocks, found[:, 0], strict=True):
            assert len(set(block.tolist())) == min(each, sizes[label])


def test_a_batch_depends_only_on_seed_and_step() -> None:
    labels = labels_of([3, 5, 7, 4, 6, 2])
    straight = [b.tolist() for b in islice(MPerClassSampler(labels, 2, 3, seed=5).iterate(), 40)]
    jumping = MPerClassSampler(labels, 2, 3, seed=5)
    for step in np.random.default_rng(0).permutation(40).tolist():
        assert jumping.batch(step).tolist() == straight[step]
    resumed = MPerClassSampler(labels, 2, 3, seed=5).iterate(17)
    assert [b.tolist() for b in islice(resumed, 5)] == straight[17:22]
    assert [b.tolist() for b in islice(MPerClassSampler(labels, 2, 3, seed=6).iterate(), 40)] != straight


def test_a_round_uses_every_class_once_except_the_remainder() -> None:
    labels = labels_of([4] * 7)
    sampler = MPerClassSampler(labels, 3, 2)
    assert sampler.batches_per_round == 2
    rounds = [np.concatenate([sampler.batch(2 * r), sampler.batch(2 * r + 1)]) for r in range(30)]
    left_out = set()
    for indices in rounds:
        counts = Counter(labels[indices].tolist())
        assert len(counts) == 6
        assert set(counts.values()) == {2}
        left_out |= set(range(7)) - set(counts)
    assert left_out == set(range(7))


def test_a_pass_shows_each_image_once() -> None:
    labels = labels_of([6, 6, 6])
    sampler = MPerClassSampler(labels, 3, 2)
    for turn in range(5):
        seen = np.concatenate([sampler.batch(3 * turn + i) for i in range(3)])
        assert sorted(seen.tolist()) == list(range(18))


def test_the_tail_of_a_pass_varies() -> None:
    sampler = MPerClassSampler(np.array([0] * 5 + [1] * 5), 2, 2)
    seen = Counter(np.concatenate([sampler.batch(step) for step in range(200)]).tolist())
    assert set(seen) == set(range(10))
    assert min(seen.values()) > 0.7 * max(seen.values())


def test_labels_need_not_be_contiguous() -> None:
    labels = np.array([9, 4, 9, 4, 7, 7])
    batch = MPerClassSampler(labels, 3, 2).batch(0)
    assert sorted(batch.tolist()) == list(range(6))
    assert sorted(set(labels[batch].tolist())) == [4, 7, 9]


@pytest.mark.parametrize("world_size", [2, 3, 6])
def test_the_rows_of_all_ranks_make_the_batch(world_size: int) -> None:
    labels = labels_of([3, 5, 7, 4, 6, 2, 8])
    whole = MPerClassSampler(labels, 6, 3, seed=1)
    ranks = [MPerClassSampler(labels, 6, 3, seed=1, rank=r, world_size=world_size) for r in range(world_size)]
    for step in (0, 1, 5, 11):
        blocks = whole.batch(step).reshape(6, 3)
        parts = [rank.batch(step).reshape(-1, 3) for rank in ranks]
        for rank, part in enumerate(parts):
            assert part.tolist() == blocks[rank::world_size].tolist()


@pytest.mark.parametrize(
    ("arguments", "settings_", "expected"),
    [
        ((4, 2), {}, "classes_per_batch=4: only 3 training classes"),
        ((3, 2), {"world_size": 2}, "cannot be divided evenly among 2 processes"),
        ((0, 2), {}, "classes_per_batch=0"),
        ((2, 0), {}, "samples_per_class=0"),
        ((2, 2), {"batches_per_epoch": 0}, "batches_per_epoch=0"),
    ],
)
def test_impossible_batches(arguments: tuple[int, int], settings_: dict[str, int], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        MPerClassSampler([0, 1, 2], *arguments, **settings_)


def test_the_sampler_is_a_batch_sampler_of_a_data_loader() -> None:
    labels = labels_of([3, 5, 7, 4, 6, 2])
    sampler = MPerClassSampler(labels, 2, 3, seed=5)
    assert len(sampler) == 27 // 6
    dataset = TensorDataset(torch.arange(27), torch.from_numpy(labels))
    loader = DataLoader(dataset, batch_sampler=sampler)
    assert len(loader) == 4
    epochs = [[index.tolist() for index, _ in loader] for _ in range(3)]
    steps = MPerClassSampler(labels, 2, 3, seed=5)
    assert [batch for epoch in epochs for batch in epoch] == [steps.batch(step).tolist() for step in range(12)]
    sampler.set_epoch(1)  # Resume.
    assert [index.tolist() for index, _ in loader] == epochs[1]
    assert [index.tolist() for index, _ in loader] == epochs[2]
    for _, batch_labels in loader:
        assert torch.unique(batch_labels, return_counts=True)[1].tolist() == [3, 3]


def test_the_length_of_an_epoch_can_be_set() -> None:
    sampler = MPerClassSampler([0, 0, 1, 1], 2, 1, batches_per_epoch=5)
    assert len(sampler) == len(list(sampler)) == 5
    assert all(isinstance(index, int) for batch in sampler for index in batch)
    assert len(MPerClassSampler([0, 1], 2, 4)) == 1  # At least one batch.


def test_the_images_of_a_class_do_not_depend_on_the_other_classes() -> None:
    alone, among = MPerClassSampler([5] * 10, 1, 4), MPerClassSampler([5] * 10 + [4] * 10, 2, 4)
    for step in range(6):
        batch = among.batch(step)
        assert alone.batch(step).tolist() == batch[batch < 10].tolist()


@given(count=st.integers(1, 40), data=st.data())
@settings(deadline=None)
def test_an_epoch_of_random_batches_shows_no_image_twice(count: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, count))
    sampler = RandomSampler(count, size, seed=data.draw(st.integers(0, 99)))
    assert len(sampler) == count // size
    for epoch in range(3):
        batches = [sampler.batch(epoch * len(sampler) + offset) for offset in range(len(sampler))]
        assert all(batch.shape == (size,) and batch.dtype == np.int64 for batch in batches)
        seen = np.concatenate(batches).tolist()
        assert len(set(seen)) == len(seen)
        assert set(seen) <= set(range(count))
        assert count - len(seen) < size


def test_a_random_batch_depends_only_on_seed_and_step() -> None:
    straight = [b.tolist() for b in islice(RandomSampler(23, 5, seed=5).iterate(), 30)]
    jumping = RandomSampler(23, 5, seed=5)
    for step in np.random.default_rng(0).permutation(30).tolist():
        assert jumping.batch(step).tolist() == straight[step]
    assert [b.tolist() for b in islice(RandomSampler(23, 5, seed=6).iterate(), 30)] != straight
    assert [batch for _ in range(2) for batch in jumping] == straight[:8]  # as a batch sampler of a data loader


def test_random_batches_show_all_images_equally_often() -> None:
    sampler = RandomSampler(10, 3)
    seen = Counter(np.concatenate([sampler.batch(step) for step in range(3 * 400)]).tolist())
    assert set(seen) == set(range(10))
    assert min(seen.values()) > 0.9 * max(seen.values())


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_the_slices_of_all_ranks_make_a_random_batch(world_size: int) -> None:
    whole = RandomSampler(30, 7, seed=1)
    ranks = [RandomSampler(30, 7, seed=1, rank=rank, world_size=world_size) for rank in range(world_size)]
    for step in (0, 3, 11):
        parts = [rank.batch(step) for rank in ranks]
        assert np.concatenate(parts).tolist() == whole.batch(step).tolist()
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_impossible_random_batches() -> None:
    with pytest.raises(ConfigError, match="batch_size=5: only 4 training images"):
        RandomSampler(4, 5)
    with pytest.raises(ConfigError, match="batch_size=0: expected at least 1"):
        RandomSampler(4, 0)
    with pytest.raises(ConfigError, match="batch_size=2: expected at least 3"):
        RandomSampler(4, 2, world_size=3)
