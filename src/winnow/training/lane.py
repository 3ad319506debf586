"""What a run has to itself on a device, so that several can run side by side."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from winnow.errors import TrainingError

T = TypeVar("T")
Work = Generator[None, None, T]
"""Work in pieces: between two of them the host is free for the pieces of others."""

AHEAD = 3  # steps the host may be in front of a GPU: enough to keep it busy, few enough to hold little memory


def finish(work: Work[T]) -> T:
    """Do all pieces of some work and return what comes out."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class Lane:
    """A run's own stream, random numbers and graph memory on a GPU; on a CPU, where runs just take turns, nothing.

    The generator is the lane's own because graphs read their seed from a place on the device that belongs to the
    generator's state: two runs side by side would overwrite each other's.

    Args:
        device: Where the run computes.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._events: deque[torch.cuda.Event] = deque()
        if device.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]
            index = torch.cuda.current_device() if device.index is None else device.index
            self._default = torch.cuda.default_generators[index]
            self._random = self._default.clone_state()
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._pool: Any = None  # a handle of torch, of no public type

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Let the work inside run on this lane."""
        if self.device.type != "cuda":
            yield
            return
        before = self._default.graphsafe_get_state()
        self._default.graphsafe_set_state(self._random)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            self._default.graphsafe_set_state(before)

    def drive(self, work: Work[T]) -> Work[T]:
        """Do the pieces of some work on this lane, which is left between them."""
        if self.device.type == "cuda":
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
        while True:
            with self.entered():
                try:
                    next(work)
                except StopIteration as end:
                    result: T = end.value
                    break
            yield
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).wait_stream(self._stream)
        return result

    def pace(self) -> None:
        """Note the end of a step, and wait for that of an earlier one if the host is too far ahead."""
        if self.device.type != "cuda":
            return
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record()
        self._events.append(event)
        if len(self._events) > AHEAD:
            self._events.popleft().synchronize()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record work as a CUDA graph, without doing it, and return what does it.

        The graphs of a lane share their memory: nothing inside one may outlive its replay.

        Raises:
            TrainingError: if something in the work waits for the device, which cannot be captured.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            # Only this thread's calls are looked at: another may be writing a checkpoint.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                work()
        except RuntimeError as error:
            # The end of a capture that broke raises an error of its own; what broke it stands behind that.
            first = error.__context__ or error
            if isinstance(first, torch.cuda.OutOfMemoryError):
                raise first from None
            reason = (str(first).splitlines() or [type(first).__name__])[0]
            raise TrainingError(
                f"the training step could not be captured as a CUDA graph ({reason}): set train.graph=false"
            ) from error
        self._pool = graph.pool()
        return graph.replay
