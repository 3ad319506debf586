"""Full disks, and files of an index that are cut short."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from winnow import Index
from winnow.errors import DataError, OutputError
from winnow.files import parse_json, write_text


@pytest.fixture
def vectors() -> np.ndarray:
    rows = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def build(vectors: np.ndarray, folder: Path) -> Index:
    return Index.build(vectors=vectors, names=[str(i) for i in range(len(vectors))], path=folder)


def test_a_full_disk_is_an_error_and_leaves_the_index_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vectors: np.ndarray
) -> None:
    index = build(vectors, tmp_path / "index")
    before = sorted(path.name for path in (tmp_path / "index").rglob("*"))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("winnow.index.update.write_array_header", full)
    with pytest.raises(OutputError, match="No space left on device"):
        build(vectors, tmp_path / "other")
    with pytest.raises(OutputError, match="No space left on device"):
        index.remove(["3"])
    assert sorted(path.name for path in (tmp_path / "index").rglob("*")) == before
    assert len(Index.open(tmp_path / "index")) == len(vectors)


def test_a_file_that_is_cut_short_ends_a_search_and_not_the_process(tmp_path: Path, vectors: np.ndarray) -> None:
    index = build(vectors, tmp_path / "index")
    assert index.check()
    file = next((tmp_path / "index").rglob("vectors.npy"))
    content = file.read_bytes()
    os.truncate(file, 100)
    for call in (index.check, lambda: index.search(vectors[:2], k=3), lambda: index.vectors([1])):
        with pytest.raises(DataError, match=r"vectors\.npy: file was cut short"):
            call()
    with open(file, "r+b") as restored:
        restored.write(content)
    assert index.search(vectors[:2], k=1).ids[:, 0].tolist() == index.ids[:2].tolist()
    file.unlink()  # a change of the index removes the file, which stays open
    assert index.search(vectors[:2], k=1).ids[:, 0].tolist() == index.ids[:2].tolist()


CUT_DURING_SEARCH = """
import os, random, sys, threading, time
import numpy as np
from winnow import Index
from winnow.errors import DataError

index = Index.open(sys.argv[1])
(file,) = index.path.rglob("vectors.npy")
content = file.read_bytes()
queries = index.vectors(index.ids[:4])
expected = index.search(queries, 5).ids
ended = threading.Event()

def cut_and_restore():
    pauses = random.Random(0)
    with open(file, "r+b") as target:
        while not ended.wait(pauses.uniform(0, 0.02)):
            os.ftruncate(target.fileno(), 4096)
            time.sleep(pauses.uniform(0, 0.02))
            target.seek(4096)
            target.write(content[4096:])
            target.flush()

thread = threading.Thread(target=cut_and_restore)
thread.start()
outcomes = {"found": 0, "failed": 0}
while min(outcomes.values()) < 10 and sum(outcomes.values()) < 5000:
    try:
        assert (index.search(queries, 5).ids == expected).all()
        outcomes["found"] += 1
    except DataError:
        outcomes["failed"] += 1
ended.set()
thread.join()
print(outcomes["failed"])
"""


def test_a_file_that_is_cut_short_during_a_search_does_not_end_the_process(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(20_000, 64)).astype(np.float32)
    build(vectors, tmp_path / "index")
    ended = subprocess.run(
        [sys.executable, "-c", CUT_DURING_SEARCH, str(tmp_path / "index")], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr  # -7 is SIGBUS, which reading a mapped file ends in
    assert int(ended.stdout) >= 10


def test_entries_that_were_cut_short_are_read_again_after_they_are_restored(
    tmp_path: Path, vectors: np.ndarray
) -> None:
    index = build(vectors, tmp_path / "index")
    opened = Index.open(index.path)
    (file,) = index.path.rglob("entries.sqlite")
    content = file.read_bytes()
    for length in (0, 4096, len(content) // 2):
        os.truncate(file, length)
        for call in (opened.check, lambda: opened.entry(299), lambda: opened.labels):
            with pytest.raises(DataError, match=r"entries\.sqlite"):
                call()
        file.write_bytes(content)
        assert opened.check()
        assert opened.entry(299) == index.entry(299)
        assert opened.labels == index.labels


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "", "{"])
def test_json_that_cannot_be_parsed_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"nested too deeply|line 1"):
        parse_json(text)
    assert parse_json('{"a": [1]}') == {"a": [1]}


def test_a_special_file_is_never_replaced(tmp_path: Path) -> None:
    fifo, link = tmp_path / "fifo", tmp_path / "link"
    os.mkfifo(fifo)
    link.symlink_to(fifo)
    for path in (fifo, link):
        with pytest.raises(OutputError, match=f"{path.name}: not a regular file"):
            write_text(path, "text")
        assert fifo.is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "link"]
