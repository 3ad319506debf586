"""Time, memory, and GPU kernels of a callable."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from winnow.errors import ConfigError

Work = Callable[[], object]
"""Callable to measure; its result is dropped."""

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_CALLS_PER_PROFILE = 10


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, from several runs."""

    seconds: tuple[float, ...]  # one entry per run, in order

    @property
    def median(self) -> float:
        """Median of the runs; a single slow run does not change it."""
        return statistics.median(self.seconds)

    @property
    def lowest(self) -> float:
        """Fastest run."""
        return min(self.seconds)

    @property
    def highest(self) -> float:
        """Slowest run."""
        return max(self.seconds)

    @property
    def runs(self) -> int:
        """Number of runs."""
        return len(self.seconds)

    def divided_by(self, count: float) -> Timing:
        """Return the time of one of `count` equal parts of the call."""
        return Timing(tuple(one / count for one in self.seconds))


def pick_device(name: str) -> torch.device:
    """Return the device for `auto`, `cpu`, or `cuda`; `auto` prefers a GPU.

    Raises:
        ConfigError: for another name, or for `cuda` without a usable GPU.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device: unknown value '{name}'. Choose auto, cpu, or cuda.")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: torch finds no CUDA device. Choose cpu, or install a CUDA build of torch.")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def measure(function: Work, *, device: torch.device, repeats: int = 20, warmup: int = 3, inner: int = 1) -> Timing:
    """Time a function: `warmup` calls, then `repeats` runs of `inner` calls.

    On a GPU a run lies between two events of the current stream, so a function that launches little work is timed by
    its launches. On the CPU it is wall time. Caches stay as the previous run leaves them; for cold caches, rotate the
    inputs inside `function`.

    Args:
        function: Callable to time.
        device: Device of its work.
        repeats: Number of runs.
        warmup: Number of untimed calls.
        inner: Calls per run, for functions that are too short to time alone. The time of a run is divided by it.
    """
    return measure_all({"": function}, device=device, repeats=repeats, warmup=warmup, inner=inner)[""]


def measure_all(
    functions: Mapping[str, Work], *, device: torch.device, repeats: int = 20, warmup: int = 3, inner: int = 1
) -> dict[str, Timing]:
    """Time functions round-robin, so a drift of the machine affects all.

    Args:
        functions: Callables to time, by name.
        device: Device of their work.
        repeats: Number of rounds, each with one run of every function.
        warmup: Number of untimed calls of every function.
        inner: Calls per run.

    Returns:
        Timings by name, in the order of `functions`.
    """
    for function in functions.values():
        for _ in range(warmup):
            function()
    runs: dict[str, list[float]] = {name: [] for name in functions}
    once = _once_cuda if device.type == "cuda" else _once_cpu
    for _ in range(repeats):
        for name, function in functions.items():
            runs[name].append(once(function, inner) / inner)
    return {name: Timing(tuple(seconds)) for name, seconds in runs.items()}


def capture_graph(function: Work, *, warmup: int = 3) -> Callable[[], None]:
    """Capture a function as a CUDA graph and return a callable that replays it.

    Args:
        function: Work on the current CUDA device, of fixed shapes, without a host synchronization.
        warmup: Calls on a side stream before the capture, which CUDA graphs require.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(max(1, warmup)):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()

    def replay() -> None:
        graph.replay()

    return replay


def measure_graph(function: Work, *, repeats: int = 20, warmup: int = 3, replays: int = 20) -> Timing:
    """Time one replay of a function captured as a CUDA graph.

    A run has `replays` of them, because a single replay may be shorter than the resolution of an event.
    """
    replay = capture_graph(function, warmup=warmup)
    return measure(replay, device=torch.device("cuda"), repeats=repeats, warmup=warmup, inner=replays)


def peak_memory(function: Work, device: torch.device) -> int | None:
    """Return the peak memory of one call in bytes, above what is in use before it.

    On a GPU these are the bytes that torch allocates. On the CPU it is the resident memory of the process, from the
    kernel's high-water mark. Free heap is returned to the system first, so a first and a later call count alike.

    Args:
        function: Callable to run once.
        device: Device of its memory.

    Returns:
        Bytes; None on the CPU of a system without a high-water mark (any except Linux).
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    if not _reset_high_water_mark():
        return None
    before = _status_bytes("VmRSS")
    function()
    return max(0, _status_bytes("VmHWM") - before)


def kernel_timings(work: Work, *, repeats: int, within: Callable[[str], bool] = lambda name: True) -> dict[str, Timing]:
    """Time the kernels that a function launches on the current GPU.

    Gaps and launches do not count.

    Args:
        work: Callable to profile. It runs once before, so compilation is not measured.
        repeats: Number of runs, each the mean over several calls.
        within: Selects kernels by name.

    Returns:
        Kernel name to the seconds in one call of `work`, in order of first launch.
    """
    from torch.profiler import ProfilerActivity, profile

    work()
    runs: dict[str, list[float]] = defaultdict(list)
    for _ in range(repeats):
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for _ in range(_CALLS_PER_PROFILE):
                work()
            torch.cuda.synchronize()
        total: dict[str, float] = defaultdict(float)
        for event in profiler.events() or ():
            if event.device_type.name == "CUDA" and within(event.name):
                total[event.name] += event.device_time_total * 1e-6 / _CALLS_PER_PROFILE
        for name, seconds in total.items():
            runs[name].append(seconds)
    return {name: Timing(tuple(seconds)) for name, seconds in runs.items()}


def _once_cpu(function: Work, inner: int) -> float:
    started = time.perf_counter()
    for _ in range(inner):
        function()
    return time.perf_counter() - started


def _once_cuda(function: Work, inner: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    start.record()
    for _ in range(inner):
        function()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _reset_high_water_mark() -> bool:
    """Return free heap to the system and reset the process's peak memory.

    The result is false if the system does not support it.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library: its free heap counts as in use
        ctypes.CDLL(None).malloc_trim(0)
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True


def _status_bytes(key: str) -> int:
    """Return an entry of the process's status, in bytes."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(key)
