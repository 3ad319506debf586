"""Readers of folders and tables."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import MakeFolder
from winnow.data import load_images, read_folder, read_table
from winnow.data.image_set import natural_key
from winnow.data.splits import split_by_class
from winnow.errors import DataError


def error_text(source, path: Path) -> str:
    with pytest.raises(DataError) as caught:
        source(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_folder_of_class_folders(tmp_path: Path, write) -> None:
    for name in ("c10/b.png", "c2/x10.png", "c2/x9.png", "c2/deep/er/y.PNG", "c1/a.JPG"):
        write(name)
    (tmp_path / "c2/notes.txt").write_text("no image")
    (tmp_path / "c2/.hidden.png").touch()
    (tmp_path / ".cache").mkdir()
    images = read_folder(tmp_path)
    assert images.class_names == ("c1", "c2", "c10")
    assert images.paths == ("c1/a.JPG", "c2/x9.png", "c2/x10.png", "c2/deep/er/y.PNG", "c10/b.png")
    assert images.labels.tolist() == [0, 1, 1, 1, 2]
    assert images.original_split is None
    assert images.notes == ()
    assert images.read(1).size == (4, 3)
    assert images.path(1) == tmp_path / "c2/x9.png"


def test_natural_order_is_total() -> None:
    names = ["a10", "a2", "A2", "a02", "2", "b", "10"]
    assert sorted(names, key=natural_key) == ["2", "10", "A2", "a02", "a2", "a10", "b"]
    names.reverse()
    assert sorted(names, key=natural_key) == ["2", "10", "A2", "a02", "a2", "a10", "b"]


def test_cache_key_contains_size_and_modification_time(tmp_path: Path, write) -> None:
    path = write("c/a.png")
    images = read_folder(tmp_path)
    before, first = images.cache_key(0), images.fingerprint()
    assert read_folder(tmp_path).fingerprint() == first
    os.utime(path, ns=(1, 1))
    assert images.cache_key(0) != before
    assert images.fingerprint() != first
    path.unlink()
    assert images.cache_key(0) == "c/a.png:missing"


def test_skipped_folders_and_images_are_noted(tmp_path: Path, write) -> None:
    write("c/a.png")
    write("stray.png")
    (tmp_path / "empty").mkdir()
    images = read_folder(tmp_path)
    assert images.class_names == ("c",)
    assert len(images.notes) == 2
    assert "empty" in images.notes[0]
    assert "stray.png" in images.notes[1]


def test_link_loops_end_and_links_to_folders_are_followed(tmp_path: Path, write) -> None:
    write("elsewhere/b.png")
    write("set/c/a.png")
    (tmp_path / "set/c/loop").symlink_to(tmp_path / "set/c")
    (tmp_path / "set/d").symlink_to(tmp_path / "elsewhere")
    assert read_folder(tmp_path / "set").paths == ("c/a.png", "d/b.png")


def test_dangling_link_is_listed_and_reported_when_read(tmp_path: Path, write) -> None:
    write("c/a.png")
    (tmp_path / "c/gone.png").symlink_to(tmp_path / "nowhere.png")
    images = read_folder(tmp_path)
    assert images.paths == ("c/a.png", "c/gone.png")
    with pytest.raises(DataError, match="file not found"):
        images.read(1)


def test_missing_folder_suggests_a_similar_name(tmp_path: Path) -> None:
    (tmp_path / "flowers").mkdir()
    text = error_text(load_images, tmp_path / "flower")
    assert f"{tmp_path / 'flower'}: folder or file not found" in text
    assert "did you mean 'flowers'?" in text
    assert "did you mean" not in error_text(read_folder, tmp_path / "no/where")


def test_images_without_class_folders(tmp_path: Path, write) -> None:
    write("a.png")
    assert "Put the images of each class in a separate folder" in error_text(read_folder, tmp_path)


def test_no_images_at_all(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    assert f"{tmp_path}: no images found" in error_text(read_folder, tmp_path)


def test_file_where_a_folder_is_expected(tmp_path: Path, write) -> None:
    assert "got a file" in error_text(read_folder, write("a.png"))
    assert "neither a folder of class folders nor a .csv" in error_text(load_images, write("a.zip"))


def test_split_folders(tmp_path: Path, write) -> None:
    for name in ("Train/a/1.png", "Train/b/1.png", "valid/c/1.png", "test/d/1.png"):
        write(name)
    images = read_folder(tmp_path)
    found = dict(zip(images.paths, images.original_split or (), strict=True))
    assert found == {"Train/a/1.png": "train", "Train/b/1.png": "train", "valid/c/1.png": "val", "test/d/1.png": "test"}
    assert images.class_names == ("a", "b", "c", "d")


def test_train_can_be_a_class_of_vehicles(write, tmp_path: Path) -> None:
    for name in ("train/1.png", "test/1.png", "bus/1.png"):
        write(name)
    assert read_folder(tmp_path).class_names == ("bus", "test", "train")


def test_split_folders_with_extra_or_duplicate_folders(tmp_path: Path, write) -> None:
    for name in ("x/train/a/1.png", "x/test/b/1.png", "x/extra/c/1.png"):
        write(name)
    assert "next to the splits test, train: extra" in error_text(read_folder, tmp_path / "x")
    for name in ("y/train/a/1.png", "y/val/b/1.png", "y/valid/c/1.png"):
        write(name)
    assert "val and valid both mean val" in error_text(read_folder, tmp_path / "y")


def table(folder: Path, text: str, encoding: str = "utf-8") -> Path:
    path = folder / "set.csv"
    path.write_text(text, encoding=encoding)
    return path


def test_table(tmp_path: Path, write) -> None:
    write("im/a.png")
    absolute = write("other/b.png", color=(1, 2, 3))
    path = table(
        tmp_path,
        f"Path,size,label,split\nim/a.png,3,Müll,train\n\n{absolute},4,b 2,Validation\n",
        "utf-8-sig",
    )
    images = read_table(path)
    assert images.class_names == ("b 2", "Müll")
    assert images.labels.tolist() == [1, 0]
    assert images.original_split == ("train", "val")
    assert images.read(1).getpixel((0, 0)) == (1, 2, 3)


def test_table_without_splits(tmp_path: Path, write) -> None:
    write("a.png")
    assert read_table(table(tmp_path, "path,label\na.png,x\n")).original_split is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "empty file. Write path,label"),
        ("path,lable\na.png,x\n", "row 1: column 'label' not found"),
        ("path,label\n", "no images listed"),
        ("path,label\na.png,x\na.png\n", "row 3, column 'label': empty cell"),
        ("path,label\na.png,x\n,y\n", "row 3, column 'path': empty cell"),
        ("path,label,split\na.png,x,trian\n", "row 2, column 'split': unknown split 'trian'"),
        ("path,label\na.png,x\na.png,y\n", "row 3, column 'path': duplicate path 'a.png' (first in row 2)"),
        ('path,label\n"a.png,x\n', "cannot be read as CSV"),
    ],
)
def test_table_errors_name_file_row_and_column(tmp_path: Path, write, text: str, expected: str) -> None:
    write("a.png")
    path = table(tmp_path, text)
    message = error_text(read_table, path)
    assert expected in message
    assert str(path) in message


def test_table_names_missing_files(tmp_path: Path) -> None:
    rows = "".join(f"gone{i}.png,x\n" for i in range(5))
    message = error_text(read_table, table(tmp_path, "path,label\n" + rows))
    assert "gone0.png, gone1.png, gone2.png, ... (5 in all)" in message
    assert "data.unreadable_images=skip" in message


def test_missing_files_of_a_table_are_skipped_on_request(tmp_path: Path, write) -> None:
    write("a.png")
    write("c.png")
    rows = "path,label,split\na.png,x,train\ngone.png,y,val\nc.png,z,test\n"
    images = read_table(table(tmp_path, rows), on_missing="skip")
    assert (images.paths, images.class_names, images.original_split) == (
        ("a.png", "c.png"),
        ("x", "z"),
        ("train", "test"),
    )
    assert "gone.png" in images.notes[0]
    with pytest.raises(DataError, match=r"gone\.png"):  # a table of nothing but missing files has a wrong folder
        read_table(table(tmp_path, "path,label\ngone.png,y\n"), on_missing="skip")


def test_table_of_another_encoding(tmp_path: Path) -> None:
    assert "not UTF-8" in error_text(read_table, table(tmp_path, "path,label\nä.png,x\n", "latin-1"))


def test_class_folders_one_level_too_deep_are_noted(make_folder: MakeFolder, tmp_path: Path) -> None:
    (tmp_path / "outer").mkdir()
    inner = make_folder().rename(tmp_path / "outer" / "birds")
    (note,) = read_folder(tmp_path / "outer").notes
    assert f"data={inner}" in note
    with pytest.raises(DataError, match=f"1 class .*data={re.escape(str(inner))}"):
        split_by_class(read_folder(tmp_path / "outer"))
    shutil.copytree(inner, tmp_path / "outer" / "trees")
    (note,) = read_folder(tmp_path / "outer").notes
    assert "birds, trees" in note
    assert f"move them up into {tmp_path / 'outer'}" in note
    assert read_folder(inner).notes == ()


def test_images_in_one_subfolder_or_beside_it_are_one_class(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder()
    first, second = sorted(folder.iterdir())[:2]
    (first / "only").mkdir()
    for path in list(first.glob("*.png")):
        path.rename(first / "only" / path.name)
    for name in ("a", "b"):
        (second / name).mkdir()
        shutil.copy(next(second.glob("*.png")), second / name / "one.png")
    assert read_folder(folder).notes == ()
