"""How many processes or threads decode images: as many as there are cores for, and work."""

from __future__ import annotations

import math
import os
from pathlib import Path

MANY = 2000
"""Images from which on starting processes pays."""

EACH = 100
"""Images for each process, at least: it takes about as long to start as to decode some dozens."""

THREADS = 4
"""Pillow holds the interpreter's lock for much of the decoding: more threads than these only fight for it."""

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def processes_for(images: int, asked: int | None = None, *, wanted: bool | None = None) -> int:
    """Return how many processes decode, never more than cores or images; 0 where threads do better.

    Args:
        images: How many there are to decode.
        asked: How many at a time; None for what suits the cores and the images.
        wanted: Whether by processes at all; None for where it pays.
    """
    most = cores()
    pays = most > 1 and images >= MANY
    if not (pays if wanted is None else wanted):
        return 0
    return max(1, min(asked or most, most, images if asked else images // EACH))


def threads_for(images: int, asked: int | None = None) -> int:
    """Return how many threads decode where processes do not: as many as asked for, or a few."""
    return max(1, min(asked or min(cores(), THREADS), images))


def cores() -> int:
    """Return the cores this process may use: those it may run on, and no more than a container's share of time.

    Of processes that torchrun started on this machine each may use its part.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shares = [math.ceil(share) for share in _shares()]
    return max(1, min([allowed, *shares]) // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def _shares() -> list[float]:
    """Return the cores' worth of time that the control groups above this process let it have, where they limit it."""
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, own = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = _GROUPS / "cpu" if controllers else _GROUPS
        for group in (own_group := root / own.lstrip("/"), *own_group.parents):
            share = _share(group)
            if share is not None:
                found.append(share)
            if group == root:
                break
    return found


def _share(group: Path) -> float | None:
    """Return a group's limit by the files of the second version of control groups, or of the first; None for none."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        except OSError:
            return None
    try:
        share = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max"
        return None
    return share if share > 0 else None  # -1
