"""Seeds: what is drawn at any moment of a run is a function of the run's seed and of that moment."""

from __future__ import annotations

import random

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
