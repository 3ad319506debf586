"""Files of an index: manifest, generation, and entries.

A generation is written once and then only read.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import sqlite3
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from urllib.request import pathname2url

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from winnow.array_file import ArrayFile
from winnow.errors import DataError, ModelError, WinnowError
from winnow.files import lock, open_regular, parse_json, read_text, valid_text, write_text
from winnow.index.finders import KINDS, Finder, Positions, Vectors, open_finder
from winnow.integrity import check_file, read_checksums, report_unverified

MANIFEST = "index.json"
REBUILD = "Build the index again, or restore it from a copy."
_ROWS = 65536
VERSION = 1
VECTORS, IDS, ENTRIES = "vectors.npy", "ids.npy", "entries.sqlite"
CHECKSUM = "sha256"  # key of the manifest; version 0.1.0 wrote none
LARGE = 64 * 2**20
"""Files of more bytes are verified by a thread while the index is used."""
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
        """Write the manifest with the checksum of its other keys."""
        content = {"format": "winnow-index", "version": VERSION, **asdict(self)}
        write_text(folder / MANIFEST, json.dumps({**content, CHECKSUM: _checksum(content)}, indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest of an index.

        Raises:
            DataError: If the folder is no index, or the file is damaged.
            ModelError: If the format has another version.
        """
        file = folder / MANIFEST
        if not file.is_file():
            raise DataError(f"{folder}: not an index, {MANIFEST} is missing. Build an index first.", hint="index")
        damaged = f"{file}: file is damaged. Build the index again."
        try:
            content = parse_json(read_text(file))
            checksum = content.pop(CHECKSUM, None)
            changed = checksum is not None and checksum != _checksum(content)
            name, version = content.pop("format"), content.pop("version")
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            raise DataError(damaged) from None
        if name != "winnow-index" or version != VERSION:
            raise ModelError(
                f"{file}: expected format winnow-index {VERSION}, got {name} {version}. "
                "Build the index again, or use the version of winnow that wrote it."
            )
        if changed:
            raise DataError(damaged)
        try:
            manifest = cls(**content)
        except TypeError:
            raise DataError(damaged) from None
        if not manifest.is_valid():
            raise DataError(damaged)
        return manifest

    def is_valid(self) -> bool:
        """Whether all values have their types, and the generation is a folder of the index."""
        texts = (self.generation, self.model, self.kind, self.dtype)
        numbers = (self.count, self.dim, self.next_id)
        return (
            all(isinstance(one, str) for one in texts)
            and all(type(one) is int and one >= 0 for one in numbers)
            and re.fullmatch(r"generation-\d+", self.generation, re.ASCII) is not None
            and self.kind in KINDS
            and self.dtype in ("float32", "float16")
            and isinstance(self.recall, float | int | None)
        )


