"""Load on `winnow serve`: many clients for a while, against a plain loop of model calls on the same images."""

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

from winnow.bench.record import Bench, Row
from winnow.bench.timing import Timing
from winnow.errors import ConfigError, WinnowError
from winnow.index import Index

_IMAGES = 200
_START = 120.0
_WARM_UP, _ROUNDS = 15.0, 20  # the service fills what it remembers, and the allocator what it keeps
_STEADY, _CALM = 1e6, 3  # it grows by steps: a new size of batch, a heap that is full


@dataclass
class Load:
    """What clients met with: the seconds of each answered search, and what else was answered."""

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def run_serve(
    path: Path, *, clients: Sequence[int], seconds: float, k: int = 10, other: Path | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Bench:  # fmt: skip
    """Search an index over HTTP with some clients at a time, and in a plain loop.

    Every request sends another file, so that none is answered from what the service remembers.

    Args:
        path: The index.
        clients: How many clients at a time.
        seconds: How long each number of them searches.
        k: Neighbours asked for.
        other: The source folder of another version of winnow, whose service is measured first.
        note: Is told what is being done.

    Raises:
        WinnowError: when any request fails, or the service does not come up.
    """
    index = Index.open(path)
    if len(index) == 0:
        raise ConfigError(f"{path} is empty: index some images first")
    places = np.linspace(0, len(index) - 1, min(_IMAGES, len(index))).astype(np.int64)
    images = [index.entry(int(number)).thumbnail for number in index.ids[places]]
    case = f"{len(index):,} images, k = {k}"
    rows = []
    note(f"plain loop for {seconds / 4:g} s ...")
    rows.append(Row(case, "plain loop", *_looped(index, images, k, seconds / 4)))
    for source in (None,) if other is None else (other, None):
        with serving(path, max(clients), source) as address:
            for count in clients:
                rival = f"{count} clients" if source is None else f"{count} clients, other version"
                note(f"{rival} for {seconds:g} s ...")
                rows.append(Row(case, rival, *_served(address, images, count, k, seconds)))
    notes = ["Medians are seconds for each query, all clients together; percentiles are what one client waits."]
    settings = {"clients": list(clients), "seconds": seconds, "k": k, "device": "cpu"}
    if other is not None:
        notes.append(f"The other version is {version_of(other)}.")
    return Bench("serve-cpu", "searches by image over HTTP", "plain loop", settings, rows, notes)


def _looped(index: Index, images: Sequence[bytes], k: int, seconds: float) -> tuple[Timing, None, dict[str, float]]:
    """Decode, embed and search one image after another."""
    taken: list[float] = []
    index.search([Image.open(io.BytesIO(images[0]))], k)
    until = time.perf_counter() + seconds
    while (started := time.perf_counter()) < until:
        index.search([Image.open(io.BytesIO(images[len(taken) % len(images)]))], k)
        taken.append(time.perf_counter() - started)
    return Timing((sum(taken) / len(taken),)), None, _facts(taken, sum(taken))


def _served(
    address: str, images: Sequence[bytes], count: int, k: int, seconds: float
) -> tuple[Timing, None, dict[str, float]]:
    """Have clients search for a while, once the service has grown to its size."""
    before = _settle(lambda: _clients(address, images, count, min(_WARM_UP, seconds), k), partial(resident, address))
    load = _clients(address, images, count, seconds, k)
    if load.failures or not load.seconds:
        first = load.failures[0] if load.failures else "nothing was answered in time"
        raise WinnowError(f"{len(load.failures)} of {len(load.seconds)} requests failed; the first: {first}")
    facts = _facts(load.seconds, seconds)
    if before is not None:
        facts["growth MB"] = ((resident(address) or before) - before) / 1e6
    return Timing((seconds / len(load.seconds),)), None, facts


def version_of(source: Path) -> str:
    """Return the commit of a source folder, or its name where it has none."""
    asked = ["git", "-C", str(source), "rev-parse", "HEAD"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False)
    return f"commit {told.stdout.strip()}" if told.returncode == 0 else f"the folder {source.name}, of no known commit"


def _facts(taken: Sequence[float], seconds: float) -> dict[str, float]:
    p50, p95, p99 = (1000 * float(np.percentile(taken, share)) for share in (50, 95, 99))
    return {"queries/s": len(taken) / seconds, "p50 ms": p50, "p95 ms": p95, "p99 ms": p99}


@contextmanager
def serving(path: Path, clients: int, source: Path | None = None) -> Iterator[str]:
    """Run `winnow serve` in a process of its own, of this version or of a source folder; yields its address."""
    environment = os.environ if source is None else {**os.environ, "PYTHONPATH": str(source.absolute())}
    command = [sys.executable, "-m", "winnow", "serve", str(path), "--port", "0", "--requests", str(2 * clients + 8)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(process, lines), daemon=True).start()
    try:
        yield _address(process, lines)
    finally:
        process.terminate()
        process.wait(20)


def _listen(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    for line in process.stdout or ():
        lines.put(line)


def _address(process: subprocess.Popen[str], lines: queue.Queue[str]) -> str:
    """Wait until the service answers."""
    said, until = "", time.monotonic() + _START
    while time.monotonic() < until and process.poll() is None:
        while not lines.empty():
            said += lines.get()
        found = re.search(r"http://\S+", said)
        if found is not None:
            try:
                _get(found[0], "/health")
                return found[0]
            except OSError:
                pass
        time.sleep(0.1)
    while not lines.empty():
        said += lines.get()
    raise WinnowError(f"the service did not come up: {' '.join(said.split())[-500:]}")


def _clients(address: str, images: Sequence[bytes], count: int, seconds: float, k: int) -> Load:
    load, until = Load(), time.perf_counter() + seconds
    threads = [threading.Thread(target=_client, args=(address, images, n, until, k, load)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return load


def _client(address: str, images: Sequence[bytes], number: int, until: float, k: int, load: Load) -> None:
    """Send one search after another on one connection."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    turn = number
    while (started := time.perf_counter()) < until:
        try:
            # Bytes behind a JPEG's end change its hash and nothing else.
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


def _settle(search: Callable[[], Load], memory: Callable[[], int | None]) -> int | None:
    """Search until memory has not grown for some rounds, or for so long that it always will; return it."""
    before, calm = memory(), 0
    for _ in range(_ROUNDS):
        search()
        after = memory()
        if before is None or after is None:
            return after
        calm = calm + 1 if after - before < _STEADY else 0
        if calm == _CALM:
            return after
        before = after
    return before


def resident(address: str) -> int | None:
    """Return the memory a service has in RAM."""
    found = re.search(r"^process_resident_memory_bytes (\S+)$", _get(address, "/metrics"), re.MULTILINE)
    return None if found is None else int(float(found[1]))


def _get(address: str, path: str) -> str:
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=10)
    connection.request("GET", path)
    text = connection.getresponse().read().decode()
    connection.close()
    return text
