"""Batches of P classes with M images each, or of random images, as a function of seed and step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winnow.errors import ConfigError

Indices = NDArray[np.int64]


class BatchSampler(ABC):
    """Base class of samplers whose batches are functions of the seed and the step.

    Resuming needs only the step number. Use `batch(step)` in a training loop of your own, or pass the sampler as
    `batch_sampler` to a `torch.utils.data.DataLoader`. Iteration yields `len(sampler)` batches as lists of indices.
    Each iteration continues with the next steps, so epochs differ; `set_epoch` selects the epoch to start from.

    Args:
        seed: Seed of all shuffles.
        rank: Index of this process.
        world_size: Number of processes that divide a batch.
        batches_per_epoch: Number of batches that one iteration yields.

    Raises:
        ConfigError: If `batches_per_epoch` is below 1.
    """

    def __init__(self, *, seed: int, rank: int, world_size: int, batches_per_epoch: int) -> None:
        if batches_per_epoch < 1:
            raise ConfigError(f"batches_per_epoch={batches_per_epoch}: expected at least 1. Increase it.")
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self.batches_per_epoch = batches_per_epoch
        self._epoch = 0

    @abstractmethod
    def batch(self, step: int) -> Indices:
        """Return the image indices of a step."""

    def __len__(self) -> int:
        """Return the number of batches that one iteration yields."""
        return self.batches_per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the batches of the next epoch as lists of indices."""
        first = self._epoch * self.batches_per_epoch
        self._epoch += 1
        for step in range(first, first + self.batches_per_epoch):
            yield self.batch(step).tolist()

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration with the given epoch, counted from 0."""
        self._epoch = epoch

    def iterate(self, start: int = 0) -> Iterator[Indices]:
        """Yield the batches of steps `start`, `start` + 1, ... without end."""
        while True:
            yield self.batch(start)
            start += 1


class RandomSampler(BatchSampler):
    """Batches of random images, without regard to their classes.

    All images are shuffled for each epoch and cut into batches, so no image occurs twice in an epoch. Images that do
    not fill the last batch are excluded from that epoch. A batch is a function of the seed and the step only. Most
    images of a small batch have a class of their own: use it with references other than the batch, such as proxies.

    Args:
        count: Number of images N.
        batch_size: Number of images in a batch, over all processes.
        seed: Seed of all shuffles.
        rank: Index of this process, which gets a contiguous slice of every batch.
        world_size: Number of processes that divide a batch.

    Raises:
        ConfigError: If a batch has no image, more images than there are, or fewer than there are processes.
    """

    def __init__(self, count: int, batch_size: int, *, seed: int = 0, rank: int = 0, world_size: int = 1) -> None:
        if batch_size < world_size:
            raise ConfigError(f"batch_size={batch_size}: expected at least {world_size}. Increase it.")
        if batch_size > count:
            raise ConfigError(f"batch_size={batch_size}: only {count} training images. Lower it.")
        super().__init__(seed=seed, rank=rank, world_size=world_size, batches_per_epoch=count // batch_size)
        self.count, self.batch_size = count, batch_size
        self._shuffled: tuple[int, Indices] = (-1, np.arange(0, dtype=np.int64))  # a cache for speed only

    def batch(self, step: int) -> Indices:
        """Return the image indices of a step, for this process."""
        epoch, offset = divmod(step, self.batches_per_epoch)
        if self._shuffled[0] != epoch:
            self._shuffled = (epoch, np.random.default_rng([self.seed, 2, epoch]).permutation(self.count))
        whole = self._shuffled[1][offset * self.batch_size : (offset + 1) * self.batch_size]
        own = (self.batch_size * (self.rank + one) // self.world_size for one in (0, 1))
        return whole[slice(*own)]


class MPerClassSampler(BatchSampler):
    """Batches of `classes_per_batch` classes with `samples_per_class` images each.

    A batch is a function of the seed and the step only. Resuming therefore needs only the step number. Classes are
    shuffled each round and cut into batches, so no class occurs twice in a batch. Classes that do not fill the last
    batch of a round are excluded from that round. The images of a class are shuffled and used M at a time. They are
    shuffled again when fewer than M are left. A class with fewer than M images repeats them. Use it as any
    [`BatchSampler`][winnow.data.BatchSampler].

    Args:
        labels: (N,) class of each image.
        classes_per_batch: Number of classes P in a batch, over all processes.
        samples_per_class: Number of images M of each class in a batch.
        seed: Seed of all shuffles.
        rank: Index of this process, which gets every `world_size`-th class of a batch.
        world_size: Number of processes that divide a batch; P must be a multiple of it.
        batches_per_epoch: Number of batches that one iteration yields; None for as many images as there are labels,
            at least one batch.

    Raises:
        ConfigError: If the batch needs more classes than there are, or P is no multiple of `world_size`.
    """

    def __init__(
        self,
        labels: ArrayLike,
        classes_per_batch: int,
        samples_per_class: int,
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        batches_per_epoch: int | None = None,
    ) -> None:
        array = np.asarray(labels, dtype=np.int64)
        self.classes: Indices = np.unique(array)
        order = np.argsort(array, kind="stable")
        bounds = np.searchsorted(array[order], self.classes)
        self._members = np.split(order, bounds[1:])
        if classes_per_batch < 1 or samples_per_class < 1:
            raise ConfigError(
                f"classes_per_batch={classes_per_batch}, samples_per_class={samples_per_class}: expected at least 1. "
                "Increase them."
            )
        if classes_per_batch > len(self.classes):
            raise ConfigError(
                f"classes_per_batch={classes_per_batch}: only {len(self.classes)} training classes. Lower it."
            )
        if classes_per_batch % world_size:
            raise ConfigError(
                f"classes_per_batch={classes_per_batch}: cannot be divided evenly among {world_size} processes. "
                f"Use a multiple of {world_size}."
            )
        if batches_per_epoch is None:
            batches_per_epoch = max(1, len(array) // (classes_per_batch * samples_per_class))
        super().__init__(seed=seed, rank=rank, world_size=world_size, batches_per_epoch=batches_per_epoch)
        self.classes_per_batch = classes_per_batch
        self.samples_per_class = samples_per_class
        # Caches for speed only. They are recomputed when another round or pass is requested.
        self._round: tuple[int, Indices] = (-1, self.classes)
        self._passes: dict[int, tuple[int, Indices]] = {}

    @property
    def batches_per_round(self) -> int:
        """Number of batches in which each class occurs at most once."""
        return len(self.classes) // self.classes_per_batch

    def batch(self, step: int) -> Indices:
        """Return the (P / world_size * M,) image indices of a step, class after class."""
        turn, offset = divmod(step, self.batches_per_round)
        chosen = self._order(turn)[offset * self.classes_per_batch : (offset + 1) * self.classes_per_batch]
        return np.concatenate([self._draw(int(c), turn) for c in chosen[self.rank :: self.world_size]])

    def _order(self, turn: int) -> Indices:
        """Return the order of classes in a round, as positions in `classes`."""
        if self._round[0] != turn:
            rng = np.random.default_rng([self.seed, 0, turn])
            self._round = (turn, rng.permutation(len(self.classes)))
        return self._round[1]

    def _draw(self, position: int, turn: int) -> Indices:
        """Return the M images of a class in a round."""
        members, size = self._members[position], self.samples_per_class
        number, offset = divmod(turn, max(1, len(members) // size))
        cached = self._passes.get(position)
        if cached is None or cached[0] != number:
            rng = np.random.default_rng([self.seed, 1, int(self.classes[position]), number])
            shuffled = rng.permutation(members)
            cached = (number, np.resize(shuffled, max(size, len(members))))
            self._passes[position] = cached
        return cached[1][offset * size : (offset + 1) * size]
