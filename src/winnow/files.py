"""Bounded reads, atomic writes, folders, and locks: a file is either complete or absent."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from winnow.errors import OutputError, WinnowError

MAX_TEXT_BYTES = 256 * 2**20
"""Largest text file that is read: a table of a million images has less."""


def open_regular(path: str | Path, *, max_bytes: int | None = None) -> BufferedReader:
    """Open a regular file for reading, without waiting for a FIFO or reading from a device.

    Args:
        path: File to open.
        max_bytes: Largest accepted size; None for any.

    Raises:
        OSError: If the path is no regular file, or the file is larger than `max_bytes`.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    state = os.fstat(descriptor)
    if stat.S_ISREG(state.st_mode) and (max_bytes is None or state.st_size <= max_bytes):
        return open(descriptor, "rb")
    os.close(descriptor)
    if not stat.S_ISREG(state.st_mode):
        kind = "a directory" if stat.S_ISDIR(state.st_mode) else "not a regular file"
        raise OSError(errno.EINVAL, kind, str(path))
    raise OSError(errno.EFBIG, f"larger than {max_bytes:,} bytes", str(path))


def read_text(path: str | Path, *, encoding: str = "utf-8", max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Read a text file of bounded size.

    Raises:
        OSError: If the path is no regular file, or the file is larger than `max_bytes`.
        UnicodeDecodeError: If the file has another encoding.
    """
    with open_regular(path, max_bytes=max_bytes) as file:
        return file.read(max_bytes).decode(encoding)


def parse_json(text: str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: If the text is no JSON, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def valid_text(name: str) -> str:
    """Return a name of a file as valid Unicode, with bytes that are not UTF-8 as escapes."""
    return name.encode("utf-8", "backslashreplace").decode()


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under a temporary name with `write`, then rename it to `path`.

    Raises:
        OutputError: If the disk is full or the location cannot be written to. An earlier file stays as it was. A
            device, FIFO, or socket is never replaced.
    """
    if path.exists() and not path.is_file() and not path.is_dir():  # renaming would replace /dev/null, if root does it
        raise OutputError(f"{path}: not a regular file. Choose another location.")
    partial = path.with_name(f".partial-{path.name}")  # same suffix, because some writers depend on it
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)
        partial.touch()
        mode = partial.stat().st_mode  # the user's default for new files
        write(partial)
        os.chmod(partial, mode)  # safetensors creates files that only the owner can read
        with open(partial, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except Exception as error:
        with suppress(OSError):  # a read-only disk raises here too
            partial.unlink(missing_ok=True)
        # torch and safetensors raise errors of other types on a full disk.
        disk_error = isinstance(error, OSError | RuntimeError) or type(error).__name__ == "SafetensorError"
        if isinstance(error, WinnowError) or not disk_error:
            raise
        reason = getattr(error, "strerror", None) or (str(error).splitlines() or [type(error).__name__])[0]
        if "inline_container" in reason:  # torch's message names a line of its C++ source
            reason = "the file is incomplete, as on a full disk"
        raise OutputError(f"{path}: file not written ({reason}). Free disk space or choose another location.") from None


def write_text(path: Path, text: str) -> None:
    """Write text atomically, as UTF-8 on every system."""
    write_atomically(path, lambda partial: partial.write_text(text, encoding="utf-8", errors="backslashreplace"))


def make_folder(path: Path) -> None:
    """Create a folder and its parents.

    Raises:
        OutputError: If the folder cannot be created or the path is a file.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{path}: folder not created ({error.strerror}). Choose another location.") from None


@contextmanager
def lock(file: Path, work: str) -> Iterator[None]:
    """Hold a lock, so no other process does the same work at the same time.

    The operating system releases the lock of a killed process.

    Args:
        file: Lock file, created if missing. It has no content.
        work: Work done under the lock, such as "updating photos.index", for the error of other processes.

    Raises:
        OutputError: If another process holds the lock.
    """
    from filelock import FileLock, Timeout

    held = FileLock(file, blocking=False)
    try:
        held.acquire()
    except Timeout:
        raise OutputError(f"{file}: another process is {work}. Wait until it has finished.") from None
    except (OSError, NotImplementedError):  # a file system without locks, or one that cannot be written to
        yield
        return
    try:
        yield
    finally:
        held.release()
