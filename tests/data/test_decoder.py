"""Concurrent decoding: equal results of threads and processes, their number, and errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import winnow.data
from tests.data.conftest import Arrays
from winnow.data import Decoder, ImageCache, UnreadableImageError, available_cores, read_folder
from winnow.data import decoder as decoder_module
from winnow.data.decoder import (
    MAX_DEFAULT_THREADS,
    MIN_IMAGES_FOR_PROCESSES,
    MIN_IMAGES_PER_PROCESS,
    num_processes,
    num_threads,
)
from winnow.errors import WinnowError


@pytest.fixture
def folder(tmp_path: Path, noise) -> Path:
    for index, size in enumerate([(9, 13), (20, 8), (8, 8), (40, 24), (3, 50)]):
        (tmp_path / "a").mkdir(exist_ok=True)
        Image.fromarray(noise(*size, index)).save(tmp_path / "a" / f"{index}.png")
    return tmp_path


def test_processes_give_the_pixels_that_threads_give(folder: Path) -> None:
    images = read_folder(folder)
    threads, processes = (Decoder(images, 8, workers=2, processes=flag) for flag in (False, True))
    assert processes.uses_processes
    assert not threads.uses_processes
    indices = [4, 0, 2, 2, 1, 3, 0]
    found = list(processes.map(processes.read, indices))
    for a, b in zip(found, threads.map(threads.read, indices), strict=True):
        assert np.array_equal(a, b)
    for decoder in (threads, processes):
        decoder.close()


def test_processes_give_the_halved_copies_that_threads_give(tmp_path: Path, noise) -> None:
    (tmp_path / "a").mkdir()
    for index, size in enumerate([(90, 130), (20, 80)]):
        Image.fromarray(noise(*size, index)).save(tmp_path / "a" / f"{index}.png")
    images = read_folder(tmp_path)
    threads, processes = (Decoder(images, "original", workers=1, processes=flag) for flag in (False, True))
    for index, (height, width) in enumerate([(90, 130), (20, 80)]):
        (a, *sides), (b, *others) = threads.read_flat(index), processes.read_flat(index)
        assert np.array_equal(a, b)
        assert sides == others == [height, width]
        assert len(a) > 3 * height * width or index == 1  # the short side of the second is too small to halve
        assert np.array_equal(threads.read(index), np.asarray(images.read(index)))
    for decoder in (threads, processes):
        decoder.close()


def test_a_store_of_many_images_decodes_uses_processes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = read_folder(folder)
    expected = ImageCache(images, resize=8, cache="ram").gather(range(5))
    monkeypatch.setattr(decoder_module, "MIN_IMAGES_FOR_PROCESSES", 5)
    monkeypatch.setattr(decoder_module, "available_cores", lambda: 2)
    for cache in ("ram", "none"):
        store = ImageCache(images, resize=8, cache=cache)
        assert store._decoder.uses_processes
        for a, b in zip(store.gather(range(5)).images(), expected.images(), strict=True):
            assert a.equal(b)


def test_errors_of_a_process_reach_the_caller(folder: Path) -> None:
    (folder / "a" / "1.png").write_text("broken")
    decoder = Decoder(read_folder(folder), 8, workers=1, processes=True)
    assert decoder.uses_processes
    with pytest.raises(
        UnreadableImageError, match=r"1\.png: image cannot be read .*data.unreadable_images=skip"
    ) as caught:
        decoder.read(1)
    assert caught.value.reason == "not a supported image format"
    assert decoder.read(0).shape == (8, 11, 3)  # It continues after the error.
    decoder.close()


def test_a_set_that_needs_all_of_winnow_is_decoded_uses_processes_too(noise) -> None:
    decoder = Decoder(Arrays([noise(8, 8)]), 8, workers=1, processes=True)
    assert decoder.uses_processes
    assert np.array_equal(decoder.read(0), noise(8, 8))
    decoder.close()


def test_a_set_that_cannot_be_pickled_is_decoded_by_threads(noise) -> None:
    images = Arrays([noise(8, 8)])
    images.extra = lambda: None  # type: ignore[attr-defined]
    decoder = Decoder(images, 8, workers=2, processes=True)
    assert not decoder.uses_processes
    assert np.array_equal(decoder.read(0), noise(8, 8))
    decoder.close()


SCRIPT = """
import numpy as np
from PIL import Image
from winnow.data import ImageSet
from winnow.data.decoder import Decoder

class Mine(ImageSet):
    labels, class_names = np.zeros(3, dtype=np.int64), ("a",)
    def name(self, index): return str(index)
    def cache_key(self, index): return str(index)
    def read(self, index): return Image.new("RGB", (8, 8))

