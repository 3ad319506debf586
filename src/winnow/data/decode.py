"""Decoding of many images on all cores: by threads, or by processes, because Pillow holds the interpreter's lock."""

from __future__ import annotations

import pickle
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO, TypeVar

import numpy as np
from numpy.typing import NDArray

from winnow.data.decode_worker import HEADER, INDEX
from winnow.data.imageset import ImageSet
from winnow.data.resize import resize_short
from winnow.data.workers import processes_for, threads_for
from winnow.errors import WinnowError

Pixels = NDArray[np.uint8]
T = TypeVar("T")


class Decoder:
    """Decodes images of a set to one short side, several at a time.

    Args:
        images: What to decode.
        resize: Length of the short side.
        workers: How many at a time, of processes never more than cores; None for what suits cores and images.
        processes: Whether by processes; None for many images that are not in memory already. A set that cannot be sent
            to another process, such as one defined in a script or notebook, is decoded by threads all the same.
    """

    def __init__(
        self, images: ImageSet, resize: int, *, workers: int | None = None, processes: bool | None = None
    ) -> None:
        self.images, self.resize = images, resize
        wanted = False if processes is None and images.in_memory else processes
        count = processes_for(len(images), workers, wanted=wanted)
        self._crew = _start_crew(images, resize, count) if count else None
        self.count = count if self._crew is not None else threads_for(len(images), workers)
        self._pool = ThreadPoolExecutor(self.count, thread_name_prefix="decode")

    @property
    def by_processes(self) -> bool:
        """Whether processes do the work."""
        return self._crew is not None

    def read(self, index: int) -> Pixels:
        """Decode one image, (height, width, 3)."""
        if self._crew is not None:
            return self._crew.read(index)
        return np.array(resize_short(self.images.read(index), self.resize))

    def map(self, work: Callable[[int], T], indices: Iterable[int]) -> Iterator[T]:
        """Yield work(index) in order, while it is done for some more indices ahead; `work` calls `read`."""
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
        """Let go of threads and processes."""
        self._pool.shutdown(cancel_futures=True)
        if self._crew is not None:
            self._crew.close()


class _Crew:
    """Processes that decode; each of as many threads takes one that is idle and waits for it."""

    def __init__(self, members: list[subprocess.Popen[bytes]]) -> None:
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for member in members:
            self._idle.put(member)
        self.close = weakref.finalize(self, _end, members)

    def read(self, index: int) -> Pixels:
        member = self._idle.get()
        try:
            assert member.stdin is not None, "it is a pipe"
            member.stdin.write(INDEX.pack(index))
            member.stdin.flush()
            return _receive(member)
        except (BrokenPipeError, EOFError):
            raise WinnowError(_gone(member)) from None
        finally:
            self._idle.put(member)


def _start_crew(images: ImageSet, resize: int, count: int) -> _Crew | None:
    """Start processes and send them the set; None where that cannot be done."""
    try:
        content = pickle.dumps((images, resize))
    except Exception:  # whatever a set of somebody's own raises
        return None
    payload = pickle.dumps((sys.path, content))
    # -P, because the worker's own folder has modules with everyday names.
    command = [sys.executable, "-P", str(Path(__file__).with_name("decode_worker.py"))]
    members: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            members.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))  # noqa: PERF401
        for member in members:
            assert member.stdin is not None, "it is a pipe"
            member.stdin.write(INDEX.pack(len(payload)) + payload)
            member.stdin.flush()
        for member in members:
            _receive(member)
    except Exception:  # the set cannot be made out there, or this Python starts no processes
        _end(members)
        return None
    return _Crew(members)


def _receive(member: subprocess.Popen[bytes]) -> Pixels:
    """Read pixels, or raise the error that came instead."""
    assert member.stdout is not None, "it is a pipe"
    good, height, width, size = HEADER.unpack(_exactly(member.stdout, HEADER.size))
    content = _exactly(member.stdout, size)
    if not good:
        raise pickle.loads(content)
    return np.frombuffer(content, dtype=np.uint8).reshape(height, width, 3)


def _exactly(pipe: IO[bytes], size: int) -> bytearray:
    content = bytearray(size)
    view, got = memoryview(content), 0
    while got < size:
        more = pipe.readinto(view[got:])  # type: ignore[attr-defined]
        if not more:
            raise EOFError
        got += more
    return content


def _gone(member: subprocess.Popen[bytes]) -> str:
    try:
        code = member.wait(timeout=5)
    except subprocess.TimeoutExpired:
        code = None
    why = "was killed, perhaps because memory ran out" if code is not None and code < 0 else f"ended (exit code {code})"
    return f"a process that decodes images {why}: close other programs, or decode anew for each batch (data.cache=none)"


def _end(members: list[subprocess.Popen[bytes]]) -> None:
    for member in members:
        member.kill()
    for member in members:
        member.wait()
        for pipe in (member.stdin, member.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # by what was still to be sent
                    pipe.close()
