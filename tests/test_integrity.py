"""Checksums: a flipped bit anywhere is found when a file is opened, and an interrupted write is harmless."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import TINY, MakeFolder
from tests.serve.samples import tiny_model
from winnow import Embedder, Index
from winnow.errors import DataError, ModelError, OutputError, WinnowError
from winnow.integrity import (
    SUMS,
    check_file,
    check_folder,
    file_digest,
    forget_checksum,
    read_checksums,
    write_checked,
    write_checked_text,
)
from winnow.models.factory import read_state_dict
from winnow.protocols.table import read_table
from winnow.training import RunDir, load_config, train
from winnow.training.sweep import read_plan, read_records

pytestmark = pytest.mark.filterwarnings("ignore:the backbone resnet20 starts from random weights")


def flip_bit(file: Path, rng: random.Random) -> None:
    """Flip one random bit of a file."""
    content = bytearray(file.read_bytes())
    position = rng.randrange(8 * len(content))
    content[position // 8] ^= 1 << position % 8
    file.write_bytes(bytes(content))


def test_checksums_are_those_of_the_system_command(tmp_path: Path) -> None:
    write_checked_text(tmp_path / "a.txt", "some text\n")
    write_checked_text(tmp_path / "b c.txt", "")
    assert subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=tmp_path, capture_output=True).returncode == 0
    assert check_file(tmp_path / "a.txt")
    assert [one.problem for one in check_folder(tmp_path)] == ["", ""]


def test_a_changed_file_is_refused_with_its_name(tmp_path: Path) -> None:
    write_checked_text(tmp_path / "a.txt", "some text\n")
    (tmp_path / "a.txt").write_text("some Text\n")
    with pytest.raises(DataError, match=r"a\.txt.*checksum.*Do this\."):
        check_file(tmp_path / "a.txt", error=DataError, remedy="Do this.")
    assert [bool(one.problem) for one in check_folder(tmp_path)] == [True]


def test_a_file_without_a_checksum_in_a_folder_with_some_is_refused(tmp_path: Path) -> None:
    write_checked_text(tmp_path / "a.txt", "a")
    (tmp_path / "b.txt").write_text("b")
    with pytest.raises(ModelError, match=r"b\.txt: no checksum"):
        check_file(tmp_path / "b.txt")


def test_the_rest_of_an_old_folder_is_adopted_with_the_first_checksum(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old")
    assert not check_file(tmp_path / "old.txt")  # no checksums at all
    write_checked_text(tmp_path / "new.txt", "new", adopt=["old.txt", "missing.txt"])
    assert check_file(tmp_path / "old.txt")
    assert set(read_checksums(tmp_path) or {}) == {"old.txt", "new.txt"}


@pytest.mark.parametrize("when", ["before the file is replaced", "after the file is replaced"])
def test_an_interrupted_write_leaves_a_file_that_opens(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checked_text(tmp_path / "a.txt", "first")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    if when.startswith("before"):
        monkeypatch.setattr("winnow.files.os.replace", _stop_at(tmp_path / "a.txt"))
    else:
        calls: list[Path] = []

        def once(folder: Path, known: object) -> None:
            calls.append(folder)
            if len(calls) == 2:
                raise KeyboardInterrupt
            original(folder, known)  # type: ignore[arg-type]

        from winnow import integrity

        original = integrity._write_checksums
        monkeypatch.setattr(integrity, "_write_checksums", once)
    with pytest.raises(KeyboardInterrupt):
        write_checked_text(tmp_path / "a.txt", "second")
    monkeypatch.undo()
    assert check_file(tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text() == ("first" if when.startswith("before") else "second")
    write_checked_text(tmp_path / "a.txt", "third")
    assert read_checksums(tmp_path) == {"a.txt": [file_digest(tmp_path / "a.txt")]}


def test_two_interrupted_writes_leave_a_file_that_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checked_text(tmp_path / "a.txt", "first")
    monkeypatch.setattr("winnow.files.os.replace", _stop_at(tmp_path / "a.txt"))
    for text in ("second", "third"):
        with pytest.raises(KeyboardInterrupt):
            write_checked_text(tmp_path / "a.txt", text)
    monkeypatch.undo()
    assert (tmp_path / "a.txt").read_text() == "first"
    assert check_file(tmp_path / "a.txt")


def _stop_at(path: Path) -> Callable[[Path, Path], None]:
    import os

    replace = os.replace

    def stop(source: Path, target: Path) -> None:
        if target == path:
            raise KeyboardInterrupt
        replace(source, target)

    return stop


def test_a_failed_write_leaves_the_checksum_of_the_earlier_file(tmp_path: Path) -> None:
    write_checked_text(tmp_path / "a.txt", "first")

    def fail(partial: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OutputError):
        write_checked(tmp_path / "a.txt", fail)
    assert check_file(tmp_path / "a.txt")


def test_a_removed_file_is_forgotten(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        write_checked_text(tmp_path / name, name)
    forget_checksum(tmp_path / "a.txt")
    assert set(read_checksums(tmp_path) or {}) == {"b.txt"}
    forget_checksum(tmp_path / "b.txt")
    assert read_checksums(tmp_path) is None


# --- What people save -------------------------------------------------------------------------------------------------


def make_photos(root: Path) -> Path:
    """Make a folder of eight classes of noise."""
    rng = np.random.default_rng(0)
    for label in range(8):
        (root / "photos" / f"class{label}").mkdir(parents=True)
        for number in range(4):
            pixels = rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / "photos" / f"class{label}" / f"{number}.png")
    return root / "photos"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, a model, and an index, made once."""
    root = tmp_path_factory.mktemp("saved")
    folder = make_photos(root)
    config = load_config(None, [f"data={folder}", *TINY, "train.device=cpu", "train.max_steps=2", "train.eval_steps=1",
                                "train.save_embeddings=true"])  # fmt: skip
    train(config, root / "run")
    model = Embedder.from_pretrained(root / "run")
    model.save_pretrained(root / "model")
    Index.build(model, folder, root / "index")
    return root


