"""Where a GPU's time goes, kernel by kernel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from winnow.bench.timing import Timing, Work

_AVERAGED = 10


def kernel_timings(work: Work, *, repeats: int, within: Callable[[str], bool] = lambda name: True) -> dict[str, Timing]:
    """Time the kernels that some work launches on the current GPU, as the GPU sees them: without gaps and launches.

    Args:
        work: Called once before, so that nothing is compiled while it is looked at.
        repeats: Runs of each kernel that are told apart; each is the mean over some calls of `work`.
        within: Which kernels to keep, by their name.

    Returns:
        Kernel name to the seconds it takes in one call of `work`, in the order of their first launch.
    """
    work()
    runs: dict[str, list[float]] = defaultdict(list)
    for _ in range(repeats):
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            for _ in range(_AVERAGED):
                work()
            torch.cuda.synchronize()
        total: dict[str, float] = defaultdict(float)
        for event in seen.events() or ():
            if event.device_type.name == "CUDA" and within(event.name):
                total[event.name] += event.device_time_total * 1e-6 / _AVERAGED
        for name, seconds in total.items():
            runs[name].append(seconds)
    return {name: Timing(tuple(seconds)) for name, seconds in runs.items()}
