"""Files of an index: manifest, generation, and entries.

A generation is written once and then only read.
"""

from __future__ import annotations

import io
import json
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from urllib.request import pathname2url

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from winnow.errors import DataError, ModelError
from winnow.files import lock, write_text
from winnow.index.finders import Finder, Positions, Vectors, open_finder

MANIFEST = "index.json"
VERSION = 1
VECTORS, IDS, ENTRIES = "vectors.npy", "ids.npy", "entries.sqlite"
_SCHEMA = """
CREATE TABLE entries (
    id INTEGER PRIMARY KEY, place INTEGER NOT NULL UNIQUE, path TEXT NOT NULL UNIQUE,
    label TEXT, hash TEXT NOT NULL, thumbnail BLOB NOT NULL
);
CREATE INDEX by_hash ON entries (hash);
"""


@dataclass(frozen=True)
class Manifest:
    """Content of `index.json`; replacing this file changes the index atomically."""

    generation: str  # name of the folder with vectors and entries
    model: str  # fingerprint of the model in the index; "" if the index was built from vectors without a model
    kind: str  # "exact", "hnsw", or "ivfpq"
    dtype: str  # type of the stored vectors, "float32" or "float16"
    count: int  # number of entries
    dim: int  # dimensions of the vectors
    next_id: int  # id of the next new entry
    recall: float | None = None  # fraction of the 10 nearest that an approximate kind finds, measured when built

    def write(self, folder: Path) -> None:
        """Write the manifest into the folder of an index."""
        content = {"format": "winnow-index", "version": VERSION, **asdict(self)}
        write_text(folder / MANIFEST, json.dumps(content, indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest of an index.

        Raises:
            DataError: If the folder is no index, or the file is damaged.
            ModelError: If the format has another version.
        """
        file = folder / MANIFEST
        if not file.is_file():
            raise DataError(f"{folder}: not an index, {MANIFEST} is missing. Build an index first.")
        damaged = f"{file}: file is damaged. Build the index again."
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            name, version = content.pop("format"), content.pop("version")
        except (ValueError, KeyError, AttributeError):
            raise DataError(damaged) from None
        if name != "winnow-index" or version != VERSION:
            raise ModelError(
                f"{file}: expected format winnow-index {VERSION}, got {name} {version}. "
                "Build the index again, or use the version of winnow that wrote it."
            )
        try:
            return cls(**content)
        except TypeError:
            raise DataError(damaged) from None


def lock_index(folder: Path) -> AbstractContextManager[None]:
    """Lock an index against changes by other processes; readers are not affected.

    Raises:
        OutputError: On entering, if another process changes the index.
    """
    return lock(folder / ".lock", f"changing {folder}")


@dataclass(frozen=True)
class Entry:
    """An image in an index."""

    id: int  # constant for as long as the entry is in the index
    path: str  # path of the file when it was indexed, or a name without a file
    label: str | None  # class name; None if unknown
    hash: str  # SHA-256 of the content of the file
    thumbnail: bytes  # small upright JPEG; plain gray without an image


class EntryTable:
    """Entries of one generation, in a read-only SQLite file.

    Many threads can use it.
    """

    def __init__(self, file: Path) -> None:
        # `immutable` means no locks and no side files, so an index in a read-only folder can be searched.
        address = f"file:{pathname2url(str(file.absolute()))}?mode=ro&immutable=1"
        self._db = sqlite3.connect(address, uri=True, check_same_thread=False)
        self._lock = threading.Lock()

    def _all(self, query: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        with self._lock:
            return self._db.execute(query, values).fetchall()

    def entry(self, number: int) -> Entry:
        """Return an entry by its id.

        Raises:
            DataError: If the id does not exist.
        """
        found = self._all("SELECT id, path, label, hash, thumbnail FROM entries WHERE id = ?", (int(number),))
        if not found:
            raise DataError(_unknown_id(number))
        entry = Entry(*found[0])  # type: ignore[arg-type]
        return entry if entry.thumbnail else replace(entry, thumbnail=_blank_thumbnail())

    def stored_thumbnail(self, number: int) -> bytes:
        """Return the thumbnail of an existing entry as stored; empty without an image."""
        return self._all("SELECT thumbnail FROM entries WHERE id = ?", (int(number),))[0][0]  # type: ignore[return-value]

    def find(self, path: str) -> int | None:
        """Return the id of the entry with a path; None if it does not exist."""
        found = self._all("SELECT id FROM entries WHERE path = ?", (path,))
        return int(found[0][0]) if found else None  # type: ignore[call-overload]

    def records(self) -> list[tuple[int, str, str, str | None]]:
        """Return id, path, hash, and label of every entry, in the order of the vectors."""
        found = self._all("SELECT id, path, hash, label FROM entries ORDER BY place")
        return found  # type: ignore[return-value]

    def labels(self) -> list[str | None]:
        """Return the class of every entry, in the order of the vectors."""
        return [row[0] for row in self._all("SELECT label FROM entries ORDER BY place")]  # type: ignore[misc]

    def close(self) -> None:
        """Close the file."""
        self._db.close()


@cache
def _blank_thumbnail() -> bytes:
    """Return the thumbnail of entries without an image, a valid JPEG."""
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), "lightgray").save(buffer, "JPEG")
    return buffer.getvalue()


def create_entry_table(file: Path) -> sqlite3.Connection:
    """Create an empty entry table and return a connection that writes to it."""
    db = sqlite3.connect(file)
    db.executescript(_SCHEMA)
    return db


@dataclass(frozen=True)
class Row:
    """An entry to be written."""

    id: int
    path: str
    label: str | None
    hash: str
    origin: int | None  # id of the earlier entry with the same vector and thumbnail; None if newly embedded


class Generation:
    """One state of an index on disk, opened for reading; vectors are memory-mapped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ids: NDArray[np.int64] = np.load(folder / IDS, allow_pickle=False)
        empty = len(self.ids) == 0  # an empty file cannot be mapped
        self.vectors: Vectors = np.load(folder / VECTORS, mmap_mode=None if empty else "r", allow_pickle=False)
        self.table = EntryTable(folder / ENTRIES)
        self._order = np.argsort(self.ids)

    def positions(self, ids: ArrayLike) -> Positions:
        """Return the rows of the vectors of entries.

        Raises:
            DataError: If an id does not exist.
        """
        wanted = np.asarray(ids, dtype=np.int64)
        at = np.searchsorted(self.ids, wanted, sorter=self._order)
        found: Positions = np.append(self._order, -1)[at]
        wrong = (found < 0) | (np.append(self.ids, -1)[found] != wanted)
        if wrong.any():
            raise DataError(_unknown_id(wanted[wrong][0]))
        return found


@dataclass(frozen=True, eq=False)
class IndexSnapshot:
    """One opened state of an index.

    A change replaces the snapshot and never modifies it.
    """

    manifest: Manifest
    generation: Generation
    finder: Finder

    @classmethod
    def read(cls, path: Path) -> IndexSnapshot:
        """Open the current state of an index.

        Raises:
            DataError: If the folder is no index, or its generation is missing.
        """
        for _ in range(5):  # another process may switch generations between the two reads
            manifest = Manifest.read(path)
            folder = path / manifest.generation
            try:
                generation = Generation(folder)
                return cls(manifest, generation, open_finder(manifest.kind, generation.vectors, folder))
            except FileNotFoundError:
                continue
        raise DataError(f"{path}: index is damaged, {manifest.generation} is missing. Build the index again.")

    def rows(self) -> dict[str, Row]:
        """Return all entries by path, as rows of a next generation."""
        records = self.generation.table.records()
        return {path: Row(number, path, label, key, number) for number, path, key, label in records}


def _unknown_id(number: object) -> str:
    """Return the message for an id that does not exist."""
    return f"id: the index has no entry {number}. Use an id from search or from ids."
