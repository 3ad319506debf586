"""Files that are either whole or not there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from winnow.errors import OutputError


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file under another name, then put it in place: the old file or the new one, never half of it.

    Raises:
        OutputError: when the disk is full or the place cannot be written to; what was there before is kept.
    """
    partial = path.with_name(f".partial-{path.name}")  # the suffix stays, because some writers go by it
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)
        partial.touch()
        mode = partial.stat().st_mode  # as the user's other new files
        write(partial)
        os.chmod(partial, mode)  # safetensors makes files that nobody else may read
        with open(partial, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except Exception as error:
        with suppress(OSError):  # a disk that can only be read refuses this too
            partial.unlink(missing_ok=True)
        # torch and safetensors have errors of their own for a full disk.
        if not isinstance(error, OSError | RuntimeError) and type(error).__name__ != "SafetensorError":
            raise
        reason = getattr(error, "strerror", None) or (str(error).splitlines() or [type(error).__name__])[0]
        if "inline_container" in reason:  # torch's words for it, which name a line of its source
            reason = "the file is cut off, as on a full disk"
        raise OutputError(f"{path} could not be written ({reason}): free some room or choose another place") from None


def write_text(path: Path, text: str) -> None:
    """Write text atomically, as UTF-8 on every system."""
    write_atomically(path, lambda partial: partial.write_text(text, encoding="utf-8", errors="backslashreplace"))


def make_folder(path: Path) -> None:
    """Make a folder and those above it, or say why not.

    Raises:
        OutputError: when it cannot be made or is a file.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"the folder {path} cannot be made ({error.strerror}): choose another place") from None


@contextmanager
def lock(file: Path, work: str) -> Iterator[None]:
    """Keep other processes from the same work meanwhile.

    The lock is the system's own, so that a killed process leaves none behind.

    Args:
        file: What is locked; made where it is not there, and never changed.
        work: What is done under it, such as "changing photos.index", for whoever is refused.

    Raises:
        OutputError: when another process is at it.
    """
    try:
        import fcntl
    except ImportError:  # Windows, where two writers are the user's to avoid
        yield
        return
    with open(file, "ab") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise OutputError(f"another process is {work}: wait until it is done") from None
        except OSError:  # a disk without locks
            pass
        yield
