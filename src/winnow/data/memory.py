"""How much memory is free, so that a store can choose where to keep its images."""

from __future__ import annotations

import os
from pathlib import Path

import torch

_UNKNOWN = 4 << 30  # what to count on where the system does not say


def free_ram() -> int:
    """Return the bytes of memory this process may still take, a container's limit considered.

    Of processes that torchrun started on this machine each may take the same.
    """
    free = [_meminfo() or _sysconf() or _UNKNOWN]
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text().strip()
        free.append(int(limit) - int(used))
    except (OSError, ValueError):  # no container, or one whose limit is "max"
        pass
    return max(0, min(free)) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def free_device(device: torch.device) -> int:
    """Return the bytes that are free on a CUDA device, and 0 for any other."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.mem_get_info(device)[0])


def _meminfo() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    kibibytes = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), "0")
    return int(kibibytes) * 1024


def _sysconf() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0
