"""Per-run CUDA stream, RNG state, and graph memory pool, so runs can share a GPU.

Work that can take turns with other work is written as a generator, named `iter_*`. `run_to_end` runs one alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from winnow.errors import TrainingError

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A generator that yields after every small step of work and returns a result. Other work runs between steps."""

MAX_STEPS_AHEAD = 3  # enough to keep a GPU busy, few enough to hold little memory


def run_to_end(steps: Steps[T]) -> T:
    """Run all steps of a generator and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class DeviceStream:
    """CUDA stream, random-number generator, and graph memory of one run.

    On a CPU it does nothing.

    Each stream has a generator because a CUDA graph reads its seed from device memory that belongs to the generator.
    Two concurrent runs with one generator would overwrite each other's seeds.

    Args:
        device: Device of the run.
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
            self._pool: Any = None  # a handle of torch without a public type

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Run the enclosed work on this stream with its generator."""
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

    def run_on(self, steps: Steps[T]) -> Steps[T]:
        """Run each step of a generator on this stream."""
        if self.device.type == "cuda":
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
        while True:
            with self.activate():
                try:
                    next(steps)
                except StopIteration as end:
                    result: T = end.value
                    break
            yield
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).wait_stream(self._stream)
        return result

    def throttle(self) -> None:
        """Wait for an earlier step if the host is too far ahead."""
        if self.device.type != "cuda":
            return
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record()
        self._events.append(event)
        if len(self._events) > MAX_STEPS_AHEAD:
            self._events.popleft().synchronize()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record work as a CUDA graph without running it; return the replay function.

        All graphs of a stream share one memory pool: no tensor made inside a graph may outlive its replay.

        Raises:
            TrainingError: If an operation waits for the device, which a CUDA graph cannot capture.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            # "thread_local" ignores CUDA calls of other threads: one may be writing a checkpoint.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                work()
        except RuntimeError as error:
            # The end of a failed capture raises a second error. The cause is its context.
            first = error.__context__ or error
            if isinstance(first, torch.cuda.OutOfMemoryError):
                raise first from None
            reason = (str(first).splitlines() or [type(first).__name__])[0]
            raise TrainingError(
                f"train.cuda_graph: the training step cannot be captured as a CUDA graph ({reason}). "
                "Set train.cuda_graph=false."
            ) from error
        self._pool = graph.pool()
        return graph.replay
