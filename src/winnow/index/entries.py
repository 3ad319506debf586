"""The table of an index: what each of its vectors stands for."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.request import pathname2url

from winnow.errors import DataError

_SCHEMA = """
CREATE TABLE entries (
    id INTEGER PRIMARY KEY, place INTEGER NOT NULL UNIQUE, path TEXT NOT NULL UNIQUE,
    label TEXT, hash TEXT NOT NULL, thumbnail BLOB NOT NULL
);
CREATE INDEX by_hash ON entries (hash);
"""


@dataclass(frozen=True)
class Entry:
    """An image in an index.

    Attributes:
        id: Its number, which it keeps for as long as it is in the index.
        path: Where its file was when it was indexed; a made-up name where there is no file.
        label: Its class, where that was known.
        hash: SHA-256 of the file's bytes.
        thumbnail: A small upright JPEG file.
    """

    id: int
    path: str
    label: str | None
    hash: str
    thumbnail: bytes


class Table:
    """The entries of one generation, read from a file that nobody changes any more; safe to use from many threads."""

    def __init__(self, file: Path) -> None:
        # immutable: no locks and no side files, so that a folder that cannot be written to can be searched.
        address = f"file:{pathname2url(str(file.absolute()))}?mode=ro&immutable=1"
        self._db = sqlite3.connect(address, uri=True, check_same_thread=False)
        self._lock = threading.Lock()

    def _all(self, query: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        with self._lock:
            return self._db.execute(query, values).fetchall()

    def entry(self, number: int) -> Entry:
        """Return an entry by its id."""
        found = self._all("SELECT id, path, label, hash, thumbnail FROM entries WHERE id = ?", (int(number),))
        if not found:
            raise DataError(f"the index has no entry {number}: it was removed, or never there")
        return Entry(*found[0])  # type: ignore[arg-type]

    def find(self, path: str) -> int | None:
        """Return the id of the entry with a path."""
        found = self._all("SELECT id FROM entries WHERE path = ?", (path,))
        return int(found[0][0]) if found else None  # type: ignore[call-overload]

    def known(self) -> list[tuple[int, str, str, str | None]]:
        """Return id, path, hash and label of every entry, by place."""
        found = self._all("SELECT id, path, hash, label FROM entries ORDER BY place")
        return found  # type: ignore[return-value]

    def labels(self) -> list[str | None]:
        """Return the class of every entry, by place."""
        return [row[0] for row in self._all("SELECT label FROM entries ORDER BY place")]  # type: ignore[misc]

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()


def create_table(file: Path) -> sqlite3.Connection:
    """Make an empty table to write entries into."""
    db = sqlite3.connect(file)
    db.executescript(_SCHEMA)
    return db
