"""Installation of datasets: safe archives, resumed downloads, checksums, and no partial folders."""

from __future__ import annotations

import hashlib
import io
import stat
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from tests.data import synthetic_datasets
from winnow.data.datasets import CUB200, InShop, Source, prepare_dataset
from winnow.data.datasets.download import copy_files, download, unpack
from winnow.errors import ConfigError, DataError

CONTENT = bytes(range(256)) * 8000  # 2 MB
RNG = np.random.default_rng(0)
SMALL = CUB200(train=6, test=6, classes=2)


def zipped(path: Path, members: dict[str, bytes], *, mode: int = 0) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, content)
    return path


def tarred(path: Path, members: dict[str, bytes], *, kind: bytes = tarfile.REGTYPE) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize("make", [zipped, tarred])
def test_an_archive_is_unpacked(tmp_path: Path, make) -> None:
    path = make(tmp_path / ("a.zip" if make is zipped else "a.tgz"), {"x/y.txt": b"1", "z.txt": b"22"})
    assert unpack(path, tmp_path / "out") == 2
    assert (tmp_path / "out/x/y.txt").read_bytes() == b"1"
    assert (tmp_path / "out/z.txt").read_bytes() == b"22"


@pytest.mark.parametrize("name", ["../out.txt", "/abs.txt", "x/../../out.txt", "C:\\out.txt", "x\\..\\..\\out.txt"])
@pytest.mark.parametrize("make", [zipped, tarred])
def test_paths_outside_the_folder_are_rejected(tmp_path: Path, make, name: str) -> None:
    path = make(tmp_path / ("a.zip" if make is zipped else "a.tgz"), {name: b"1"})
    with pytest.raises(DataError, match="leads out"):
        unpack(path, tmp_path / "deep" / "out")
    assert not list(tmp_path.rglob("*out.txt"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_rejected(tmp_path: Path, kind: bytes) -> None:
    with pytest.raises(DataError, match="link or a device"):
        unpack(tarred(tmp_path / "a.tgz", {"x": b""}, kind=kind), tmp_path / "out")
    linked = zipped(tmp_path / "a.zip", {"x": b"/etc/passwd"}, mode=stat.S_IFLNK | 0o777)
    with pytest.raises(DataError, match="link or a device"):
        unpack(linked, tmp_path / "out")
    assert not (tmp_path / "out" / "x").exists()


def test_too_many_bytes_or_files_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("big", b"\0" * (5 << 20))
    with pytest.raises(DataError, match="more than 1,000,000 bytes unpacked"):
        unpack(path, tmp_path / "out", max_bytes=1_000_000)
    with pytest.raises(DataError, match="more than 1 files"):
        unpack(zipped(tmp_path / "b.zip", {"a": b"", "b": b""}), tmp_path / "out", max_files=1)


def test_a_member_is_never_larger_than_it_declares(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("big", b"\0" * (5 << 20))
    content, size = path.read_bytes(), (5 << 20).to_bytes(4, "little")
    assert content.count(size) == 2  # In the header of the member and in the central directory.
    path.write_bytes(content.replace(size, (10).to_bytes(4, "little")))
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(path, tmp_path / "out")
    assert sum(file.stat().st_size for file in (tmp_path / "out").iterdir()) <= 10


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_damaged_archives_are_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"nonsense" * 100)
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(tmp_path / name, tmp_path / "out")


@pytest.mark.parametrize("kind", ["tar", "gz", "bz2", "xz"])
def test_truncated_or_damaged_tar_files_are_rejected(tmp_path: Path, kind: str) -> None:
    path, content = tmp_path / f"a.tar.{kind}".replace("tar.tar", "tar"), RNG.bytes(20_480)
    with tarfile.open(path, f"w:{kind}" if kind != "tar" else "w:") as bundle:
        for number in range(20):
            info = tarfile.TarInfo(f"{number}.jpg")
            info.size = len(content)
            bundle.addfile(info, io.BytesIO(content))
    whole = path.read_bytes()
    # Unpacked, ten members and their headers of 512 bytes end here, and nothing but the missing end tells that it is.
    half = 10 * (512 + 20_480) if kind == "tar" else len(whole) // 2
    harmed = bytes(byte ^ 90 for byte in whole[half : half + 64])  # of a plain file a header, all that has a checksum
    for packed in (whole[:half], whole[:half] + harmed + whole[half + 64 :]):
        path.write_bytes(packed)
        with pytest.raises(DataError, match=r"a\.tar.* cannot be unpacked"):
            unpack(path, tmp_path / "out")
    path.write_bytes(whole)
    assert unpack(path, tmp_path / "out") == 20


def test_a_dataset_is_installed_from_a_folder_or_archives(tmp_path: Path) -> None:
    source = tmp_path / "source"
    synthetic_datasets.cub(source)
    assert prepare_dataset(SMALL, tmp_path / "copied", source=source) == []
    archive = tmp_path / "whole.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for file in source.rglob("*"):
            packed.write(file, file.relative_to(source))
    assert prepare_dataset(SMALL, tmp_path / "unpacked", source=archive) == []
    parts = tmp_path / "parts"  # class folders in several archives, as a resized copy may come
    parts.mkdir()
    for label in (1, 2, 3, 4):
        with zipfile.ZipFile(parts / f"{label}.zip", "w") as packed:
            for file in (source / "CUB_200_2011" / "images").glob(f"{label:03d}*/*"):
                packed.write(file, f"{file.parent.name}/{file.name}")
    assert prepare_dataset(SMALL, tmp_path / "joined", source=parts) == []
    sets = [SMALL.load(tmp_path / place) for place in ("copied", "unpacked", "joined")]
    assert len({one.train.class_names for one in sets}) == 1
    assert {len(one.test) for one in sets} == {6}
    with pytest.raises(ConfigError, match="not empty"):
        prepare_dataset(SMALL, tmp_path / "joined", source=parts)


@pytest.mark.parametrize("whole", [False, True])
def test_a_folder_with_links_is_rejected(tmp_path: Path, whole: bool) -> None:
    synthetic_datasets.cub(tmp_path / "real")
    links = tmp_path / "links"
    if whole:
        links.mkdir()
        (links / "CUB_200_2011").symlink_to(tmp_path / "real/CUB_200_2011")
    else:
        for file in (tmp_path / "real").rglob("*.*"):
            if file.is_file():
                place = links / file.relative_to(tmp_path / "real")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(file)
    assert SMALL.check(links)[1] == []
    with pytest.raises(
        DataError, match=r"links: contains links \(CUB_200_2011.*not followed. Use the folder where it is"
    ):
        prepare_dataset(SMALL, tmp_path / "copy", source=links)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["links", "real"]


@pytest.mark.parametrize("kind", ["folder", "zip", "tar", "tgz"])
def test_progress_is_reported(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "made"
    noise = np.random.default_rng(0)
    for index in range(40):
        place = root / f"{index % 4}/{index}.bin"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(noise.bytes(5000))
    calls: list[tuple[int, int]] = []
    if kind == "folder":
        copy_files(root, tmp_path / "there", progress=lambda *state: calls.append(state))
        assert calls == [(count, 40) for count in range(1, 41)]
        return
    archive = tmp_path / f"made.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as packed:
            for path in sorted(root.rglob("*.bin")):
                packed.write(path, path.relative_to(root))
    else:
        with tarfile.open(archive, "w:gz" if kind == "tgz" else "w") as bundle:
            bundle.add(root, "made")
    assert unpack(archive, tmp_path / "there", progress=lambda *state: calls.append(state)) == 40
    size = archive.stat().st_size
    done = [state[0] for state in calls]
    assert done == sorted(done)
    assert {state[1] for state in calls} == {size}
    assert [state for state in done if state == size] == [size]  # a bar is taken away once
    assert done[-1] == size
    assert 0.3 * size < done[19] < 0.7 * size  # half of the members


def test_a_wrong_dataset_leaves_no_files(tmp_path: Path) -> None:
    synthetic_datasets.sop(tmp_path / "source")
    with pytest.raises(DataError, match="source: neither image_class_labels"):  # The message names the given path.
        prepare_dataset(SMALL, tmp_path / "cub", source=tmp_path / "source")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    with pytest.raises(DataError, match="no public address"):
        prepare_dataset(InShop(), tmp_path / "data" / "inshop")
    assert not (tmp_path / "data").exists()
    for wrong in (tmp_path / "nothing", tmp_path / "source/Stanford_Online_Products/Ebay_train.txt"):
        with pytest.raises(DataError, match=r"file or folder not found|not an archive"):
            prepare_dataset(SMALL, tmp_path / "cub", source=wrong)


class Server(ThreadingHTTPServer):
    content = CONTENT
    ranges = True
    cut: int | None = None
    """Bytes after which the first answer breaks off."""
    asked: list[str | None]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        start = int(wanted[6:-1]) if wanted and self.server.ranges else 0
        if self.path != "/set.bin":
            self.send_error(404)
            return
        if start >= len(self.server.content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(self.server.content)}")
            self.end_headers()
            return
        body = self.server.content[start:]
        self.send_response(206 if start else 200)
        if start:
            last = len(self.server.content) - 1
            self.send_header("Content-Range", f"bytes {start}-{last}/{len(self.server.content)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.server.cut is not None:
            body, self.server.cut = body[: self.server.cut], None
            self.close_connection = True
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    made.asked = []
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


def source(server: Server, name: str = "set.bin", md5: str | None = hashlib.md5(CONTENT).hexdigest()) -> Source:
    return Source(f"http://127.0.0.1:{server.server_port}/{name}", name, md5)


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_download_is_resumed(tmp_path: Path, server: Server, ranges: bool) -> None:
    server.ranges, server.cut = ranges, 1_100_000
    calls: list[tuple[int, int]] = []
    path = download(source(server), tmp_path, lambda done, total: calls.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert len(server.asked) == 2
    first, second = server.asked
    assert first is None
    assert second is not None
    assert second.startswith("bytes=")
    assert calls[-1] == (len(CONTENT), len(CONTENT))
    download(source(server), tmp_path)  # The file exists.
    assert len(server.asked) == 2


def test_a_partial_file_is_resumed(tmp_path: Path, server: Server) -> None:
    (tmp_path / "set.bin.partial").write_bytes(CONTENT[:1000])
    assert download(source(server), tmp_path).read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-"]
    (tmp_path / "set.bin").rename(tmp_path / "set.bin.partial")  # whole, but not yet checked when it was killed
    assert download(source(server), tmp_path).read_bytes() == CONTENT
    assert server.asked[1:] == [f"bytes={len(CONTENT)}-"]


def test_a_file_with_a_wrong_checksum_is_deleted(tmp_path: Path, server: Server) -> None:
    server.content = CONTENT[:-1] + b"!"
    with pytest.raises(DataError, match="not the published"):
        download(source(server), tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert download(source(server, md5=None), tmp_path).read_bytes() == server.content  # The checksum is unknown.


def test_unavailable_files_are_errors(tmp_path: Path, server: Server) -> None:
    with pytest.raises(DataError, match=r"404.*as the source"):
        download(source(server, "other.bin"), tmp_path)
    with pytest.raises(DataError, match="not a web address"):
        download(Source("file:///etc/passwd", "passwd"), tmp_path)


def test_a_dataset_is_downloaded_and_unpacked(tmp_path: Path, server: Server) -> None:
    synthetic_datasets.cub(tmp_path / "source")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for file in (tmp_path / "source").rglob("*"):
            archive.write(file, file.relative_to(tmp_path / "source"))
    server.content = packed.getvalue()

    class Published(CUB200):
        sources = (Source(source(server).url, "set.zip", hashlib.md5(server.content).hexdigest()),)

    assert prepare_dataset(Published(train=6, test=6, classes=2), tmp_path / "data" / "cub200") == []
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["cub200"]
