"""`winnow verify`: every checked file below a path, by name, and the exit codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.cli.conftest import Winnow
from winnow import Index
from winnow.integrity import SUMS, write_checked_text


def test_an_index_is_whole_until_a_file_changes(winnow: Winnow, tmp_path: Path) -> None:
    vectors = np.eye(4, dtype=np.float32)
    Index.build(vectors=vectors, names=list("abcd"), path=tmp_path / "i")
    said = winnow("verify", "i")
    assert said.code == 0, said.err
    assert {"vectors.npy", "ids.npy", "entries.sqlite", "index.json"} <= {
        Path(line.split()[-1]).name for line in said.out.splitlines()
    }
    np.save(tmp_path / "i" / "generation-000001" / "ids.npy", np.arange(1, 5))
    said = winnow("verify", "i")
    assert said.code == 4
    assert "ids.npy" in said.out
    assert said.out.count("ok:") == 2


def test_a_single_file_and_several_paths(winnow: Winnow, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_checked_text(tmp_path / name / "table.json", "{}")
    assert winnow("verify", "one/table.json", "two").code == 0
    (tmp_path / "two" / "table.json").unlink()
    said = winnow("verify", "one/table.json", "two")
    assert said.code == 4
    assert "missing" in said.out
    assert "1 damaged file" in said.err


def test_files_without_checksums_are_no_success(winnow: Winnow, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "result.json").write_text("{}")
    said = winnow("verify", "old")
    assert said.code == 3
    assert "checksum" in said.err
    assert winnow("verify", "nothing").code == 3
    assert not (tmp_path / "old" / SUMS).exists()
