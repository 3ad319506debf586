"""Kernel by kernel: what the profiler saw, added up by name and shared out over calls."""

from types import SimpleNamespace

import pytest
import torch

from winnow.bench import profile as module

Event = SimpleNamespace


def seen(kind: str, name: str, microseconds: float) -> Event:
    return Event(device_type=Event(name=kind), name=name, device_time_total=microseconds)


def test_kernels_are_added_up_by_name_and_shared_out_over_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [seen("CUDA", "a_kernel", 30.0), seen("CPU", "a_kernel", 999.0), seen("CUDA", "fill", 5.0)]
    events += [seen("CUDA", "b_kernel", 7.0), seen("CUDA", "a_kernel", 10.0)]

    class Profile:
        def __init__(self, activities: object) -> None: ...
        def __enter__(self) -> "Profile":
            return self

        def __exit__(self, *error: object) -> None: ...
        def events(self) -> list[Event]:
            return events

    monkeypatch.setattr(module, "profile", Profile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    calls: list[int] = []
    found = module.kernel_timings(lambda: calls.append(1), repeats=2, within=lambda name: name.endswith("_kernel"))
    assert list(found) == ["a_kernel", "b_kernel"]
    assert found["a_kernel"].seconds == pytest.approx([4e-6, 4e-6])
    assert found["b_kernel"].seconds == pytest.approx([0.7e-6, 0.7e-6])
    assert len(calls) == 1 + 2 * 10
