"""Which of the processes that torchrun started speaks to the user."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

_TOLD = "winnow/told"
_PRECEDENCE = timedelta(seconds=5)  # of the first process, which knows most: often all fail of the same


def rank() -> int:
    """Return which process this is; 0 for the first, and without torchrun."""
    return int(os.environ["RANK"]) if "TORCHELASTIC_RUN_ID" in os.environ else 0


def is_alone() -> bool:
    """Whether torchrun has started no others."""
    return "TORCHELASTIC_RUN_ID" not in os.environ or os.environ["WORLD_SIZE"] == "1"


@contextmanager
def telling() -> Iterator[bool]:
    """Yield whether this process is the one to tell of an error, which several of them have or have caused.

    The others wait here until it is told: the first process that ends is the end of all.
    """
    store = None if is_alone() else _meeting_place()
    if store is None:
        yield True
        return
    given_up = time.monotonic() + _PRECEDENCE.total_seconds()
    while rank() > 0 and not store.check([_TOLD]) and time.monotonic() < given_up:
        time.sleep(0.1)
    yield not store.check([_TOLD])
    store.set(_TOLD, "")


def _meeting_place() -> Store | None:
    """Return the store that all processes reach, with an error in one as well; None where it is gone."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    try:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(address, port, is_master=False, timeout=_PRECEDENCE)
    except (RuntimeError, KeyError, ValueError):
        return None
    return PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
