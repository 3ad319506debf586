"""A run resumes with exactly its images, or names what changed."""

from __future__ import annotations

import gzip
import os
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import TINY, MakeFolder
from winnow.data import ArrayImages, Splits, load_images, split_by_class
from winnow.errors import DataError, ModelError
from winnow.training import RunDir, load_config, train
from winnow.training.data_record import EARLIER_HEADER, HEADER, DataRecord
from winnow.training.results import RunResult

pytestmark = pytest.mark.filterwarnings("ignore:the backbone resnet20 starts from random weights")


def record(folder: Path, **settings: str) -> DataRecord:
    return DataRecord.of(split_by_class(load_images(folder)), **settings)  # type: ignore[arg-type]


def test_a_record_is_written_and_read(make_folder: MakeFolder, tmp_path: Path) -> None:
    before = record(make_folder())
    before.write(tmp_path / "data.csv.gz")
    again = DataRecord.read(tmp_path / "data.csv.gz")
    assert again == before
    assert again.digest() == before.digest()
    assert len(before.images) == 32
    assert {split for split, _ in before.images} == {"train", "val", "test"}
    (tmp_path / "data.csv.gz").write_bytes((tmp_path / "data.csv.gz").read_bytes()[:-20])
    with pytest.raises(ModelError, match=r"data\.csv\.gz"):
        DataRecord.read(tmp_path / "data.csv.gz")


@pytest.mark.parametrize("content", [b"", b"no gzip", gzip.compress(b"x" * 9)[:-9], b"\x1f\x8b\x08" + b"\xff" * 60])
def test_damage_of_any_kind_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "data.csv.gz").write_bytes(content)
    with pytest.raises(ModelError, match=r"data\.csv\.gz: file is damaged"):
        DataRecord.read(tmp_path / "data.csv.gz")


def test_a_record_that_would_fill_the_memory_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("winnow.training.data_record.MAX_TEXT_BYTES", 10_000)
    for size, problem in ((9_000, False), (2**24, True)):
        text = ",".join(HEADER) + "\n" + "train,a,b,1,1," + "0" * size + ",0\n"
        (tmp_path / "data.csv.gz").write_bytes(gzip.compress(text.encode()))
        with pytest.raises(ModelError) if problem else nullcontext():
            assert len(DataRecord.read(tmp_path / "data.csv.gz").images) == 1


def test_a_table_with_its_rows_in_another_order_is_refused(make_folder: MakeFolder, tmp_path: Path) -> None:
    rows = [f"{file},{file.parent.name}" for file in sorted(make_folder().rglob("*.png"))]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["path,label", *rows]) + "\n")
    before = record(table)
    assert before.changes(record(table)) == []
    rows[0], rows[1] = rows[1], rows[0]  # two images of one class: splits and classes stay as they are
    table.write_text("\n".join(["path,label", *rows]) + "\n")
    (clause,) = before.changes(record(table))
    assert clause.startswith("2 images at another position")
    unknown = DataRecord({key: replace(one, position=-1) for key, one in before.images.items()})
    unknown.write(tmp_path / "data.csv.gz")  # as earlier records are
    assert gzip.decompress((tmp_path / "data.csv.gz").read_bytes()).splitlines()[0] == b",".join(
        name.encode() for name in EARLIER_HEADER
    )
    assert DataRecord.read(tmp_path / "data.csv.gz") == unknown
    assert unknown.changes(record(table)) == []


def test_equal_images_are_no_change_even_as_a_copy_with_other_times(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder()
    before = record(folder)
    assert before.changes(record(folder)) == []
    shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)
    copy = record(tmp_path / "copy")
    assert copy.digest() != before.digest()  # other times
    assert before.changes(copy) == []
    assert before.check(copy, "run") == len(before.images)


