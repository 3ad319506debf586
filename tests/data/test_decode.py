"""Decoding by processes: the same pixels and errors as by threads, and a clear word when a process is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.conftest import Arrays
from winnow.data import ImageStore, UnreadableImageError, read_folder, workers
from winnow.data.decode import Decoder
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
    assert processes.by_processes
    assert not threads.by_processes
    indices = [4, 0, 2, 2, 1, 3, 0]
    found = list(processes.map(processes.read, indices))
    for a, b in zip(found, threads.map(threads.read, indices), strict=True):
        assert np.array_equal(a, b)
    for decoder in (threads, processes):
        decoder.close()


def test_a_store_of_many_images_decodes_by_processes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = read_folder(folder)
    expected = ImageStore(images, resize=8, cache="ram").gather(range(5))
    monkeypatch.setattr(workers, "MANY", 5)
    monkeypatch.setattr(workers, "cores", lambda: 2)
    for cache in ("ram", "none"):
        store = ImageStore(images, resize=8, cache=cache)
        assert store._decoder.by_processes
        for a, b in zip(store.gather(range(5)).images(), expected.images(), strict=True):
            assert a.equal(b)


def test_errors_come_across_whole(folder: Path) -> None:
    (folder / "a" / "1.png").write_text("broken")
    decoder = Decoder(read_folder(folder), 8, workers=1, processes=True)
    assert decoder.by_processes
    with pytest.raises(UnreadableImageError, match=r"1\.png cannot be read .*data\.on_error=skip") as caught:
        decoder.read(1)
    assert caught.value.reason == "it is not an image Pillow knows"
    assert decoder.read(0).shape == (8, 11, 3)  # it goes on
    decoder.close()


def test_a_set_that_needs_all_of_winnow_is_decoded_by_processes_too(noise) -> None:
    decoder = Decoder(Arrays([noise(8, 8)]), 8, workers=1, processes=True)
    assert decoder.by_processes
    assert np.array_equal(decoder.read(0), noise(8, 8))
    decoder.close()


def test_a_set_that_cannot_be_sent_is_decoded_by_threads(noise) -> None:
    images = Arrays([noise(8, 8)])
    images.extra = lambda: None  # type: ignore[attr-defined]
    decoder = Decoder(images, 8, workers=2, processes=True)
    assert not decoder.by_processes
    assert np.array_equal(decoder.read(0), noise(8, 8))
    decoder.close()


SCRIPT = """
import numpy as np
from PIL import Image
from winnow.data import ImageSet
from winnow.data.decode import Decoder

class Mine(ImageSet):
    labels, class_names = np.zeros(3, dtype=np.int64), ("a",)
    def name(self, index): return str(index)
    def identity(self, index): return str(index)
    def read(self, index): return Image.new("RGB", (8, 8))

decoder = Decoder(Mine(), 8, processes=True)
print(decoder.by_processes, decoder.read(1).shape)
"""


def test_a_script_without_a_main_guard_is_no_trap(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path("src").resolve())}
    run = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.stdout.split(None, 1) == ["False", "(8, 8, 3)\n"], run.stderr


def test_a_killed_process_is_told(folder: Path) -> None:
    decoder = Decoder(read_folder(folder), 8, workers=1, processes=True)
    assert decoder._crew is not None
    member = decoder._crew._idle.get()
    decoder._crew._idle.put(member)
    os.kill(member.pid, signal.SIGKILL)
    member.wait()
    with pytest.raises(WinnowError, match=r"was killed, perhaps because memory ran out"):
        decoder.read(0)
    decoder.close()


def test_closing_ends_the_processes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "cores", lambda: 2)
    decoder = Decoder(read_folder(folder), 8, workers=50, processes=True)
    assert decoder.count == 2
    assert decoder._crew is not None
    members = [decoder._crew._idle.get() for _ in range(2)]
    decoder.close()
    assert all(member.poll() is not None for member in members)
