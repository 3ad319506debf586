"""Full disks, reserved space, and mapped files that are cut short."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from winnow import Index
from winnow.errors import DataError, OutputError
from winnow.files import create_array, parse_json


@pytest.fixture
def vectors() -> np.ndarray:
    rows = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def build(vectors: np.ndarray, folder: Path) -> Index:
    return Index.build(vectors=vectors, names=[str(i) for i in range(len(vectors))], path=folder)


def no_fallocate(descriptor: int, offset: int, length: int) -> None:
    raise OSError(errno.EOPNOTSUPP, "not supported")


@pytest.mark.parametrize("shape", [(3, 2), (1,), (700, 500)])
@pytest.mark.parametrize("supported", [True, False])
def test_a_created_array_has_its_space_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], supported: bool
) -> None:
    if not supported:
        monkeypatch.setattr(os, "posix_fallocate", no_fallocate, raising=False)
    path = tmp_path / "a.npy"
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    array = create_array(path, np.float32, shape)
    assert not array.any()
    assert path.stat().st_blocks * 512 >= array.nbytes  # a sparse file has none of its blocks
    array[:] = values
    array.flush()
    assert np.array_equal(np.load(path), values)
    np.save(tmp_path / "b.npy", values)
    assert path.read_bytes() == (tmp_path / "b.npy").read_bytes()


def test_a_full_disk_is_an_error_and_leaves_the_index_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vectors: np.ndarray
) -> None:
    index = build(vectors, tmp_path / "index")
    before = sorted(path.name for path in (tmp_path / "index").rglob("*"))

    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
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
    os.truncate(file, 200)
    for call in (index.check, lambda: index.search(vectors[:2], k=3), lambda: index.vectors([1])):
        with pytest.raises(DataError, match=r"vectors\.npy: file was cut short"):
            call()
    with open(file, "r+b") as restored:
        restored.write(content)
    assert index.search(vectors[:2], k=1).ids[:, 0].tolist() == index.ids[:2].tolist()
    file.unlink()  # a change of the index removes the file, which stays mapped
    assert index.search(vectors[:2], k=1).ids[:, 0].tolist() == index.ids[:2].tolist()


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "", "{"])
def test_json_that_cannot_be_parsed_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"nested too deeply|line 1"):
        parse_json(text)
    assert parse_json('{"a": [1]}') == {"a": [1]}
