"""Load on the search service, against a plain loop of model calls."""

from __future__ import annotations

import http.client
import io
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from benchmarks.record import Benchmark, Measurement
from winnow.errors import DataError, WinnowError
from winnow.index import Index
from winnow.profiling import Timing

_IMAGES = 200
_START_SECONDS = 120.0
_WARM_UP_SECONDS, _WARM_UP_ROUNDS = 15.0, 20  # the service fills its caches, and the allocator its heap
_STEADY_BYTES, _STEADY_ROUNDS = 1e6, 3  # memory grows in steps: a new batch size, a full heap


@dataclass
class Load:
    """Answers that clients received."""

    seconds: list[float] = field(default_factory=list)  # of each search that succeeded
    failures: list[str] = field(default_factory=list)  # all other answers


def run_serve(
    path: Path,
    *,
    clients: Sequence[int],
    seconds: float,
    k: int = 10,
    other: Path | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Benchmark:
    """Search an index over HTTP with concurrent clients, and in a plain loop.

    Every request sends another file, so no answer comes from the cache of the service.

    Args:
        path: Folder of the index.
        clients: Numbers of concurrent clients.
        seconds: Duration for each number of clients.
        k: Number of neighbors.
        other: Source folder of another version of winnow, whose service is measured first.
        note: Called with progress messages.

    Raises:
        WinnowError: when a request fails, or the service does not start.
    """
    index = Index.open(path)
    if len(index) == 0:
        raise DataError(f"{path}: the index is empty. Add images first.")
    positions = np.linspace(0, len(index) - 1, min(_IMAGES, len(index))).astype(np.int64)
    images = [index.entry(int(number)).thumbnail for number in index.ids[positions]]
    case = f"{len(index):,} images, k = {k}"
    note(f"plain loop for {seconds / 4:g} s")
    rows = [_measure_loop(case, index, images, k, seconds / 4)]
    for source in (None,) if other is None else (other, None):
        with serving(path, max(clients), source) as address:
            for count in clients:
                method = f"{count} client{'s' * (count > 1)}" + (", other version" if source is not None else "")
                note(f"{method} for {seconds:g} s")
                rows.append(_measure_clients(case, method, address, images, count, k, seconds))
    notes = ["Medians are seconds per query, all clients together; percentiles are the latency of one client."]
    settings = {"clients": list(clients), "seconds": seconds, "k": k, "device": "cpu"}
    if other is not None:
        notes.append(f"The other version is {describe_source(other)}.")
    return Benchmark("serve-cpu", "Searches by image over HTTP", "plain loop", settings, rows, notes)


def _measure_loop(case: str, index: Index, images: Sequence[bytes], k: int, seconds: float) -> Measurement:
    """Decode, embed, and search one image after another."""
    taken: list[float] = []
    index.search([Image.open(io.BytesIO(images[0]))], k)
    until = time.perf_counter() + seconds
    while (started := time.perf_counter()) < until:
        index.search([Image.open(io.BytesIO(images[len(taken) % len(images)]))], k)
        taken.append(time.perf_counter() - started)
    return Measurement(case, "plain loop", Timing((sum(taken) / len(taken),)), facts=_rates(taken, sum(taken)))


def _measure_clients(
    case: str, method: str, address: str, images: Sequence[bytes], count: int, k: int, seconds: float
) -> Measurement:
    """Search with concurrent clients, once the memory of the service is steady."""
    warm_up = partial(_search, address, images, count, min(_WARM_UP_SECONDS, seconds), k)
    before = _warm_up_until_steady(warm_up, partial(resident_bytes, address))
    load = _search(address, images, count, seconds, k)
    if load.failures or not load.seconds:
        first = load.failures[0] if load.failures else "no answer in time"
        requests = len(load.failures) + len(load.seconds)
        raise WinnowError(f"{address}: {len(load.failures)} of {requests} requests failed. First failure: {first}")
    facts = _rates(load.seconds, seconds)
    if before is not None:
        facts["growth MB"] = ((resident_bytes(address) or before) - before) / 1e6
    return Measurement(case, method, Timing((seconds / len(load.seconds),)), facts=facts)


def describe_source(source: Path) -> str:
    """Return the commit of a source folder, or its name if it has no history."""
    command = ["git", "-C", str(source), "rev-parse", "HEAD"]
    git = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"commit {git.stdout.strip()}" if git.returncode == 0 else f"the folder {source.name}, commit unknown"


def _rates(taken: Sequence[float], seconds: float) -> dict[str, float]:
    p50, p95, p99 = (1000 * float(np.percentile(taken, percent)) for percent in (50, 95, 99))
    return {"queries/s": len(taken) / seconds, "p50 ms": p50, "p95 ms": p95, "p99 ms": p99}


@contextmanager
def serving(path: Path, clients: int, source: Path | None = None) -> Iterator[str]:
    """Run the service in a process, of this version or of a source folder.

    Yields its address.
    """
    environment = os.environ if source is None else {**os.environ, "PYTHONPATH": str(source.absolute())}
    # --requests is the first name of the option, which all versions understand.
    command = [sys.executable, "-m", "winnow", "serve", str(path), "--port", "0", "--requests", str(2 * clients + 8)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read_output, args=(process, lines), daemon=True).start()
    try:
        yield _wait_for_address(process, lines)
    finally:
        process.terminate()
        process.wait(20)


def _read_output(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    for line in process.stdout or ():
        lines.put(line)


def _wait_for_address(process: subprocess.Popen[str], lines: queue.Queue[str]) -> str:
    """Wait until the service answers, and return its address."""
    output, until = "", time.monotonic() + _START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        while not lines.empty():
            output += lines.get()
        found = re.search(r"http://\S+", output)
        if found is not None:
            try:
                _get(found[0], "/health")
                return found[0]
            except OSError:
                pass
        time.sleep(0.1)
    while not lines.empty():
        output += lines.get()
    raise WinnowError(f"service: no answer after start. Its last output: {' '.join(output.split())[-500:]}")


def _search(address: str, images: Sequence[bytes], count: int, seconds: float, k: int) -> Load:
    """Search with concurrent clients for some seconds."""
    load, until = Load(), time.perf_counter() + seconds
    threads = [threading.Thread(target=_run_client, args=(address, images, n, until, k, load)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return load


def _run_client(address: str, images: Sequence[bytes], number: int, until: float, k: int, load: Load) -> None:
    """Send one search after another on one connection."""
    url = urlsplit(address)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=60)
    turn = number
    while (started := time.perf_counter()) < until:
        try:
            # Bytes after the end of a JPEG change its hash only.
            connection.request("POST", f"/api/search?k={k}", body=images[turn % len(images)] + os.urandom(8))
            answer = connection.getresponse()
            body = answer.read()
            if answer.status == 200:
                load.seconds.append(time.perf_counter() - started)
            else:
                load.failures.append(f"{answer.status} {body[:200]!r}")
        except (OSError, http.client.HTTPException) as error:
            load.failures.append(repr(error))
            connection.close()
        turn += 7
    connection.close()


def _warm_up_until_steady(search: Callable[[], Load], memory: Callable[[], int | None]) -> int | None:
    """Search until memory stops growing or the rounds end; return the memory."""
    before, steady = memory(), 0
    for _ in range(_WARM_UP_ROUNDS):
        search()
        after = memory()
        if before is None or after is None:
            return after
        steady = steady + 1 if after - before < _STEADY_BYTES else 0
        if steady == _STEADY_ROUNDS:
            return after
        before = after
    return before


def resident_bytes(address: str) -> int | None:
    """Return the resident memory of a service."""
    found = re.search(r"^process_resident_memory_bytes (\S+)$", _get(address, "/metrics"), re.MULTILINE)
    return None if found is None else int(float(found[1]))


def _get(address: str, path: str) -> str:
    url = urlsplit(address)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=10)
    connection.request("GET", path)
    text = connection.getresponse().read().decode()
    connection.close()
    return text
