"""Counts and times of the service, in Prometheus' text format."""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_IMAGES = (1, 2, 4, 8, 16, 32, 64)


class Histogram:
    """Counts of values up to each bound, and their sum.

    Args:
        bounds: Upper bounds, ascending.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.sum = bounds, 0.0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: str = "") -> Iterator[str]:
        """Yield the samples."""
        total, comma = 0, "," if labels else ""
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels}{comma}le="{bound}"}} {total}'
        braces = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{braces} {self.sum:.6f}"
        yield f"{name}_count{braces} {total}"


class Metrics:
    """What the service counts. Routes are named by their templates, so that there are few of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: Counter[tuple[str, str, int]] = Counter()
        self._times: dict[str, Histogram] = {}
        self._batches = Histogram(_IMAGES)
        self.in_flight = 0

    def answer(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answer."""
        with self._lock:
            self._answers[method, route, status] += 1
            self._times.setdefault(route, Histogram(_SECONDS)).add(seconds)

    def batch(self, size: int) -> None:
        """Count a call of the model."""
        with self._lock:
            self._batches.add(size)

    def text(self, entries: int) -> str:
        """Return everything, for an index of so many entries."""
        with self._lock:
            return "\n".join(self._lines(entries)) + "\n"

    def _lines(self, entries: int) -> Iterator[str]:
        yield from _head("winnow_requests_total", "counter", "Answers by method, route and status.")
        for (method, route, status), count in sorted(self._answers.items()):
            yield f'winnow_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}'
        yield from _head("winnow_request_seconds", "histogram", "Time from request to answer.")
        for route, times in sorted(self._times.items()):
            yield from times.lines("winnow_request_seconds", f'route="{route}"')
        yield from _head("winnow_batch_images", "histogram", "Images in each call of the model.")
        yield from self._batches.lines("winnow_batch_images")
        yield from _head("winnow_requests_in_flight", "gauge", "Requests worked on or waiting.")
        yield f"winnow_requests_in_flight {self.in_flight}"
        yield from _head("winnow_index_entries", "gauge", "Images in the index.")
        yield f"winnow_index_entries {entries}"
        memory = resident_bytes()
        if memory is not None:
            yield from _head("process_resident_memory_bytes", "gauge", "Memory in use.")
            yield f"process_resident_memory_bytes {memory}"


def _head(name: str, kind: str, meaning: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"


def resident_bytes() -> int | None:
    """Return the memory this process has in RAM; None where the system does not tell it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None
