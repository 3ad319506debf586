"""Rows of NumPy files: equal to those of NumPy, from many threads, and an error where a file is damaged."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from winnow.array_file import ArrayFile, write_array_header
from winnow.errors import DataError


@pytest.fixture(params=["preadv", "seek"])
def reads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read with and without `os.preadv`, which Windows does not have."""
    if request.param == "seek":
        monkeypatch.delattr(os, "preadv", raising=False)


@pytest.mark.usefixtures("reads")
@pytest.mark.parametrize("shape", [(5000, 3), (40, 2, 700), (6,), (0, 4), (3, 0)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64])
def test_rows_are_those_of_the_array(tmp_path: Path, shape: tuple[int, ...], dtype: type) -> None:
    values = np.random.default_rng(0).normal(0, 100, shape).astype(dtype)
    path = tmp_path / "a.npy"
    np.save(path, values)
    array = ArrayFile(path)
    assert (array.shape, array.dtype, array.nbytes, len(array)) == (shape, dtype, values.nbytes, len(values))
    for rows in (slice(None), slice(2, 5), slice(3, 3), slice(-2, 9999), slice(None, None, 2), slice(4, 1, -1)):
        assert np.array_equal(array[rows], values[rows])
        assert array[rows].dtype == dtype
    if len(values):
        chosen = np.random.default_rng(1).integers(0, len(values), (7, 4))
        for index in (chosen, chosen[0], np.zeros(0, np.int64), len(values) - 1, [0]):
            assert np.array_equal(array[index], values[np.asarray(index, dtype=np.int64)])
    for index in (len(values), -1):
        with pytest.raises(IndexError, match="expected rows 0 to"):
            array[index]


def test_a_header_and_rows_are_a_file_of_numpy(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float16).reshape(4, 3)
    with open(tmp_path / "a.npy", "wb") as file:
        write_array_header(file, np.float16, (4, 3))
        file.write(values.tobytes())
    np.save(tmp_path / "b.npy", values)
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()


@pytest.mark.usefixtures("reads")
def test_many_threads_read_one_file(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(20_000, 8)).astype(np.float32)
    np.save(tmp_path / "a.npy", values)
    array = ArrayFile(tmp_path / "a.npy")

    def is_right(seed: int) -> bool:
        rows = np.random.default_rng(seed).integers(0, len(values), 300)
        return np.array_equal(array[rows], values[rows]) and np.array_equal(array[seed:9000], values[seed:9000])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(is_right, range(200)))


@pytest.mark.usefixtures("reads")
def test_a_file_that_is_cut_short_or_gone_while_it_is_open(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
    path = tmp_path / "a.npy"
    np.save(path, values)
    content = path.read_bytes()
    array = ArrayFile(path, remedy="Do this.")
    for length in (0, 100, len(content) - 1):
        os.truncate(path, length)
        assert not array.is_whole()
        for call in (array.check_length, lambda: array[:], lambda: array[[0, 299]]):
            with pytest.raises(DataError, match=r"a\.npy: file was cut short.*Do this\."):
                call()
        with pytest.raises(ValueError, match=r"fewer|magic|header|EOF"):
            ArrayFile(path)
        path.write_bytes(content)
        assert np.array_equal(array[:], values)
    path.unlink()
    assert np.array_equal(array[5:7], values[5:7])


@pytest.mark.parametrize("shape", ["(10**30,)", "(3, 10**30)", "(-1, 8)", "(3.0, 2)", "3", "()", "(" * 200])
def test_headers_of_impossible_shapes_are_rejected(tmp_path: Path, shape: str) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 2), np.float32))
    content = (tmp_path / "a.npy").read_bytes()
    shape = shape.replace("10**30", str(10**30))
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(246) + b"\n"
    (tmp_path / "a.npy").write_bytes(content[:8] + len(header).to_bytes(2, "little") + header + bytes(24))
    with pytest.raises(ValueError, match=r"shape|header|fewer"):
        ArrayFile(tmp_path / "a.npy")


@pytest.mark.parametrize("values", [np.array([None, 1]), np.float32(1), np.asfortranarray(np.ones((3, 2)))])
def test_other_arrays_are_rejected(tmp_path: Path, values: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", values)
    with pytest.raises(ValueError, match="expected rows of numbers in C order"):
        ArrayFile(tmp_path / "a.npy")