def open_run(root: Path) -> None:
    run = RunDir(root / "run")
    for file in (run.checkpoint_file, run.best_file):
        run.load(file)
    run.read_embeddings()
    run.read_images()
    run.read_config()
    run.read_history()
    Embedder.from_pretrained(run.model_folder)


def open_result(root: Path) -> None:
    RunDir(root / "run").check_finished()


def open_model(root: Path) -> None:
    Embedder.from_pretrained(root / "model")


def open_index(root: Path) -> None:
    Index.open(root / "index").verify()


OPENED = {
    "run/checkpoint.pt": open_run, "run/best.pt": open_run, "run/test.safetensors": open_run,
    "run/config.yaml": open_run, "run/log.jsonl": open_run, "run/result.json": open_result,
    "run/model/model.safetensors": open_run, "run/model/config.json": open_run,
    "model/model.safetensors": open_model, "model/config.json": open_model,
    "index/index.json": open_index, "index/generation-000001/vectors.npy": open_index,
    "index/generation-000001/ids.npy": open_index, "index/generation-000001/entries.sqlite": open_index,
    "index/model/model.safetensors": open_index, "index/model/config.json": open_index,
}  # fmt: skip
"""Files people rely on, and what opens them."""


@pytest.mark.parametrize("name", OPENED)
def test_a_flipped_bit_is_refused_with_the_files_name(name: str, saved: Path) -> None:
    rng, file = random.Random(name), saved / name
    whole = file.read_bytes()
    try:
        for _ in range(5):
            flip_bit(file, rng)
            with pytest.raises(WinnowError) as refused:
                OPENED[name](saved)
            assert file.name in str(refused.value)
            file.write_bytes(whole)
    finally:
        file.write_bytes(whole)
    OPENED[name](saved)


@pytest.mark.parametrize("folder", ["run", "model", "index/generation-000001"])
def test_a_flipped_bit_of_the_checksums_is_found(folder: str, saved: Path) -> None:
    rng, file = random.Random(folder), saved / folder / SUMS
    whole = file.read_bytes()
    try:
        for _ in range(10):
            flip_bit(file, rng)
            try:
                problems = [one.problem for one in check_folder(file.parent) if one.problem]
            except ModelError as error:
                problems = [str(error)]
            assert problems
            file.write_bytes(whole)
    finally:
        file.write_bytes(whole)


def test_a_short_file_of_vectors_is_refused(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved / "index", tmp_path / "index")
    (tmp_path / "index" / "generation-000001" / SUMS).unlink()  # as written by version 0.1.0
    vectors = tmp_path / "index" / "generation-000001" / "vectors.npy"
    vectors.write_bytes(vectors.read_bytes()[:-16])
    with pytest.raises(DataError, match=r"vectors\.npy"):
        Index.open(tmp_path / "index")


def test_a_row_of_nan_is_refused_without_checksums_too(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved / "index", tmp_path / "index")
    generation = tmp_path / "index" / "generation-000001"
    (generation / SUMS).unlink()
    vectors = np.load(generation / "vectors.npy")
    vectors[3, 2] = np.nan
    np.save(generation / "vectors.npy", vectors)
    with pytest.raises(DataError, match="row 3"):
        Index.open(tmp_path / "index").search(vectors[:1])