@pytest.mark.parametrize("compare", ["ends", "contents"])
def test_every_change_is_named(compare: str, make_folder: MakeFolder) -> None:
    folder = make_folder()
    before = record(folder, compare=compare)
    files = sorted(folder.rglob("*.png"))
    files[0].unlink()
    shutil.copyfile(files[2], files[1])  # replaced
    shutil.copyfile(files[3], files[3].with_name("new.png"))
    text = "; ".join(before.changes(record(folder, compare=compare)))
    for kind, file in {"removed": files[0], "replaced": files[1], "added": files[3].with_name("new.png")}.items():
        assert f"1 images {kind}: {file.relative_to(folder).as_posix()}" in text


def test_contents_find_a_change_in_the_middle_of_a_file_of_equal_size(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in "abcdef":
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(2):
            pixels = rng.integers(0, 255, (100, 100, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.bmp")
    folder = tmp_path / "photos"
    states = {compare: record(folder, compare=compare) for compare in ("ends", "contents")}
    changed = folder / "a" / "0.bmp"
    content = bytearray(changed.read_bytes())
    content[len(content) // 2] ^= 1
    changed.write_bytes(bytes(content))
    assert not states["ends"].changes(record(folder))
    assert "a/0.bmp" in states["contents"].changes(record(folder, compare="contents"))[0]


def test_images_in_memory_are_compared_by_their_pixels() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (8, 4, 4), dtype=np.uint8)
    labels = np.repeat(np.arange(4), 2)

    def split(values: np.ndarray) -> Splits:
        images = ArrayImages(values, labels)
        return Splits(images.select_classes([0, 1]), images.select_classes([2, 3]), None)

    before = DataRecord.of(split(pixels))
    other = pixels.copy()
    other[5, 0, 0] ^= 1
    assert before.changes(DataRecord.of(split(pixels.copy()))) == []
    assert before.changes(DataRecord.of(split(other))) == ["1 images replaced: array[5]"]


@pytest.fixture
def started(make_folder: MakeFolder, tmp_path: Path) -> tuple[Path, RunDir]:
    """A run of two steps without its result, as if it had been killed after the last validation."""
    folder = make_folder()
    args = [f"data={folder}", *TINY, "train.device=cpu", "train.max_steps=2", "train.eval_steps=1"]
    run = RunDir(tmp_path / "run")
    train(load_config(None, args), run)
    run.result_file.unlink()
    return folder, run


def resume(run: RunDir) -> RunResult:
    return train(run.read_config(), run, resume=True)


def test_a_renamed_class_folder_is_refused_as_a_change_of_data(started: tuple[Path, RunDir]) -> None:
    folder, run = started
    first = sorted(folder.iterdir())[0]
    first.rename(first.with_name("zzz"))
    with pytest.raises(DataError, match=r"images changed.*removed.*Restore them"):
        resume(run)
    assert not run.result_file.exists()
    first.with_name("zzz").rename(first)
    assert resume(run).steps == 2


def test_a_replaced_image_is_refused_and_a_touched_one_is_not(started: tuple[Path, RunDir]) -> None:
    folder, run = started
    files = sorted(folder.rglob("*.png"))
    os.utime(files[0])
    assert resume(run).steps == 2
    shutil.copyfile(files[5], files[0])
    with pytest.raises(DataError, match="1 images replaced"):
        resume(run)


def test_a_run_of_version_0_1_0_goes_on_and_records_its_images(started: tuple[Path, RunDir]) -> None:
    _, run = started
    run.data_file.unlink()
    (run.path / "SHA256SUMS").unlink()
    resume(run)
    assert run.data_file.is_file()


def test_the_record_of_another_run_is_refused(started: tuple[Path, RunDir], tmp_path: Path) -> None:
    folder, run = started
    read = DataRecord.read(run.data_file)
    some = dict(list(read.images.items())[:-1])
    run.write_data(DataRecord(some))
    os.remove(folder / next(iter(sorted(set(read.images) - set(some))))[1])
    with pytest.raises((ModelError, DataError)):
        resume(run)
