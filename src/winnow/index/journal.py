"""Vectors made so far, kept until what they are for is written: a killed process starts again where it stopped."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from winnow.errors import OutputError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS made (hash TEXT PRIMARY KEY, vector BLOB NOT NULL, thumbnail BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS about (model TEXT NOT NULL);
"""


class Journal:
    """A file of vectors and thumbnails by the hash of the image's content.

    What another model left in it is dropped, and so is a file that cannot be read: it only ever saves time.

    Args:
        path: The file.
        model: Fingerprint of the model that makes the vectors.
    """

    def __init__(self, path: Path, model: str) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._db = self._open(model)
            except sqlite3.DatabaseError:
                path.unlink(missing_ok=True)
                self._db = self._open(model)
        except (OSError, sqlite3.Error) as error:
            raise OutputError(
                f"{path} could not be written ({error}): free some room or choose another place"
            ) from None

    def _open(self, model: str) -> sqlite3.Connection:
        db = sqlite3.connect(self.path)
        db.executescript(_SCHEMA)
        found = db.execute("SELECT model FROM about").fetchone()
        if found is not None and found[0] != model:
            db.executescript("DELETE FROM made; DELETE FROM about;")
        if found is None or found[0] != model:
            db.execute("INSERT INTO about VALUES (?)", (model,))
            db.commit()
        return db

    def hashes(self) -> set[str]:
        """Return the hashes of all images in it."""
        return {row[0] for row in self._db.execute("SELECT hash FROM made")}

    def add(self, hashes: Sequence[str], vectors: NDArray[np.float32], thumbnails: Sequence[bytes] | None) -> None:
        """Keep a batch; it survives whatever happens next."""
        small = thumbnails if thumbnails is not None else [None] * len(hashes)
        rows = [(key, vector.tobytes(), image) for key, vector, image in zip(hashes, vectors, small, strict=True)]
        try:
            with self._db:
                self._db.executemany("INSERT OR REPLACE INTO made VALUES (?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise OutputError(f"{self.path} could not be written ({error}): free some room and start again") from None

    def get(self, key: str) -> tuple[NDArray[np.float32], bytes | None]:
        """Return the vector and the thumbnail of an image."""
        vector, image = self._db.execute("SELECT vector, thumbnail FROM made WHERE hash = ?", (key,)).fetchone()
        return np.frombuffer(vector, dtype=np.float32), image

    def close(self) -> None:
        """Let go of the file, and leave it for another time."""
        self._db.close()

    def delete(self) -> None:
        """Remove the file: what it was for is written."""
        self._db.close()
        self.path.unlink(missing_ok=True)
