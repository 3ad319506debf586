"""One state of an index on disk: vectors and what they stand for. Written once, then only read."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winnow.errors import DataError, OutputError
from winnow.index.entries import Table, create_table
from winnow.index.exact import Vectors
from winnow.index.journal import Journal

VECTORS, IDS, ENTRIES = "vectors.npy", "ids.npy", "entries.sqlite"
_CHUNK = 4096


@dataclass(frozen=True)
class Row:
    """An entry to be written.

    Attributes:
        id: Its number.
        path: Its path or name.
        label: Its class, if known.
        hash: Of its content.
        origin: The entry of the generation before whose vector and thumbnail it has; None: those in the journal.
    """

    id: int
    path: str
    label: str | None
    hash: str
    origin: int | None


class Generation:
    """A generation opened for reading; its vectors are mapped, not read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ids: NDArray[np.int64] = np.load(folder / IDS, allow_pickle=False)
        empty = len(self.ids) == 0  # of which there is nothing to map
        self.vectors: Vectors = np.load(folder / VECTORS, mmap_mode=None if empty else "r", allow_pickle=False)
        self.table = Table(folder / ENTRIES)
        self._order = np.argsort(self.ids)

    def places(self, ids: ArrayLike) -> NDArray[np.int64]:
        """Return the rows of the vectors of some entries.

        Raises:
            DataError: for an id that is not there.
        """
        wanted = np.asarray(ids, dtype=np.int64)
        at = np.searchsorted(self.ids, wanted, sorter=self._order)
        found: NDArray[np.int64] = np.append(self._order, -1)[at]
        wrong = (found < 0) | (np.append(self.ids, -1)[found] != wanted)
        if wrong.any():
            raise DataError(f"the index has no entry {wanted[wrong][0]}: it was removed, or never there")
        return found


def write_generation(
    folder: Path, rows: Sequence[Row], before: Generation | None, journal: Journal | None, dim: int, dtype: str,
    progress: Callable[[int, int], None] | None = None,
) -> None:  # fmt: skip
    """Write a new generation into a folder that does not exist yet.

    Raises:
        OutputError: when it cannot be written; what is left of it is removed.
    """
    try:
        folder.mkdir(parents=True)
        np.save(folder / IDS, np.array([row.id for row in rows], dtype=np.int64))
        if rows:
            vectors = np.lib.format.open_memmap(folder / VECTORS, mode="w+", dtype=dtype, shape=(len(rows), dim))
        else:
            np.save(folder / VECTORS, np.zeros((0, dim), dtype=dtype))
            vectors = None
        db = create_table(folder / ENTRIES)
        try:
            for start in range(0, len(rows), _CHUNK):
                part = rows[start : start + _CHUNK]
                found = list(_content(part, before, journal))
                assert vectors is not None, "there are rows"
                vectors[start : start + len(part)] = np.stack([vector for vector, _ in found])
                db.executemany(
                    "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)",
                    [(row.id, start + number, row.path, row.label, row.hash, found[number][1])
                     for number, row in enumerate(part)],
                )  # fmt: skip
                if progress is not None:
                    progress(start + len(part), len(rows))
            db.commit()
        finally:
            db.close()
        if vectors is not None:
            vectors.flush()
        for name in (VECTORS, IDS):
            with open(folder / name, "r+b") as file:
                os.fsync(file.fileno())
    except (OSError, sqlite3.Error) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise OutputError(f"{folder} could not be written ({error}): free some room or choose another place") from None


def _content(
    rows: Sequence[Row], before: Generation | None, journal: Journal | None
) -> Iterator[tuple[NDArray[np.float32], bytes]]:
    """Yield the vector and the thumbnail of each row."""
    for row in rows:
        if row.origin is not None:
            assert before is not None, "an origin is an entry of it"
            yield before.vectors[before.places([row.origin])[0]], before.table.entry(row.origin).thumbnail
        else:
            assert journal is not None, "what is new was embedded into it"
            vector, thumbnail = journal.get(row.hash)
            yield vector, thumbnail or b""
