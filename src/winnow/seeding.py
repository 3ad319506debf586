"""Seeds: what is drawn at any moment of a run is a function of the run's seed and of that moment."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_of(*numbers: int) -> int:
    """Return a seed that is a function of some numbers; trailing zeros make no difference."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seed_everything(seed: int) -> None:
    """Seed every generator that a step may draw from; a user's transform may use numpy's or Python's."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (the global one is what transforms use)


@contextmanager
def own_randomness() -> Iterator[None]:
    """Give the generators that a run seeds back to the program that called it as they were.

    Else whatever that program draws after a run would be the same after every run.
    """
    python, numbers, tensors = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)  # noqa: NPY002
        torch.set_rng_state(tensors)
        if devices is not None:
            torch.cuda.set_rng_state_all(devices)
