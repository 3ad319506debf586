"""Checksums of saved files, recorded on writing and verified on opening.

A folder of checked files contains `SHA256SUMS`, in the format of the command `sha256sum`: a line `DIGEST  NAME` for
each file. Folders of version 0.1.0 have none; this is reported once per process.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from winnow.errors import ModelError, WinnowError, warn_caller
from winnow.files import make_folder, write_atomically, write_text

SUMS = "SHA256SUMS"
"""Name of the file of checksums."""
Checksums = Mapping[str, Sequence[str]]
"""SHA-256 digests by file name; several while a file is replaced, and after an interruption."""

_LOCK = Lock()  # threads of one process change the same file: a run and the writer of its checkpoints
_reported: set[str] = set()


def file_digest(path: Path) -> str:
    """Return the SHA-256 digest of a file as hexadecimal text."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checked(path: Path, write: Callable[[Path], object], *, adopt: Iterable[str] = ()) -> None:
    """Write a file atomically and record its checksum.

    The new checksum is recorded in addition to the known ones before the file is replaced, and alone afterward. Any
    number of interruptions therefore leaves a file that matches one of them.

    Args:
        path: File to write.
        write: Writes the file at a temporary path.
        adopt: Other files of the folder whose checksums are recorded if the folder has none yet.

    Raises:
        OutputError: If the disk is full or the location cannot be written to.
    """
    digests: list[str] = []

    def write_and_record(partial: Path) -> None:
        write(partial)
        digests.append(file_digest(partial))
        known = read_checksums(path.parent)
        if known is None:
            others = [path.parent / name for name in adopt]
            known = {other.name: [file_digest(other)] for other in others if other.is_file()}
        _write_checksums(path.parent, {**known, path.name: [*known.get(path.name, ()), digests[0]]})

    make_folder(path.parent)
    with _exclusive(path.parent):
        write_atomically(path, write_and_record)
        known = read_checksums(path.parent) or {}
        _write_checksums(path.parent, {**known, path.name: digests})


def write_checked_text(path: Path, text: str, *, adopt: Iterable[str] = ()) -> None:
    """Write text atomically, as UTF-8, and record its checksum.

    See `write_checked`.
    """
    write_checked(
        path, lambda partial: partial.write_text(text, encoding="utf-8", errors="backslashreplace"), adopt=adopt
    )


def record_checksums(folder: Path, names: Iterable[str]) -> None:
    """Record the checksums of files that were written into a new folder."""
    _write_checksums(folder, {name: [file_digest(folder / name)] for name in names})


def forget_checksum(path: Path) -> None:
    """Drop the checksum of a file that is removed on purpose."""
    if not path.parent.is_dir():
        return
    with _exclusive(path.parent):
        known = read_checksums(path.parent)
        if known is None or path.name not in known:
            return
        left = {name: digests for name, digests in known.items() if name != path.name}
        if left:
            _write_checksums(path.parent, left)
        else:
            (path.parent / SUMS).unlink()


def read_checksums(folder: Path) -> Checksums | None:
    """Read the checksums of a folder; None if it has none.

    Raises:
        ModelError: If the file of checksums is damaged.
    """
    file = folder / SUMS
    if not file.is_file():
        return None
    found: dict[str, list[str]] = {}
    for line in file.read_bytes().decode(errors="replace").splitlines():
        digest, separator, name = line.partition("  ")
        if not separator or len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            raise ModelError(f"{file}: file is damaged. Restore it from a copy.")
        found.setdefault(name, []).append(digest)
    return found


def has_checksum(path: Path, *, error: type[WinnowError] = ModelError, remedy: str = "Restore it from a copy.") -> bool:
    """Return whether the folder of a file has checksums; a folder without any is reported once per process.

    Raises:
        WinnowError: If the folder has some, and none for the file; as `error`.
    """
    known = read_checksums(path.parent)
    if known is None:
        report_unverified(path.parent)
        return False
    if path.name not in known:
        raise error(f"{path}: no checksum in {SUMS}, which is damaged or older than the file. {remedy}")
    return True


def check_file(path: Path, *, error: type[WinnowError] = ModelError, remedy: str = "Restore it from a copy.") -> bool:
    """Verify the checksum of a file.

    Args:
        path: File to verify.
        error: Class of the error.
        remedy: Last sentence of the error: what to do.

    Returns:
        Whether the folder has checksums.

    Raises:
        WinnowError: If the file differs from its checksum, or has none although its folder has some; as `error`.
    """
    if not has_checksum(path, error=error, remedy=remedy):
        return False
    if file_digest(path) not in (read_checksums(path.parent) or {})[path.name]:
        raise error(f"{path}: content does not match its checksum, so the file is damaged or was changed. {remedy}")
    return True


def check_listed(path: Path, *, error: type[WinnowError] = ModelError, remedy: str = "Restore it from a copy.") -> None:
    """Verify the checksum of a file if its folder has one for it.

    For files whose folder also holds files of earlier versions. See `check_file`.

    Raises:
        WinnowError: If the file differs from its checksum, as `error`.
    """
    if path.is_file() and path.name in (read_checksums(path.parent) or {}):
        check_file(path, error=error, remedy=remedy)


@dataclass(frozen=True)
class CheckedFile:
    """Result of verifying one file."""

    path: Path
    problem: str = ""  # "" if the file matches its checksum


def check_folder(folder: Path) -> list[CheckedFile]:
    """Verify all files with checksums in a folder; an empty list if it has none."""
    found: list[CheckedFile] = []
    for name in read_checksums(folder) or {}:
        path = folder / name
        problem = "" if path.is_file() else f"{path}: file is missing. Restore it from a copy."
        if not problem:
            try:
                check_file(path)
            except WinnowError as error:
                problem = str(error)
        found.append(CheckedFile(path, problem))
    return found


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Let one thread and, on systems with `flock`, one process at a time change the checksums of a folder.

    Two studies may end at the same time in one folder of results. The system releases the lock of a killed process.
    """
    with _LOCK:
        descriptor = None
        with suppress(ImportError, OSError):  # Windows; file systems without locks
            import fcntl

            descriptor = os.open(folder, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            if descriptor is not None:
                os.close(descriptor)


def _write_checksums(folder: Path, known: Checksums) -> None:
    lines = [f"{digest}  {name}\n" for name, digests in sorted(known.items()) for digest in dict.fromkeys(digests)]
    write_text(folder / SUMS, "".join(lines))


def report_unverified(folder: Path) -> None:
    """Warn, once per process, that files have no checksums."""
    if not _reported:
        _reported.add(str(folder))
        message = f"{folder}: files without {SUMS}, as version 0.1.0 saved them, cannot be verified"
        warn_caller(message, UserWarning)
