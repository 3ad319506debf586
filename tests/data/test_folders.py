"""Links, special files, and odd names in folders of images."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from winnow.data import load_images, read_collection, read_folder, read_image, read_table
from winnow.errors import DataError
from winnow.files import open_regular, read_text
from winnow.training import load_config


@pytest.fixture
def make_special(tmp_path: Path):
    """Make a FIFO and a socket with image suffixes in a folder."""
    held = []

    def make(folder: Path) -> list[Path]:
        os.mkfifo(folder / "fifo.png")
        held.append(socket.socket(socket.AF_UNIX))
        here = os.open(".", os.O_RDONLY)
        os.chdir(folder)  # addresses of sockets are short
        held[-1].bind("socket.png")
        os.chdir(here)
        os.close(here)
        return [folder / "fifo.png", folder / "socket.png"]

    yield make
    for one in held:
        one.close()


def test_fifos_and_sockets_are_skipped_with_a_note(tmp_path: Path, write, make_special) -> None:
    write("c/a.png")
    make_special(tmp_path / "c")
    images = read_folder(tmp_path)
    assert images.paths == ("c/a.png",)
    assert "fifo.png" in images.notes[0]
    assert "socket.png" in images.notes[0]
    write("b.png")
    assert read_collection(tmp_path).notes == images.notes


def test_links_to_themselves_are_skipped_with_a_note(tmp_path: Path, write) -> None:
    write("c/a.png")
    (tmp_path / "c" / "self.png").symlink_to("self.png")
    (tmp_path / "c" / "one").symlink_to("two")
    (tmp_path / "c" / "two").symlink_to("one")
    (tmp_path / "c" / "up").symlink_to("..")
    images = read_folder(tmp_path)
    assert images.paths == ("c/a.png",)
    assert "self.png" in images.notes[0]
    assert len(read_collection(tmp_path)) == 1


def test_reading_a_special_file_is_an_error_and_never_waits(tmp_path: Path, make_special) -> None:
    (tmp_path / "link.png").symlink_to("/dev/zero")
    for path in (*make_special(tmp_path), tmp_path / "link.png", tmp_path):
        with pytest.raises(DataError, match=path.name):
            read_image(path)
        with pytest.raises(OSError, match=path.name):
            open_regular(path)
    (tmp_path / "config.yaml").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="not a regular file"):
        load_config(tmp_path / "config.yaml")
    (tmp_path / "set.csv").symlink_to("/dev/zero")
    with pytest.raises(DataError, match="not a regular file"):
        load_images(tmp_path / "set.csv")


def test_text_is_read_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("1234")
    assert read_text(path, max_bytes=4) == "1234"
    with pytest.raises(OSError, match="larger than 3 bytes"):
        read_text(path, max_bytes=3)


def test_a_file_that_links_repeat_counts_once(tmp_path: Path, write) -> None:
    write("c/a.png")
    write("d/b.png")
    (tmp_path / "c/again.png").symlink_to(tmp_path / "c/a.png")
    (tmp_path / "d/down").mkdir()
    (tmp_path / "d/down/up").symlink_to(tmp_path / "d")
    images = read_folder(tmp_path)
    assert images.paths == ("c/a.png", "d/b.png")
    assert "again.png" in images.notes[0]


@pytest.mark.parametrize("target", ["c/a.png", "c", "."])
def test_a_file_with_two_labels_is_an_error(tmp_path: Path, write, target: str) -> None:
    write("c/a.png")
    write("d/b.png")
    link = tmp_path / "d" / ("link.png" if target.endswith("png") else "link")
    link.symlink_to(tmp_path / target)
    with pytest.raises(DataError, match="two labels"):
        read_folder(tmp_path)
    write("loose.png")
    with pytest.raises(DataError, match="two labels"):
        read_collection(tmp_path)


def test_links_among_many_folders_end(tmp_path: Path, write) -> None:
    write("c/a.png")
    for one in range(12):  # paths without a repeated folder: more than 12!
        (tmp_path / f"c/{one}").mkdir()
        for other in range(12):
            (tmp_path / f"c/{one}/{other}").symlink_to(tmp_path / f"c/{other}")
    assert read_folder(tmp_path).paths == ("c/a.png",)


def test_rows_of_one_file_count_once_or_are_an_error(tmp_path: Path, write) -> None:
    write("im/a.png")
    (tmp_path / "b.png").symlink_to("im/a.png")
    table = tmp_path / "set.csv"
    for other in ("./im/a.png", "im/../im/a.png", "b.png", tmp_path / "im/a.png"):
        table.write_text(f"path,label,split\nim/a.png,x,train\n{other},x,train\n")
        images = read_table(table)
        assert (images.paths, images.original_split) == (("im/a.png",), ("train",))
        assert str(other) in images.notes[0]
        table.write_text(f"path,label\nim/a.png,x\n{other},y\n")
        with pytest.raises(DataError, match="two labels"):
            read_table(table)


def test_depth_has_no_limit_of_recursion(tmp_path: Path, write) -> None:
    write("c/" + "d/" * 400 + "a.png")
    assert len(read_folder(tmp_path).paths) == 1
