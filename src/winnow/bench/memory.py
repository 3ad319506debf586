"""How much memory something needs at its height."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from pathlib import Path

import torch

from winnow.bench.timing import Work

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_memory(function: Work, device: torch.device) -> int | None:
    """Return by how many bytes memory rises above what is in use before the call, while `function` runs once.

    On a GPU these are the bytes torch allocates. On the CPU it is the resident memory of the whole process, whoever
    allocates it, as the kernel keeps the highest value of it; the heap is given back beforehand, so that a first call
    and a later one count alike.

    Args:
        function: What to run; what it returns is dropped.
        device: Where its memory lies.

    Returns:
        Bytes; None on the CPU of a system that keeps no such value (any but Linux).
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    if not _forget_peak():
        return None
    before = _status("VmRSS")
    function()
    return max(0, _status("VmHWM") - before)


def _forget_peak() -> bool:
    """Give free heap back to the system and set the highest resident memory to the present one; False if unable."""
    with suppress(AttributeError, OSError, TypeError):  # another C library: what its heap keeps then counts as in use
        ctypes.CDLL(None).malloc_trim(0)
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True


def _status(key: str) -> int:
    """Return an entry of the process's status, in bytes."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(key)
