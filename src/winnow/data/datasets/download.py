"""Download of datasets, and installation from archives and folders."""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPException
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from winnow.data.datasets.base import Dataset, MissingImages, Source
from winnow.data.image_set import first_few
from winnow.errors import ConfigError, DataError, OutputError
from winnow.files import make_folder

Progress = Callable[[int, int], None]

ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
MAX_BYTES = 64 << 30
MAX_FILES = 1_000_000

_BLOCK = 1 << 20
_ATTEMPTS = 4
_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError)


def prepare_dataset(
    dataset: Dataset,
    target: Path,
    *,
    source: Path | None = None,
    progress: Callable[[str], Progress] = lambda title: lambda done, total: None,
) -> list[MissingImages]:
    """Put a dataset into a folder. On an error the folder is unchanged.

    Args:
        dataset: Dataset to install.
        target: Folder, which must be empty or not exist.
        source: Archive, folder of archives, or folder with the files of the dataset; None to download it.
        progress: Function of a title that returns a function of (done, total), called as the step advances.

    Returns:
        Missing images of each incomplete part; empty for a complete dataset.

    Raises:
        ConfigError: If the folder is not empty.
        DataError: If the dataset cannot be fetched or the files are of another dataset.
        OutputError: If a file cannot be written.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target}: folder is not empty. Choose another folder, or verify the dataset in this one.")
    downloads = target.with_name(f"{target.name}.download")
    files = _download_all(dataset, downloads, progress) if source is None else _find_sources(source)
    partial = target.with_name(f".partial-{target.name}")
    shutil.rmtree(partial, ignore_errors=True)
    make_folder(partial)
    try:
        for file in files:
            if file.is_dir():
                copy_files(file, partial, progress=progress(f"copying {file.name}"))
            elif is_archive(file):
                unpack(file, partial, progress=progress(f"unpacking {file.name}"))
            else:
                shutil.copyfile(file, partial / file.name)
        try:
            _, missing = dataset.check(partial)  # Rejects another dataset before the target exists.
        except DataError as error:  # Its message must not name the partial folder, which is removed.
            raise DataError(str(error).replace(str(partial), str(source or target))) from None
        if target.exists():
            target.rmdir()
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(downloads, ignore_errors=True)
    return missing


def download(source: Source, folder: Path, progress: Progress | None = None) -> Path:
    """Download a file into a folder. Existing or partial files are not fetched again.

    Args:
        source: Address, name, and checksum.
        folder: Folder of the file.
        progress: Called with the bytes fetched and the total bytes.

    Raises:
        DataError: If the file cannot be fetched, or its checksum is wrong.
        OutputError: If the file cannot be written.
    """
    if urlsplit(source.url).scheme not in ("http", "https"):
        raise DataError(f"{source.url}: not a web address. Use http or https.")
    path = folder / source.file
    if path.is_file():
        check(path, source)
        return path
    partial = folder / f"{source.file}.partial"
    reason = ""
    for _ in range(_ATTEMPTS):  # Each attempt continues where the last one stopped.
        try:
            if _fetch(source.url, partial, progress):
                check(partial, source)
                os.replace(partial, path)
                return path
            reason = "connection interrupted"
        except HTTPError as error:
            reason = f"the server answers {error.code} {error.reason}"
            break
        except OutputError:  # It is an OSError too.
            raise
        except (OSError, HTTPException) as error:  # URLError and interrupted connections.
            reason = str(getattr(error, "reason", error))
    raise DataError(
        f"{source.url}: could not be fetched ({reason}). Try again to resume, or get {source.file} in another way and "
        "name it as the source."
    )


def check(path: Path, source: Source) -> None:
    """Compare a file with its published checksum, if there is one.

    A wrong file is deleted.

    Raises:
        DataError: If they differ.
    """
    if source.md5 is None:
        return
    digest = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    if digest.hexdigest() != source.md5:
        path.unlink()
        raise DataError(
            f"{source.file}: its checksum {digest.hexdigest()} is not the published {source.md5}. The file was damaged "
            "or is another one, and has been deleted. Get it again."
        )


def is_archive(path: Path) -> bool:
    """Return whether a file has the suffix of an archive."""
    return path.is_file() and path.name.lower().endswith(ARCHIVE_SUFFIXES)


def unpack(
    archive: Path,
    target: Path,
    *,
    max_bytes: int = MAX_BYTES,
    max_files: int = MAX_FILES,
    progress: Progress = lambda done, total: None,
) -> int:
    """Unpack a zip or tar archive into a folder, and return the number of files.

    Args:
        archive: Zip or tar file.
        target: Folder of the files.
        max_bytes: Largest total size of the files. `tarfile` and `zipfile` write no more than a member declares.
        max_files: Largest number of files.
        progress: Called with the bytes of the archive read and its size.

    Raises:
        DataError: If the archive is damaged or too large, or contains links, devices, or paths outside the folder.
        OutputError: If a file cannot be written.
    """
    count, total, size = 0, 0, archive.stat().st_size
    target.mkdir(parents=True, exist_ok=True)
    try:
        with open(archive, "rb") as raw:
            extract_members = _extract_zip if archive.name.lower().endswith(".zip") else _extract_tar
            for name, member_bytes, extract in extract_members(archive, raw, target):
                count, total = count + 1, total + member_bytes
                if count > max_files:
                    raise DataError(f"{archive}: more than {max_files:,} files, the limit. Check the archive.")
                if total > max_bytes:
                    raise DataError(f"{archive}: more than {max_bytes:,} bytes unpacked, the limit. Check the archive.")
                _check_path(archive, name)
                extract()
                progress(min(raw.tell(), size - 1), size)  # Data is read ahead; only the last member reaches the end.
        progress(size, size)
    except (*_DAMAGED, RuntimeError, NotImplementedError) as error:
        raise DataError(f"{archive}: archive cannot be unpacked ({error}). Get it again.") from None
    except OSError as error:
        if error.errno is None:  # gzip and bz2 report damage so; errors of the file system have a number.
            raise DataError(f"{archive}: archive cannot be unpacked ({error}). Get it again.") from None
        raise OutputError(
            f"{target}: {archive} cannot be unpacked here ({error.strerror}). Check disk space and permissions."
        ) from None
    return count


def copy_files(source: Path, target: Path, *, progress: Progress = lambda done, total: None) -> int:
    """Copy the visible files below a folder, and return their number.

    Raises:
        DataError: If there are links, which may lead anywhere, as in archives.
        OutputError: If a file cannot be written.
    """
    try:
        visible = [path for path in sorted(source.rglob("*")) if not path.name.startswith(".")]
        links = [str(path.relative_to(source)) for path in visible if path.is_symlink()]
        if links:
            raise DataError(
                f"{source}: contains links ({first_few(links)}), which are not followed. Use the folder where it is "
                f"(data.root={source}), or replace links by files (`cp -rL` does)."
            )
        files = [path for path in visible if path.is_file()]
        for count, path in enumerate(files, start=1):
            destination = target / path.relative_to(source)
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, destination)
            progress(count, len(files))
    except OSError as error:
        raise OutputError(
            f"{target}: {source} cannot be copied here ({error.strerror or error}). Check disk space and permissions."
        ) from None
    return len(files)


Member = tuple[str, int, Callable[[], object]]
"""Name, declared size, and function that extracts the member."""


def _extract_zip(archive: Path, raw: IO[bytes], target: Path) -> Iterator[Member]:
    with zipfile.ZipFile(raw) as bundle:
        for info in bundle.infolist():
            if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _not_a_file(archive, info.filename)
            if not info.is_dir():
                # The unaltered name, because zipfile replaces backslashes of the stored one on Windows.
                yield info.orig_filename, info.file_size, partial(bundle.extract, info, target)


def _extract_tar(archive: Path, raw: IO[bytes], target: Path) -> Iterator[Member]:
    with tarfile.open(fileobj=raw) as bundle:
        # Python 3.11.4 and later restrict owners, modes, and paths. Earlier ones have no filters.
        bundle.extraction_filter = getattr(tarfile, "data_filter", None)
        for member in bundle:
            if not (member.isreg() or member.isdir()):
                raise _not_a_file(archive, member.name)
            if member.isreg():
                yield member.name, member.size, partial(bundle.extract, member, target)
        _check_tar_end(bundle)


def _check_path(archive: Path, name: str) -> None:
    """Raise `DataError` for a member outside the folder.

    `zipfile` and `tarfile` would silently change its path.
    """
    path = PurePosixPath(name)
    outside = path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or not path.parts
    if outside or PureWindowsPath(name).drive:
        raise DataError(f"{archive}: the path of member '{name}' leads out of the folder. Check the archive.")


def _check_tar_end(bundle: tarfile.TarFile) -> None:
    """Raise for a truncated archive.

    `tarfile` stops silently at the first damaged or truncated header.
    """
    stream = bundle.fileobj
    assert stream is not None, "the archive is open"
    stream.seek(bundle.offset)
    last = stream.read(tarfile.BLOCKSIZE)
    if not last or any(last):  # The end consists of blocks of zeros.
        raise tarfile.ReadError("damaged header" if last else "truncated file")
    while stream.read(_BLOCK):  # gzip has its checksum at the end.
        pass


def _not_a_file(archive: Path, name: str) -> DataError:
    return DataError(f"{archive}: member '{name}' is a link or a device. Check the archive.")


def _fetch(url: str, partial: Path, progress: Progress | None) -> bool:
    """Fetch the missing rest of a file, and return whether it is complete."""
    have = partial.stat().st_size if partial.exists() else 0
    headers = {"User-Agent": "winnow", **({"Range": f"bytes={have}-"} if have else {})}
    try:
        answer = urlopen(Request(url, headers=headers), timeout=60)
    except HTTPError as error:
        if error.code == 416 and have:  # The file is complete or another one. The checksum distinguishes them.
            if error.headers.get("Content-Range", "").rpartition("/")[2] == str(have):
                return True
            partial.unlink()
            return False
        raise
    with answer:
        start = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
        resumed = answer.status == 206 and start == str(have)
        if answer.status == 206 and not resumed:
            raise OSError("the server sent another range than requested")
        have = have if resumed else 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else 0
        try:
            file = open(partial, "ab" if resumed else "wb")  # noqa: SIM115
        except OSError as error:
            raise OutputError(f"{partial}: cannot be written ({error.strerror}). Check its permissions.") from None
        with file:
            while block := answer.read(_BLOCK):
                try:
                    file.write(block)
                except OSError as error:
                    raise OutputError(f"{partial}: cannot be written ({error.strerror}). Free disk space.") from None
                have += len(block)
                if progress is not None:
                    progress(have, max(total, have))
    return not total or have >= total


def _download_all(dataset: Dataset, folder: Path, progress: Callable[[str], Progress]) -> list[Path]:
    if not dataset.sources:
        raise DataError(
            f"{dataset.title}: no public address. Request it at {dataset.home}, then name the archive or folder as the "
            "source."
        )
    make_folder(folder)
    return [download(source, folder, progress(source.file)) for source in dataset.sources]


def _find_sources(source: Path) -> list[Path]:
    """Return the archives and label files of a folder, or the source itself."""
    if not source.exists():
        raise DataError(f"{source}: file or folder not found. Check the path.")
    if not source.is_dir() and not is_archive(source):
        raise DataError(f"{source}: not an archive (.zip, .tar, .tgz, ...). Name an archive or a folder.")
    archives = sorted(child for child in source.iterdir() if is_archive(child)) if source.is_dir() else []
    if not archives:
        return [source]
    label_files = [child for child in source.iterdir() if child.suffix in (".mat", ".txt") and child.is_file()]
    return [*archives, *sorted(label_files)]
