"""Benchmarks measure what they say: counts, order, medians, memory. No test here depends on how fast a machine is."""

from __future__ import annotations

import pytest
import torch

from winnow.bench import Timing, measure, measure_all, peak_memory, pick_device
from winnow.errors import ConfigError

CPU = torch.device("cpu")


def test_a_disturbed_run_does_not_move_the_median() -> None:
    timing = Timing((1.0, 2.0, 900.0))
    assert (timing.median, timing.lowest, timing.highest, timing.runs) == (2.0, 1.0, 900.0, 3)


def test_warm_up_does_not_count_and_inner_calls_are_divided_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    calls = []

    def work() -> None:
        calls.append(1)
        clock[0] += 100.0 if len(calls) <= 2 else 3.0

    monkeypatch.setattr("winnow.bench.timing.time.perf_counter", lambda: clock[0])
    timing = measure(work, device=CPU, repeats=4, warmup=2, inner=5)
    assert timing.seconds == (3.0,) * 4
    assert len(calls) == 2 + 4 * 5


def test_rivals_take_turns() -> None:
    order: list[str] = []
    rivals = {name: (lambda name=name: order.append(name)) for name in "abc"}
    timings = measure_all(rivals, device=CPU, repeats=2, warmup=1)
    assert "".join(order) == "abc" + "abc" + "abc"
    assert {name: timing.runs for name, timing in timings.items()} == {"a": 2, "b": 2, "c": 2}


def test_peak_memory_sees_what_is_freed_again() -> None:
    size = 200 * 2**20
    peak = peak_memory(lambda: torch.ones(size // 4).sum().item(), CPU)
    if peak is None:
        pytest.skip("this system keeps no peak of resident memory")
    assert 0.95 * size < peak < 1.3 * size  # the kernel counts in batches
    assert (peak_memory(lambda: None, CPU) or 0) < size // 10


def test_devices_are_told() -> None:
    assert pick_device("cpu") == CPU
    with pytest.raises(ConfigError, match="auto, cpu or cuda"):
        pick_device("tpu")
    if not torch.cuda.is_available():
        assert pick_device("auto") == CPU
        with pytest.raises(ConfigError, match="--device cpu"):
            pick_device("cuda")