decoder = Decoder(Mine(), 8, processes=True)
print(decoder.uses_processes, decoder.read(1).shape)
"""


def test_a_set_of_a_script_without_a_main_guard_is_decoded_by_threads(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path("src").resolve())}
    run = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.stdout.split(None, 1) == ["False", "(8, 8, 3)\n"], run.stderr


def test_a_killed_process_is_an_error(folder: Path) -> None:
    decoder = Decoder(read_folder(folder), 8, workers=1, processes=True)
    assert decoder._processes is not None
    member = decoder._processes._idle.get()
    decoder._processes._idle.put(member)
    os.kill(member.pid, signal.SIGKILL)
    member.wait()
    with pytest.raises(WinnowError, match="was killed, perhaps for lack of memory"):
        decoder.read(0)
    decoder.close()


def test_closing_stops_the_processes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_module, "available_cores", lambda: 2)
    decoder = Decoder(read_folder(folder), 8, workers=50, processes=True)
    assert decoder.count == 2
    assert decoder._processes is not None
    members = [decoder._processes._idle.get() for _ in range(2)]
    decoder.close()
    assert all(member.poll() is not None for member in members)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate 64 cores, with control groups as files in a folder."""
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(64)), raising=False)
    monkeypatch.setattr(decoder_module, "_CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(decoder_module, "_PROCESS_CGROUPS", tmp_path / "own")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_cores_without_a_limit(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert available_cores() == 64
    write(machine / "own", "0::/\n")
    assert available_cores() == 64
    write(machine / "groups" / "cpu.max", "max 100000\n")
    assert available_cores() == 64
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {3, 5})
    assert available_cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert available_cores() == 12
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cores() == 1


def test_a_container_limits_the_cores(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(machine / "own", "0::/slice/job\n")
    write(machine / "groups" / "slice" / "job" / "cpu.max", "max 100000\n")
    write(machine / "groups" / "slice" / "cpu.max", "250000 100000\n")  # The limit of a parent group applies too.
    assert available_cores() == 3
    write(machine / "groups" / "slice" / "job" / "cpu.max", "150000 100000\n")
    assert available_cores() == 2
    write(machine / "groups" / "slice" / "job" / "cpu.max", "10000 100000\n")
    assert available_cores() == 1
    write(machine / "groups" / "slice" / "job" / "cpu.max", "nonsense")
    assert available_cores() == 3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert available_cores() == 1


def test_control_groups_of_version_1(machine: Path) -> None:
    write(machine / "own", "9:name=systemd:/\n4:memory:/a\n2:cpu,cpuacct:/job\n0::/\n")
    assert available_cores() == 64
    group = machine / "groups" / "cpu" / "job"
    write(group / "cpu.cfs_period_us", "50000\n")
    write(group / "cpu.cfs_quota_us", "-1\n")
    assert available_cores() == 64
    write(group / "cpu.cfs_quota_us", "200000\n")
    assert available_cores() == 4


def test_processes_of_torchrun_divide_the_cores(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert available_cores() == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "100")
    assert available_cores() == 1


def test_processes_never_exceed_cores_or_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_module, "available_cores", lambda: 64)
    assert num_processes(10**6) == 64
    assert num_processes(MIN_IMAGES_FOR_PROCESSES) == MIN_IMAGES_FOR_PROCESSES // MIN_IMAGES_PER_PROCESS
    assert num_processes(MIN_IMAGES_FOR_PROCESSES - 1) == 0
    assert num_processes(10**6, requested=False) == 0
    assert num_processes(10**6, 1000) == 64
    assert num_processes(5, 1000, requested=True) == 5
    assert num_processes(5, requested=True) == 1
    assert num_processes(0, requested=True) == 1
    assert num_threads(10**6) == MAX_DEFAULT_THREADS
    assert num_threads(10**6, 16) == 16  # Threads on a slow disk mostly wait.
    assert num_threads(3) == num_threads(3, 16) == 3
    assert num_threads(0) == 1
    monkeypatch.setattr(decoder_module, "available_cores", lambda: 1)
    assert num_processes(10**6) == 0
    assert num_processes(10**6, 8, requested=True) == 1
    assert num_threads(10**6) == 1


def test_a_decoder_process_loads_no_torch() -> None:
    code = (
        "import sys, winnow.data.datasets, winnow.data.decoder, winnow.data.emoji; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'scipy')))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path("src").resolve())}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


def test_all_public_names_can_be_imported() -> None:
    assert sorted(winnow.data.__all__) == dir(winnow.data)
    for name in winnow.data.__all__:
        assert getattr(winnow.data, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        winnow.data.Nothing  # noqa: B018
