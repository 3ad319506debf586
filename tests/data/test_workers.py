"""How many decode: by the cores this process may use and the images there are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from winnow.data import workers
from winnow.data.workers import EACH, MANY, THREADS, cores, processes_for, threads_for


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 64 cores whose control groups are files in a folder."""
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(64)), raising=False)
    monkeypatch.setattr(workers, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(workers, "_OWN_GROUPS", tmp_path / "own")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_cores_where_nothing_limits_them(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cores() == 64
    write(machine / "own", "0::/\n")
    assert cores() == 64
    write(machine / "groups" / "cpu.max", "max 100000\n")
    assert cores() == 64
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {3, 5})
    assert cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert cores() == 12
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores() == 1


def test_a_container_gives_a_share_of_time(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(machine / "own", "0::/slice/job\n")
    write(machine / "groups" / "slice" / "job" / "cpu.max", "max 100000\n")
    write(machine / "groups" / "slice" / "cpu.max", "250000 100000\n")  # a limit above it holds too
    assert cores() == 3
    write(machine / "groups" / "slice" / "job" / "cpu.max", "150000 100000\n")
    assert cores() == 2
    write(machine / "groups" / "slice" / "job" / "cpu.max", "10000 100000\n")
    assert cores() == 1
    write(machine / "groups" / "slice" / "job" / "cpu.max", "nonsense")
    assert cores() == 3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert cores() == 1


def test_groups_of_the_first_version(machine: Path) -> None:
    write(machine / "own", "9:name=systemd:/\n4:memory:/a\n2:cpu,cpuacct:/job\n0::/\n")
    assert cores() == 64
    group = machine / "groups" / "cpu" / "job"
    write(group / "cpu.cfs_period_us", "50000\n")
    write(group / "cpu.cfs_quota_us", "-1\n")
    assert cores() == 64
    write(group / "cpu.cfs_quota_us", "200000\n")
    assert cores() == 4


def test_the_processes_of_torchrun_share_the_cores(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert cores() == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "100")
    assert cores() == 1


def test_there_are_never_more_than_cores_or_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "cores", lambda: 64)
    assert processes_for(10**6) == 64
    assert processes_for(MANY) == MANY // EACH
    assert processes_for(MANY - 1) == 0
    assert processes_for(10**6, wanted=False) == 0
    assert processes_for(10**6, 1000) == 64
    assert processes_for(5, 1000, wanted=True) == 5
    assert processes_for(5, wanted=True) == 1
    assert processes_for(0, wanted=True) == 1
    assert threads_for(10**6) == THREADS
    assert threads_for(10**6, 16) == 16  # on a slow disk threads mostly wait
    assert threads_for(3) == threads_for(3, 16) == 3
    assert threads_for(0) == 1
    monkeypatch.setattr(workers, "cores", lambda: 1)
    assert processes_for(10**6) == 0
    assert processes_for(10**6, 8, wanted=True) == 1
    assert threads_for(10**6) == 1
