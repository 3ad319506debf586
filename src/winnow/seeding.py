"""Seeds: all random numbers are functions of the run's seed and the step."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive_seed(*numbers: int) -> int:
    """Return a seed that is a function of the numbers.

    Trailing zeros do not change it.
    """
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seed_everything(seed: int) -> None:
    """Seed every generator that a step may use.

    A transform may use the generators of NumPy or Python.
    """
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (transforms use the global generator)


@contextmanager
def fork_rng() -> Iterator[None]:
    """Restore the global generators at the end.

    A run does not change the caller's random numbers.
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
