"""Background writes of checkpoints: copies, the latest of several states, errors raised in the run."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from winnow.errors import OutputError
from winnow.files import write_atomically
from winnow.training import RunDir, ValidationEntry
from winnow.training.checkpoint import CheckpointWriter

GATE = threading.Event()


class FakeEvent:
    """Replaces a CUDA event; its copy is done when the gate is open."""

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        assert GATE.wait(10)


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckpointWriter:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    GATE.clear()
    return CheckpointWriter(RunDir(tmp_path), torch.device("cuda"))


def entry(step: int) -> ValidationEntry:
    return ValidationEntry.from_dict({"step": step})


def state(value: float) -> dict[str, Any]:
    return {"learner": {"w": torch.full((2,), value)}, "list": [torch.tensor(value)], "step": int(value)}


def test_writer_saves_the_state_at_the_time_of_put(writer: CheckpointWriter, tmp_path: Path) -> None:
    now = state(1.0)
    writer.put({"w": torch.ones(2)}, now, [entry(1)])
    assert writer.busy
    now["learner"]["w"].fill_(9.0)  # training goes on
    GATE.set()
    writer.wait()
    assert not writer.busy
    folder = RunDir(tmp_path)
    assert folder.load(folder.checkpoint_file)["learner"]["w"].tolist() == [1.0, 1.0]
    assert folder.load(folder.best_file)["w"].tolist() == [1.0, 1.0]
    assert folder.read_history() == [entry(1)]


def test_latest_waiting_state_is_written_with_the_best_weights(
    writer: CheckpointWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, written = RunDir(tmp_path), []
    plain = RunDir.save
    monkeypatch.setattr(RunDir, "save", lambda self, path, s: written.append(path.name) or plain(self, path, s))
    writer.put({"w": torch.zeros(1)}, state(1.0), [entry(1)])
    while writer._waiting is not None:  # the first is taken up, and waits for the gate
        pass
    writer.put({"w": torch.ones(1)}, state(2.0), [entry(2)])
    writer.put(None, state(3.0), [entry(3)])
    GATE.set()
    writer.wait()
    assert written == ["best.pt", "checkpoint.pt"] * 2
    assert folder.load(folder.checkpoint_file)["step"] == 3
    assert folder.load(folder.best_file)["w"].tolist() == [1.0]
    assert folder.read_history() == [entry(3)]


def test_failed_write_raises_at_the_next_call(writer: CheckpointWriter, tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").mkdir()  # nothing can be moved there
    GATE.set()
    writer.put(None, state(1.0), [])
    with pytest.raises(OutputError, match=r"checkpoint\.pt: file not written"):
        writer.wait()
    with pytest.raises(OutputError):
        writer.put(None, state(2.0), [])


def test_full_disk_raises_a_readable_error(tmp_path: Path) -> None:
    def cut_off(_: Path) -> None:
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 1088 vs 982")

    with pytest.raises(OutputError, match=r"best\.pt: file not written \(the file is incomplete, as on a full disk\)"):
        write_atomically(tmp_path / "best.pt", cut_off)


def test_read_only_disk_raises_a_readable_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(OutputError, match=r"table\.md: file not written \(Read-only file system\)"):
        write_atomically(tmp_path / "table.md", refused)


def test_written_files_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "model.safetensors", lambda partial: save_file({"w": torch.zeros(2)}, partial))
    finally:
        os.umask(before)
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o640


def test_failure_during_a_check_is_raised(writer: CheckpointWriter, tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").mkdir()
    writer.put(None, state(1.0), [])
    assert writer._writing is not None
    result = writer._writing.result

    class EndsNow:
        """A write that ends during the call of `done`."""

        def done(self) -> bool:
            GATE.set()
            result(timeout=10)
            return True

    writer._writing = EndsNow()  # type: ignore[assignment]
    with pytest.raises(OutputError):
        _ = writer.busy


def test_state_on_a_cpu_is_written_at_once(tmp_path: Path) -> None:
    folder = RunDir(tmp_path)
    CheckpointWriter(folder, torch.device("cpu")).put(None, state(1.0), [])
    assert folder.load(folder.checkpoint_file)["step"] == 1
    assert not folder.best_file.exists()
