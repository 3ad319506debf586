"""Which images make up a training batch: P classes, M images of each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winnow.errors import ConfigError

Indices = NDArray[np.int64]


class MPerClassSampler:
    """Batches of `classes_per_batch` classes with `samples_per_class` images each.

    A batch is a pure function of the seed and the step, so that resuming needs nothing but the step number. Classes
    are shuffled anew each round and cut into batches, so that no class comes twice in a batch; what does not fill the
    round's last batch waits for a later round. A class goes through its images in shuffled order, M at a time, and
    reshuffles when fewer than M are left; a class with fewer than M images repeats them.

    Args:
        labels: (N,) class of each image.
        classes_per_batch: P, over all ranks.
        samples_per_class: M.
        seed: Of all shuffles.
        rank: Which share of each batch this process takes.
        world_size: Among how many processes a batch is shared; P must be a multiple of it.
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
    ) -> None:
        array = np.asarray(labels, dtype=np.int64)
        self.classes: Indices = np.unique(array)
        order = np.argsort(array, kind="stable")
        bounds = np.searchsorted(array[order], self.classes)
        self._members = np.split(order, bounds[1:])
        if classes_per_batch < 1 or samples_per_class < 1:
            raise ConfigError(
                f"a batch needs at least 1 class and 1 image per class, not {classes_per_batch} and {samples_per_class}"
            )
        if classes_per_batch > len(self.classes):
            raise ConfigError(
                f"a batch of {classes_per_batch} classes cannot be made: there are only {len(self.classes)} "
                "training classes; lower the classes per batch"
            )
        if classes_per_batch % world_size:
            raise ConfigError(
                f"{classes_per_batch} classes per batch cannot be shared evenly by {world_size} processes; "
                f"make it a multiple of {world_size}"
            )
        self.classes_per_batch = classes_per_batch
        self.samples_per_class = samples_per_class
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        # Only for speed: what is kept here is recomputed whenever another round or pass is asked for.
        self._round: tuple[int, Indices] = (-1, self.classes)
        self._passes: dict[int, tuple[int, Indices]] = {}

    @property
    def batches_per_round(self) -> int:
        """How many batches it takes until every class has had its turn (but for those that fill no batch)."""
        return len(self.classes) // self.classes_per_batch

    def batch(self, step: int) -> Indices:
        """Return the (P / world_size * M,) image indices of a step: M of the first class, M of the second, ..."""
        turn, place = divmod(step, self.batches_per_round)
        chosen = self._order(turn)[place * self.classes_per_batch : (place + 1) * self.classes_per_batch]
        return np.concatenate([self._draw(int(c), turn) for c in chosen[self.rank :: self.world_size]])

    def iterate(self, start: int = 0) -> Iterator[Indices]:
        """Yield the batches of steps `start`, `start` + 1, ... without end."""
        while True:
            yield self.batch(start)
            start += 1

    def _order(self, turn: int) -> Indices:
        """Return the round's order of classes, as positions in `classes`."""
        if self._round[0] != turn:
            rng = np.random.default_rng([self.seed, 0, turn])
            self._round = (turn, rng.permutation(len(self.classes)))
        return self._round[1]

    def _draw(self, position: int, turn: int) -> Indices:
        """Return a class's M images in a round."""
        members, size = self._members[position], self.samples_per_class
        number, place = divmod(turn, max(1, len(members) // size))
        kept = self._passes.get(position)
        if kept is None or kept[0] != number:
            rng = np.random.default_rng([self.seed, 1, int(self.classes[position]), number])
            shuffled = rng.permutation(members)
            kept = (number, np.resize(shuffled, max(size, len(members))))
            self._passes[position] = kept
        return kept[1][place * size : (place + 1) * size]
