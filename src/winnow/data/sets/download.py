"""Files from the web: resumed where they broke off, and held to their checksum."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from winnow.data.sets.base import Source
from winnow.errors import DataError, OutputError

Progress = Callable[[int, int], None]
_BLOCK = 1 << 20
_ATTEMPTS = 4


def download(source: Source, folder: Path, progress: Progress | None = None) -> Path:
    """Bring a file into a folder; what is there already, in whole or in part, is not fetched again.

    Args:
        source: Address, name and checksum.
        folder: Where it goes.
        progress: Called with the bytes that are there and those there will be.

    Raises:
        DataError: when it cannot be had, or is not the published file.
        OutputError: when it cannot be written.
    """
    if urlsplit(source.url).scheme not in ("http", "https"):
        raise DataError(f"{source.url} is no web address")
    path = folder / source.file
    if path.is_file():
        check(path, source)
        return path
    partial = folder / f"{source.file}.partial"
    reason = ""
    for _ in range(_ATTEMPTS):  # each goes on where the last broke off
        try:
            if _fetch(source.url, partial, progress):
                check(partial, source)
                os.replace(partial, path)
                return path
            reason = "the connection broke off"
        except HTTPError as error:
            reason = f"the server answers {error.code} {error.reason}"
            break
        except (OSError, HTTPException) as error:  # URLError and broken connections
            reason = str(getattr(error, "reason", error))
    raise DataError(
        f"{source.url} could not be fetched ({reason}): try again, it goes on from where it broke; or get "
        f"{source.file} in another way and name it with --from"
    )


def check(path: Path, source: Source) -> None:
    """Compare a file with its published checksum, if there is one; a wrong file is deleted.

    Raises:
        DataError: when they differ.
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
            f"{source.file} has the checksum {digest.hexdigest()}, not the published {source.md5}: it was damaged on "
            "the way or is another file, and has been deleted; get it anew"
        )


def _fetch(url: str, partial: Path, progress: Progress | None) -> bool:
    """Fetch what is missing of a file; return whether it is whole now."""
    have = partial.stat().st_size if partial.exists() else 0
    headers = {"User-Agent": "winnow", **({"Range": f"bytes={have}-"} if have else {})}
    try:
        answer = urlopen(Request(url, headers=headers), timeout=60)
    except HTTPError as error:
        if error.code == 416 and have:  # nothing is missing, or the file is another: the checksum will tell
            if error.headers.get("Content-Range", "").rpartition("/")[2] == str(have):
                return True
            partial.unlink()
            return False
        raise
    with answer:
        begins = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
        resumed = answer.status == 206 and begins == str(have)
        if answer.status == 206 and not resumed:
            raise OSError("the server sent another part than was asked for")
        have = have if resumed else 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else 0
        try:
            file = open(partial, "ab" if resumed else "wb")  # noqa: SIM115
        except OSError as error:
            raise OutputError(f"{partial} cannot be written ({error.strerror})") from None
        with file:
            while block := answer.read(_BLOCK):
                try:
                    file.write(block)
                except OSError as error:
                    raise OutputError(f"{partial} cannot be written ({error.strerror}): free some room") from None
                have += len(block)
                if progress is not None:
                    progress(have, max(total, have))
    return not total or have >= total
