"""Limits of memory and time on code under test: what is unbounded fails instead of filling the machine."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

SECONDS = 120


@contextmanager
def bounded(memory: int = 2 * 2**30, seconds: float = SECONDS) -> Iterator[None]:
    """Limit the memory that the code takes in addition to that of the process, and its time.

    Beyond the limits the code raises `MemoryError` or `TimeoutError`.
    """

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"not finished within {seconds:g} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = Path("/proc/self/statm")
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        if used.is_file():  # Linux; other systems do not enforce the limit
            pages = int(used.read_text().split()[0])
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory, hard))
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def repeated(levels: int) -> str:
    """Return YAML whose aliases stand for 9 ** levels values."""
    lists = ["&a0 [x, x, x, x, x, x, x, x, x]"]
    lists += [f"&a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, levels)]
    return f"[{', '.join(lists)}]"