@pytest.mark.parametrize("wrong", ["ids", "type", "dim"])
def test_sizes_and_types_are_those_of_the_manifest(wrong: str, saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved / "index", tmp_path / "index")
    generation = tmp_path / "index" / "generation-000001"
    (generation / SUMS).unlink()
    ids, vectors = np.load(generation / "ids.npy"), np.load(generation / "vectors.npy")
    if wrong == "ids":
        np.save(generation / "ids.npy", ids[:-1])
    elif wrong == "type":
        np.save(generation / "vectors.npy", vectors.astype(np.float64))
    else:
        np.save(generation / "vectors.npy", vectors[:, :-1])
    with pytest.raises(DataError, match="expected"):
        Index.open(tmp_path / "index")


def test_a_large_file_is_verified_before_the_first_search(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("winnow.index.storage.LARGE", 10)
    shutil.copytree(saved / "index", tmp_path / "index")
    vectors = tmp_path / "index" / "generation-000001" / "vectors.npy"
    content = bytearray(vectors.read_bytes())
    content[-1] ^= 1
    vectors.write_bytes(bytes(content))
    index = Index.open(tmp_path / "index")  # a thread verifies
    with pytest.raises(DataError, match=r"vectors\.npy"):
        index.search(np.zeros((1, index.manifest.dim), dtype=np.float32))
    with pytest.raises(DataError, match=r"vectors\.npy"):
        index.entry(0)


def test_weights_that_are_not_finite_are_refused(saved: Path, tmp_path: Path) -> None:
    model = Embedder.from_pretrained(saved / "model")
    with torch.no_grad():
        next(model.head.parameters()).view(-1)[0] = float("nan")
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(ModelError, match="NaN"):
        Embedder.from_pretrained(tmp_path / "model")
    with pytest.raises(DataError, match="NaN"):
        Index.build(model, saved / "photos", tmp_path / "index")


def test_a_run_of_an_earlier_version_goes_on(saved: Path, tmp_path: Path, make_folder: MakeFolder) -> None:
    shutil.copytree(saved / "run", tmp_path / "run")
    (tmp_path / "run" / SUMS).unlink()
    (tmp_path / "run" / "result.json").unlink()
    run = RunDir(tmp_path / "run")
    train(run.read_config(), run, resume=True)
    assert {one.path.name for one in check_folder(run.path) if not one.problem} >= {"checkpoint.pt", "best.pt"}
    assert not [one.problem for one in check_folder(run.path) if one.problem]


def test_a_flipped_bit_of_a_plan_or_a_table_is_refused(tmp_path: Path) -> None:
    entries = "- folder: one\n  choices: {}\n  config: {}\n"
    write_checked_text(tmp_path / "plan.yaml", entries)
    write_checked_text(tmp_path / "table.json", '{"runs": []}')
    rng = random.Random(0)
    for name, read in (
        ("plan.yaml", lambda _: read_plan(tmp_path)),
        ("table.json", read_records),
        ("table.json", read_table),
    ):
        whole = (tmp_path / name).read_bytes()
        flip_bit(tmp_path / name, rng)
        with pytest.raises(WinnowError, match=rf"{re.escape(name)}: content does not match its checksum"):
            read(tmp_path / name)
        (tmp_path / name).write_bytes(whole)
    assert read_records(tmp_path / "table.json") == []
    (tmp_path / "old").mkdir()
    write_checked_text(tmp_path / "old" / "table.json", "{}")
    (tmp_path / "old" / "plan.yaml").write_text(entries)  # of a version without its checksum
    assert len(read_plan(tmp_path / "old")) == 1


RECORD = """
import sys
from pathlib import Path
from winnow.integrity import write_checked_text

for number in range(40):
    write_checked_text(Path(sys.argv[1]) / f"{sys.argv[2]}.txt", f"{sys.argv[2]} {number}")
"""


def test_processes_that_write_into_one_folder_keep_the_checksums_of_each_other(tmp_path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", RECORD, str(tmp_path), name]) for name in "abc"]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert [(one.path.name, one.problem) for one in check_folder(tmp_path)] == [(f"{name}.txt", "") for name in "abc"]


def test_weights_with_a_flipped_bit_are_refused_where_a_backbone_starts_from_them(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    assert read_state_dict(file)
    flip_bit(file, random.Random(0))
    with pytest.raises(ModelError, match=r"model\.safetensors.*checksum"):
        read_state_dict(file)