def _checksum(content: Mapping[str, object]) -> str:
    """Return the SHA-256 digest of the content of a manifest."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def lock_index(folder: Path) -> AbstractContextManager[None]:
    """Lock an index against changes by other processes; readers are not affected.

    Raises:
        OutputError: On entering, if another process changes the index.
    """
    return lock(folder / ".lock", f"changing {folder}")


class UnknownEntryError(DataError):
    """An index has no entry with an id."""

    def __init__(self, number: object) -> None:
        super().__init__(f"id: the index has no entry {number}. Use an id from search or from ids.")


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
        self._file = file
        self._opened = open_regular(file)  # the same file after an update of the index removed its name
        weakref.finalize(self, self._opened.close)
        self._bytes = os.fstat(self._opened.fileno()).st_size
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = self._connect()

    def _connect(self) -> sqlite3.Connection:
        # `immutable` means no locks and no side files, so an index in a read-only folder can be searched.
        address = f"file:{pathname2url(str(self._file.absolute()))}?mode=ro&immutable=1"
        return sqlite3.connect(address, uri=True, check_same_thread=False)

    def _all(self, query: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        with self._lock:
            self.check_length()
            if self._db is None:
                self._db = self._connect()
            try:
                found = self._db.execute(query, values).fetchall()
                self.check_length()  # SQLite reads zeros beyond the end of a file
            except (sqlite3.DatabaseError, DataError) as error:
                if self._file.is_file():  # a connection caches pages that were read meanwhile
                    self._db.close()
                    self._db = None
                if isinstance(error, DataError):
                    raise
                raise DataError(f"{self._file}: file is damaged ({error}). {REBUILD}") from None
        return found

    def check_length(self) -> None:
        """Raise `DataError` if the file was cut short after it was opened."""
        if os.fstat(self._opened.fileno()).st_size < self._bytes:
            raise DataError(f"{self._file}: file was cut short while it is in use. {REBUILD}")

    def entry(self, number: int) -> Entry:
        """Return an entry by its id.

        Raises:
            DataError: If the id does not exist.
        """
        found = self._all("SELECT id, path, label, hash, thumbnail FROM entries WHERE id = ?", (int(number),))
        if not found:
            raise UnknownEntryError(number)
        entry = Entry(*found[0])  # type: ignore[arg-type]
        return entry if entry.thumbnail else replace(entry, thumbnail=_blank_thumbnail())

    def stored_thumbnail(self, number: int) -> bytes:
        """Return the thumbnail of an existing entry as stored; empty without an image."""
        return self._all("SELECT thumbnail FROM entries WHERE id = ?", (int(number),))[0][0]  # type: ignore[return-value]

    def find(self, path: str) -> int | None:
        """Return the id of the entry with a path; None if it does not exist."""
        found = self._all("SELECT id FROM entries WHERE path = ?", (valid_text(path),))
        return int(found[0][0]) if found else None  # type: ignore[call-overload]

    def records(self) -> list[tuple[int, str, str, str | None]]:
        """Return id, path, hash, and label of every entry, in the order of the vectors."""
        found = self._all("SELECT id, path, hash, label FROM entries ORDER BY place")
        return found  # type: ignore[return-value]

    def count(self) -> int:
        """Return the number of entries.

        Raises:
            DataError: If the entries are a view, which may compute for ever.
        """
        if self._all("SELECT type FROM sqlite_master WHERE name = 'entries'") != [("table",)]:
            raise DataError(f"{self._file}: file is damaged (no table of entries). {REBUILD}")
        count: int = self._all("SELECT COUNT(*) FROM entries")[0][0]  # type: ignore[assignment]
        return count

    def labels(self) -> list[str | None]:
        """Return the class of every entry, in the order of the vectors."""
        return [row[0] for row in self._all("SELECT label FROM entries ORDER BY place")]  # type: ignore[misc]

    def close(self) -> None:
        """Close the file."""
        if self._db is not None:
            self._db.close()
        self._opened.close()


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


class Verification:
    """Verification of the files of a generation.

    Small files are verified immediately, large ones by a thread.

    Vectors without a checksum, of version 0.1.0, are checked for NaN and infinite values.

    Raises:
        DataError: If a small file does not match its checksum.
    """

    def __init__(self, folder: Path, vectors: Vectors) -> None:
        self._folder, self._vectors = folder, vectors
        self._failure: WinnowError | None = None
        self._thread: threading.Thread | None = None
        checksums = read_checksums(folder)
        if checksums is None:
            report_unverified(folder)
        files = [folder / name for name in (VECTORS, IDS, ENTRIES) if checksums is None] or [
            folder / name for name in checksums or {}
        ]
        # FAISS reads its file at once and does not survive damage, so its file is never left for later.
        large = [file for file in files if file.name in (VECTORS, ENTRIES) and file.stat().st_size > LARGE]
        self._check([file for file in files if file not in large], checksums is not None)
        self.raise_failure()
        if large:
            arguments = (large, checksums is not None)
            self._thread = threading.Thread(target=self._check, args=arguments, daemon=True)
            self._thread.start()

    def _check(self, files: Sequence[Path], have_checksums: bool) -> None:
        try:
            for file in files:
                if have_checksums:
                    check_file(file, error=DataError, remedy=REBUILD)
                elif file.name == VECTORS:
                    check_finite(self._vectors, file)
        except WinnowError as error:
            self._failure = error
        except OSError as error:
            self._failure = DataError(f"{self._folder}: file cannot be read ({error.strerror}). {REBUILD}")

    def raise_failure(self) -> None:
        """Raise the error of a damaged file, if one was found so far."""
        if self._failure is not None:
            raise self._failure

    def check(self) -> bool:
        """Return whether all files are verified by now; raises the error of a damaged file."""
        is_done = self._thread is None or not self._thread.is_alive()
        self.raise_failure()
        return is_done

    def wait(self) -> None:
        """Wait until all files are verified; raises the error of a damaged file."""
        if self._thread is not None:
            self._thread.join()
        self.raise_failure()


def check_finite(vectors: Vectors, file: Path) -> None:
    """Raise `DataError` if a row of vectors (N, D) contains NaN or infinite values."""
    for start in range(0, len(vectors), _ROWS):
        finite = np.isfinite(vectors[start : start + _ROWS]).all(axis=1)
        if not finite.all():
            row = start + int(np.argmin(finite))
            raise DataError(f"{file}: row {row} contains NaN or infinite values, which hide true neighbors. {REBUILD}")


def open_vectors(folder: Path) -> ArrayFile:
    """Open the vectors of a generation."""
    return ArrayFile(folder / VECTORS, remedy=REBUILD)


class Generation:
    """One state of an index on disk, opened for reading; vectors are read when they are used.

    Raises:
        DataError: If a file is damaged, or sizes or types differ from the manifest.
    """

    def __init__(self, folder: Path, manifest: Manifest | None = None) -> None:
        self.folder = folder
        try:
            self.ids: NDArray[np.int64] = ArrayFile(folder / IDS)[:]
            self.vectors = open_vectors(folder)
        except ValueError as error:
            raise DataError(f"{folder}: {IDS} or {VECTORS} is damaged ({error}). {REBUILD}") from None
        if manifest is not None:
            self._check_sizes(manifest)
        self.verification = Verification(folder, self.vectors)
        self.table = EntryTable(folder / ENTRIES)
        if manifest is not None and (count := self.table.count()) != manifest.count:
            raise DataError(f"{folder / ENTRIES}: expected {manifest.count} entries, got {count}. {REBUILD}")
        self._order = np.argsort(self.ids)

    def _check_sizes(self, manifest: Manifest) -> None:
        expected = ((manifest.count,), "int64"), ((manifest.count, manifest.dim), manifest.dtype)
        arrays: tuple[Vectors, Vectors] = self.ids, self.vectors
        for name, array, (shape, dtype) in zip((IDS, VECTORS), arrays, expected, strict=True):
            if array.shape != shape or array.dtype != dtype:
                raise DataError(
                    f"{self.folder / name}: expected {dtype} of shape {shape}, got {array.dtype} of shape "
                    f"{array.shape}. {REBUILD}"
                )

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
            raise UnknownEntryError(wanted[wrong][0])
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
                generation = Generation(folder, manifest)
                return cls(manifest, generation, open_finder(manifest.kind, generation.vectors, folder))
            except FileNotFoundError:
                continue
        raise DataError(f"{path}: index is damaged, {manifest.generation} is missing. Build the index again.")

    def rows(self) -> dict[str, Row]:
        """Return all entries by path, as rows of a next generation."""
        records = self.generation.table.records()
        return {path: Row(number, path, label, key, number) for number, path, key, label in records}
