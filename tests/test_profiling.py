"""Timing, memory, and kernels: counts, order, medians. No test depends on the speed of the machine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from winnow.errors import ConfigError
from winnow.profiling import Timing, kernel_timings, measure, measure_all, peak_memory, pick_device

CPU = torch.device("cpu")


def test_a_disturbed_run_does_not_move_the_median() -> None:
    timing = Timing((1.0, 2.0, 900.0))
    assert (timing.median, timing.lowest, timing.highest, timing.runs) == (2.0, 1.0, 900.0, 3)
    assert timing.divided_by(4).seconds == (0.25, 0.5, 225.0)


def test_warm_up_does_not_count_and_inner_calls_are_divided_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    calls = []

    def work() -> None:
        calls.append(1)
        clock[0] += 100.0 if len(calls) <= 2 else 3.0

    monkeypatch.setattr("winnow.profiling.time.perf_counter", lambda: clock[0])
    timing = measure(work, device=CPU, repeats=4, warmup=2, inner=5)
    assert timing.seconds == (3.0,) * 4
    assert len(calls) == 2 + 4 * 5


def test_functions_run_round_robin() -> None:
    order: list[str] = []
    functions = {name: (lambda name=name: order.append(name)) for name in "abc"}
    timings = measure_all(functions, device=CPU, repeats=2, warmup=1)
    assert "".join(order) == "abc" + "abc" + "abc"
    assert {name: timing.runs for name, timing in timings.items()} == {"a": 2, "b": 2, "c": 2}


def test_peak_memory_sees_what_is_freed_again() -> None:
    size = 200 * 2**20
    peak = peak_memory(lambda: torch.ones(size // 4).sum().item(), CPU)
    if peak is None:
        pytest.skip("this system keeps no peak of resident memory")
    assert 0.95 * size < peak < 1.3 * size  # the kernel counts in batches
    assert (peak_memory(lambda: None, CPU) or 0) < size // 10


def test_devices_by_name() -> None:
    assert pick_device("cpu") == CPU
    with pytest.raises(ConfigError, match="tpu"):
        pick_device("tpu")
    if not torch.cuda.is_available():
        assert pick_device("auto") == CPU
        with pytest.raises(ConfigError, match="no CUDA device"):
            pick_device("cuda")


def event(kind: str, name: str, microseconds: float) -> SimpleNamespace:
    return SimpleNamespace(device_type=SimpleNamespace(name=kind), name=name, device_time_total=microseconds)


def test_kernels_are_summed_by_name_and_divided_by_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [
        event("CUDA", "a_kernel", 30.0),
        event("CPU", "a_kernel", 999.0),
        event("CUDA", "fill", 5.0),
    ]
    events += [event("CUDA", "b_kernel", 7.0), event("CUDA", "a_kernel", 10.0)]

    class Profile:
        def __init__(self, activities: object) -> None: ...
        def __enter__(self) -> Profile:
            return self

        def __exit__(self, *error: object) -> None: ...
        def events(self) -> list[SimpleNamespace]:
            return events

    monkeypatch.setattr("torch.profiler.profile", Profile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    calls: list[int] = []
    found = kernel_timings(lambda: calls.append(1), repeats=2, within=lambda name: name.endswith("_kernel"))
    assert list(found) == ["a_kernel", "b_kernel"]
    assert found["a_kernel"].seconds == pytest.approx([4e-6, 4e-6])
    assert found["b_kernel"].seconds == pytest.approx([0.7e-6, 0.7e-6])
    assert len(calls) == 1 + 2 * 10
