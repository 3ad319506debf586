"""How long something takes: warmed up, repeated, and rivals in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from winnow.errors import ConfigError

Work = Callable[[], object]
"""Something to time; what it returns is dropped."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, measured several times.

    Attributes:
        seconds: One entry for every run, in order.
    """

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle of the runs, which a single disturbed one does not move."""
        return statistics.median(self.seconds)

    @property
    def lowest(self) -> float:
        """The fastest run."""
        return min(self.seconds)

    @property
    def highest(self) -> float:
        """The slowest run."""
        return max(self.seconds)

    @property
    def runs(self) -> int:
        """How many runs there were."""
        return len(self.seconds)


def pick_device(name: str) -> torch.device:
    """Return the device of `auto`, `cpu` or `cuda`; `auto` takes a GPU where there is one.

    Raises:
        ConfigError: for another name, or `cuda` without a usable GPU.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"there is no device '{name}'; choose auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("torch sees no CUDA device; use --device cpu, or install a CUDA build of torch")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def measure(function: Work, *, device: torch.device, repeats: int = 20, warmup: int = 3, inner: int = 1) -> Timing:
    """Time a function: `warmup` calls that do not count, then `repeats` runs of `inner` calls each.

    On a GPU a run is what lies between two events on the current stream; a function that launches less work than the
    GPU could do in that time is therefore timed by its launches. On the CPU it is wall time. Caches are left as the
    previous run leaves them: whoever wants cold ones rotates the inputs inside `function`.

    Args:
        function: What to time.
        device: Where its work is done.
        repeats: Number of runs.
        warmup: Calls beforehand.
        inner: Calls within one run; the run is divided by it. For what is too short to be timed alone.

    Returns:
        Seconds of one call, run by run.
    """
    return measure_all({"": function}, device=device, repeats=repeats, warmup=warmup, inner=inner)[""]


def measure_all(
    functions: Mapping[str, Work], *, device: torch.device, repeats: int = 20, warmup: int = 3, inner: int = 1
) -> dict[str, Timing]:
    """Time rivals in turns, one run of each after the other, so that a drift of the machine meets them all alike.

    Args:
        functions: Name to what is timed.
        device: Where the work is done.
        repeats: Rounds, each with one run of every rival.
        warmup: Calls of every rival beforehand.
        inner: Calls within one run.

    Returns:
        Name to timing, in the order given.
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


def captured(function: Work, *, warmup: int = 3) -> Callable[[], None]:
    """Capture a function as a CUDA graph and return what replays it.

    Args:
        function: Work on the current CUDA device, of fixed shapes, without a host synchronisation.
        warmup: Calls on a side stream before the capture, as CUDA graphs need them.
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
    """Time one replay of a function captured as a CUDA graph, with `replays` of them in every run.

    Several replays stand between the events because a single one may be shorter than an event resolves.
    """
    replay = captured(function, warmup=warmup)
    return measure(replay, device=torch.device("cuda"), repeats=repeats, warmup=warmup, inner=replays)


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
