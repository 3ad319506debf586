"""Archives unpacked with care: nothing outside of the folder, no links, no more than is reasonable."""

from __future__ import annotations

import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from winnow.data.fileset import first_few
from winnow.data.sets.download import Progress
from winnow.errors import DataError, OutputError

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
MAX_BYTES = 64 << 30
MAX_FILES = 1_000_000

_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError)

Member = tuple[str, Callable[[], IO[bytes]]]
"""Name and how to open it."""


def _unseen(done: int, total: int) -> None:
    """Show nothing."""


def is_archive(path: Path) -> bool:
    """Whether a file is called like an archive."""
    return path.is_file() and path.name.lower().endswith(SUFFIXES)


def unpack(
    archive: Path,
    target: Path,
    *,
    max_bytes: int = MAX_BYTES,
    max_files: int = MAX_FILES,
    progress: Progress = _unseen,
) -> int:
    """Unpack an archive into a folder.

    Args:
        archive: A zip or tar file.
        target: Where its files go.
        max_bytes: The most they may take, counted as they are written: what an archive says of itself proves nothing.
        max_files: The most there may be.
        progress: Told how many of the archive's bytes are read.

    Returns:
        How many files there were.

    Raises:
        DataError: for a damaged archive, or one with links, devices, paths that lead out of the folder, or too much.
        OutputError: when a file cannot be written.
    """
    count, room, size = 0, max_bytes, archive.stat().st_size
    try:
        with open(archive, "rb") as raw:
            for name, open_member in _members(archive, raw):
                count += 1
                if count > max_files:
                    raise DataError(f"{archive} holds more than {max_files:,} files, which no set does")
                path = target / _inside(archive, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                with open_member() as source, open(path, "wb") as file:
                    for block in _blocks(source):
                        room -= len(block)
                        if room < 0:
                            raise DataError(f"{archive} unpacks to more than {max_bytes:,} bytes, which no set does")
                        file.write(block)
                progress(min(raw.tell(), size - 1), size)  # read ahead: only the last member ends it
        progress(size, size)
    except (*_DAMAGED, RuntimeError, NotImplementedError) as error:
        raise DataError(f"{archive} cannot be unpacked ({error}); get it anew") from None
    except OSError as error:
        raise OutputError(f"{archive} could not be unpacked to {target} ({error.strerror or error})") from None
    return count


def copy_files(source: Path, target: Path, *, progress: Progress = _unseen) -> int:
    """Copy the visible files below a folder; return how many there were.

    Raises:
        DataError: where there are links: they may lead anywhere, as in archives.
        OutputError: when a file cannot be written.
    """
    try:
        visible = [path for path in sorted(source.rglob("*")) if not path.name.startswith(".")]
        links = [str(path.relative_to(source)) for path in visible if path.is_symlink()]
        if links:
            raise DataError(
                f"{source} has links ({first_few(links)}), which are not followed: use the folder where it is "
                f"(data.root={source}), or put files in their place (`cp -rL` does)"
            )
        files = [path for path in visible if path.is_file()]
        for count, path in enumerate(files, start=1):
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
            progress(count, len(files))
    except OSError as error:
        raise OutputError(f"{source} could not be copied to {target} ({error.strerror or error})") from None
    return len(files)


def _inside(archive: Path, name: str) -> PurePosixPath:
    """Return a member's path if it stays below the folder."""
    path = PurePosixPath(name)
    outside = path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or not path.parts
    if outside or PureWindowsPath(name).drive:
        raise DataError(f"{archive} has a member '{name}' that leads out of its folder; it is not unpacked")
    return path


def _members(archive: Path, raw: IO[bytes]) -> Iterator[Member]:
    if archive.name.lower().endswith(".zip"):
        with zipfile.ZipFile(raw) as packed:
            for info in packed.infolist():
                kind = stat.S_IFMT(info.external_attr >> 16)
                if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise _odd(archive, info.filename)
                if not info.is_dir():
                    yield info.filename, lambda info=info: packed.open(info)  # type: ignore[misc]
        return
    try:
        with tarfile.open(fileobj=raw) as bundle:
            for member in bundle:
                if not (member.isreg() or member.isdir()):
                    raise _odd(archive, member.name)
                if member.isreg():
                    yield member.name, lambda member=member: _opened(bundle, member)  # type: ignore[misc]
            _check_end(bundle)
    except OSError as error:
        raise tarfile.ReadError(str(error)) from None


def _check_end(bundle: tarfile.TarFile) -> None:
    """Refuse an archive that `tarfile` takes for read at the first header that is damaged or cut off."""
    stream = bundle.fileobj
    assert stream is not None, "it is open"
    stream.seek(bundle.offset)
    last = stream.read(tarfile.BLOCKSIZE)
    if not last or any(last):  # blocks of zeros are the end
        raise tarfile.ReadError("it is damaged in its middle" if last else "it is cut off")
    while stream.read(1 << 20):  # gzip has its checksum at the very end
        pass


def _blocks(source: IO[bytes]) -> Iterator[bytes]:
    """Read a member; gzip and bz2 tell damage by an OSError, which is not to be taken for one of writing."""
    try:
        while block := source.read(1 << 20):
            yield block
    except OSError as error:
        raise tarfile.ReadError(str(error)) from None


def _opened(bundle: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    file = bundle.extractfile(member)
    assert file is not None, "it is a regular file"
    return file


def _odd(archive: Path, name: str) -> DataError:
    return DataError(f"{archive} has a member '{name}' that is a link or a device; it is not unpacked")
