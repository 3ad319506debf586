"""Concurrent decoding of images, by threads or processes that load no torch.

Pillow holds the interpreter lock for much of the decoding, so processes are faster for many images. A worker process
receives the pickled image set once, then one index at a time, and returns pixels.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import signal
import struct
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from winnow.data.decoding import Resize, resize_levels
from winnow.data.image_set import ImageSet
from winnow.errors import WinnowError

Pixels = NDArray[np.uint8]
FlatImage = tuple[Pixels, int, int]
"""Flat bytes of an image and its copies, its height, and its width."""

T = TypeVar("T")

MIN_IMAGES_FOR_PROCESSES = 2000
"""Number of images from which decoding by processes is faster, including their start."""

MIN_IMAGES_PER_PROCESS = 100
"""A process takes about as long to start as several dozen images take to decode."""

MAX_DEFAULT_THREADS = 4
"""More threads only compete for the interpreter lock."""

_CGROUPS = Path("/sys/fs/cgroup")
_PROCESS_CGROUPS = Path("/proc/self/cgroup")

_HEADER = struct.Struct("<?qqq")  # True, height, width, and size of the pixels; or False, 0, 0, and size of the error
_INDEX = struct.Struct("<q")


class Decoder:
    """Decodes images of a set to one short side, several concurrently.

    Args:
        images: Set to decode.
        resize: Length of the short side, or "original" for images of original size with halved copies.
        workers: Number of threads or processes, where processes never exceed the cores; None for a number that suits
            the cores and the images.
        processes: Whether to use processes; None for processes if there are many images that are not in memory. A set
            that cannot be pickled, such as one defined in a script or notebook, is decoded by threads.
    """

    def __init__(
        self, images: ImageSet, resize: Resize, *, workers: int | None = None, processes: bool | None = None
    ) -> None:
        self.images, self.resize = images, resize
        requested = False if processes is None and images.in_memory else processes
        count = num_processes(len(images), workers, requested=requested)
        self._processes = _start_processes(images, resize, count) if count else None
        self.count = count if self._processes is not None else num_threads(len(images), workers)
        self._pool = ThreadPoolExecutor(self.count, thread_name_prefix="decode")

    @property
    def uses_processes(self) -> bool:
        """Whether processes decode the images."""
        return self._processes is not None

    def read(self, index: int) -> Pixels:
        """Decode one image to (height, width, 3)."""
        pixels, height, width = self.read_flat(index)
        return pixels[: 3 * height * width].reshape(height, width, 3)

    def read_flat(self, index: int) -> FlatImage:
        """Decode one image to its bytes, followed by those of its halved copies, and its height and width."""
        if self._processes is not None:
            return self._processes.read(index)
        return _flatten(resize_levels(self.images.read(index), self.resize))

    def map(self, work: Callable[[int], T], indices: Iterable[int]) -> Iterator[T]:
        """Yield work(index) in order, with several computed ahead; `work` calls `read`."""
        pending: deque[Future[T]] = deque()
        try:
            for index in indices:
                pending.append(self._pool.submit(work, index))
                if len(pending) >= 4 * self.count:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def close(self) -> None:
        """Stop threads and processes."""
        self._pool.shutdown(cancel_futures=True)
        if self._processes is not None:
            self._processes.close()


def num_processes(images: int, workers: int | None = None, *, requested: bool | None = None) -> int:
    """Return the number of decoding processes; 0 if threads are faster.

    Args:
        images: Number of images to decode.
        workers: Requested number; None for a number that suits the cores and the images.
        requested: Whether to use processes; None for processes where they are faster.
    """
    cores = available_cores()
    faster = cores > 1 and images >= MIN_IMAGES_FOR_PROCESSES
    if not (faster if requested is None else requested):
        return 0
    return max(1, min(workers or cores, cores, images if workers else images // MIN_IMAGES_PER_PROCESS))


def num_threads(images: int, workers: int | None = None) -> int:
    """Return the number of decoding threads: the requested number, or a few."""
    return max(1, min(workers or min(available_cores(), MAX_DEFAULT_THREADS), images))


def available_cores() -> int:
    """Return the number of cores that this process may use.

    Its CPU affinity and the CPU limit of its container apply.

    Processes that torchrun started on this machine divide the cores.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = [math.ceil(limit) for limit in _cgroup_limits()]
    return max(1, min([allowed, *limits]) // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def _cgroup_limits() -> list[float]:
    """Return the CPU limits of the control groups of this process, in cores."""
    try:
        lines = _PROCESS_CGROUPS.read_text().splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        _, controllers, own = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = _CGROUPS / "cpu" if controllers else _CGROUPS
        for group in (own_group := root / own.lstrip("/"), *own_group.parents):
            limit = _cgroup_limit(group)
            if limit is not None:
                limits.append(limit)
            if group == root:
                break
    return limits


def _cgroup_limit(group: Path) -> float | None:
    """Return the CPU limit of a control group, in cores; None without a limit."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        except OSError:
            return None
    try:
        limit = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max" means no limit in version 2.
        return None
    return limit if limit > 0 else None  # -1 means no limit in version 1.


class _Processes:
    """Worker processes.

    As many threads each take an idle process and wait for its result.
    """

    def __init__(self, workers: list[subprocess.Popen[bytes]]) -> None:
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for worker in workers:
            self._idle.put(worker)
        self.close = weakref.finalize(self, _stop, workers)

    def read(self, index: int) -> FlatImage:
        worker = self._idle.get()
        try:
            assert worker.stdin is not None, "stdin is a pipe"
            worker.stdin.write(_INDEX.pack(index))
            worker.stdin.flush()
            return _receive(worker)
        except (BrokenPipeError, EOFError):
            raise WinnowError(_describe_end(worker)) from None
        finally:
            self._idle.put(worker)


def _flatten(levels: Sequence[Image.Image]) -> FlatImage:
    """Return the bytes of an image and its copies in one array."""
    pixels = np.concatenate([np.asarray(level).reshape(-1) for level in levels])
    return pixels, levels[0].height, levels[0].width


def _start_processes(images: ImageSet, resize: Resize, count: int) -> _Processes | None:
    """Start processes and send them the image set; None if that fails."""
    try:
        payload = pickle.dumps((images, resize))
    except Exception:  # A set defined outside winnow may raise any error.
        return None
    # The worker gets the search path of this process before it imports winnow.
    code = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from winnow.data import decoder; decoder.serve()"
    command = [sys.executable, "-P", "-c", code, json.dumps([str(path) for path in sys.path])]
    workers: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            workers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))  # noqa: PERF401
        for worker in workers:
            assert worker.stdin is not None, "stdin is a pipe"
            worker.stdin.write(_INDEX.pack(len(payload)) + payload)
            worker.stdin.flush()
        for worker in workers:
            _receive(worker)
    except Exception:  # The set cannot be unpickled in the worker, or no process can be started.
        _stop(workers)
        return None
    return _Processes(workers)


def _receive(worker: subprocess.Popen[bytes]) -> FlatImage:
    """Read pixels from a worker, or raise the error that it sent."""
    assert worker.stdout is not None, "stdout is a pipe"
    good, height, width, size = _HEADER.unpack(_read_exactly(worker.stdout, _HEADER.size))
    content = _read_exactly(worker.stdout, size)
    if not good:
        raise pickle.loads(content)
    return np.frombuffer(content, dtype=np.uint8), height, width


def _read_exactly(pipe: IO[bytes], size: int) -> bytearray:
    content = bytearray(size)
    view, got = memoryview(content), 0
    while got < size:
        more = pipe.readinto(view[got:])  # type: ignore[attr-defined]
        if not more:
            raise EOFError
        got += more
    return content


def _describe_end(worker: subprocess.Popen[bytes]) -> str:
    try:
        code = worker.wait(timeout=5)
    except subprocess.TimeoutExpired:
        code = None
    why = "was killed, perhaps for lack of memory" if code is not None and code < 0 else f"ended (exit code {code})"
    return f"A process that decodes images {why}. Close other programs, or set data.image_cache=none."


def _stop(workers: list[subprocess.Popen[bytes]]) -> None:
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.wait()
        for pipe in (worker.stdin, worker.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # Unsent data in the buffer.
                    pipe.close()


def serve() -> None:
    """Run a worker process.

    It reads a pickled image set, then indices, and writes pixels until the input ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the main process handles it.
    source, target = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # Text that an image set prints must not mix with pixels.
    if not (head := source.read(_INDEX.size)):  # The main process was interrupted.
        return
    (size,) = _INDEX.unpack(head)
    try:
        images, resize = pickle.loads(source.read(size))
    except Exception as error:
        _send_error(target, error)
        return
    target.write(_HEADER.pack(True, 0, 0, 0))
    target.flush()
    while index := source.read(_INDEX.size):
        try:
            levels = resize_levels(images.read(_INDEX.unpack(index)[0]), resize)
            pixels = b"".join(level.tobytes() for level in levels)
        except Exception as error:
            _send_error(target, error)
        else:
            target.write(_HEADER.pack(True, levels[0].height, levels[0].width, len(pixels)))
            target.write(pixels)
            target.flush()


def _send_error(target: BinaryIO, error: Exception) -> None:
    """Send an error instead of pixels."""
    try:
        content = pickle.dumps(error)
        pickle.loads(content)
    except Exception:
        content = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    target.write(_HEADER.pack(False, 0, 0, len(content)) + content)
    target.flush()
