"""Changes of an index: embed, plan, write a generation, and switch to it.

A new generation is written next to the current one, and replacing the manifest switches to it. The caller holds the
lock of the index.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from winnow.array_file import write_array_header
from winnow.data import UNLABELED, FileImages, ImageSet, available_cores, read_collection, read_image
from winnow.errors import DataError, OutputError
from winnow.evaluation.inputs import Array, as_embeddings
from winnow.files import valid_text
from winnow.index.embedding import (
    Progress,
    ProgressFactory,
    class_name,
    content_hashes,
    embed_images,
    file_hash,
    full_name,
    text_hash,
    thumbnail,
)
from winnow.index.finders import build_finder, check_kind, measure_recall, open_finder
from winnow.index.storage import (
    ENTRIES,
    IDS,
    VECTORS,
    Generation,
    IndexSnapshot,
    Manifest,
    Row,
    create_entry_table,
    open_vectors,
)
from winnow.integrity import record_checksums

if TYPE_CHECKING:
    from winnow.models import Embedder

Images: TypeAlias = ImageSet | str | PathLike[str] | Sequence[str | PathLike[str]]
"""An image set, a folder or CSV file, or paths of image files."""

_GENERATION = "generation-"
_CHUNK = 4096
_SCHEMA = """
CREATE TABLE IF NOT EXISTS made (hash TEXT PRIMARY KEY, vector BLOB NOT NULL, thumbnail BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS about (model TEXT NOT NULL);
"""

_Content: TypeAlias = tuple[NDArray[np.float32], bytes]
"""Vector and thumbnail of an entry."""


@dataclass
class Changes:
    """Numbers of entries that a change added, updated, removed, and left unchanged."""

    added: int = 0
    updated: int = 0
    removed: int = 0
    unchanged: int = 0
    embedded: int = 0  # number of images that the model embedded
    skipped: list[tuple[str, str]] = field(default_factory=list)  # path and reason of each unreadable image


@dataclass(frozen=True)
class ImageRecord:
    """Input image of an index update: path, content hash, and optional class label."""

    path: str
    hash: str
    label: str | None


class Journal:
    """File of vectors and thumbnails by content hash, which survives a killed process.

    Vectors of another model are dropped, and so is an unreadable file: a journal only saves time.

    Args:
        path: The file.
        model: Fingerprint of the model that computes the vectors.
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
            raise OutputError(_not_written(path, error)) from None

    def _open(self, model: str) -> sqlite3.Connection:
        """Open the file and drop the vectors of another model."""
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
        """Return the hashes of all images in the journal."""
        return {row[0] for row in self._db.execute("SELECT hash FROM made")}

    def add(self, hashes: Sequence[str], vectors: NDArray[np.float32], thumbnails: Sequence[bytes] | None) -> None:
        """Add a batch and commit it to disk."""
        small = thumbnails if thumbnails is not None else [None] * len(hashes)
        rows = [(key, vector.tobytes(), image) for key, vector, image in zip(hashes, vectors, small, strict=True)]
        try:
            with self._db:
                self._db.executemany("INSERT OR REPLACE INTO made VALUES (?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise OutputError(_not_written(self.path, error)) from None

    def get(self, key: str) -> tuple[NDArray[np.float32], bytes | None]:
        """Return the vector and the thumbnail of an image."""
        vector, image = self._db.execute("SELECT vector, thumbnail FROM made WHERE hash = ?", (key,)).fetchone()
        return np.frombuffer(vector, dtype=np.float32), image

    def close(self) -> None:
        """Close the file and keep it."""
        self._db.close()

    def delete(self) -> None:
        """Close and delete the file."""
        self._db.close()
        self.path.unlink(missing_ok=True)


@dataclass
class EmbeddedImages:
    """Result of `embed_new`: number of new vectors, and unreadable images."""

    count: int = 0
    failed: set[str] = field(default_factory=set)  # hashes of unreadable images
    reasons: list[tuple[int, str]] = field(default_factory=list)  # position and reason of each unreadable image


def embed_new(
    model: Embedder, images: ImageSet, hashes: Sequence[str], known: set[str], journal: Journal, batch_size: int, *,
    thumbnails: bool, progress: Progress,
) -> EmbeddedImages:  # fmt: skip
    """Embed images with new hashes, each hash once."""
    have = known | journal.hashes()
    new: dict[str, int] = {}
    for index, key in enumerate(hashes):
        if key not in have:
            new.setdefault(key, index)
    embedded, done = EmbeddedImages(), 0
    for batch in embed_images(model, images, list(new.values()), batch_size=batch_size, thumbnails=thumbnails):
        journal.add([hashes[index] for index in batch.indices], batch.vectors, batch.thumbnails)
        embedded.count += len(batch.indices)
        embedded.failed.update(hashes[index] for index, _ in batch.failures)
        embedded.reasons += [(index, str(getattr(error, "reason", error))) for index, error in batch.failures]
        done += len(batch.indices) + len(batch.failures)
        progress(done, len(new))
    return embedded


def update_index(
    path: Path, manifest: Manifest, before: IndexSnapshot | None, model: Embedder, images: ImageSet, *,
    prune: bool, batch_size: int, progress: ProgressFactory,
) -> tuple[IndexSnapshot | None, Changes]:  # fmt: skip
    """Embed new images, and write a new generation if any entry changes.

    Args:
        path: Folder of the index.
        manifest: Manifest before the change.
        before: Current state; None for a new index.
        model: Model of the index.
        images: Images that the index shall contain.
        prune: Remove all other entries.
        batch_size: Images per batch of the model.
        progress: Reports the progress of each phase.

    Returns:
        The new state, or `before` if nothing changed, and the changes.

    Raises:
        DataError: If the index would be new and no image is readable.
    """
    hashes = content_hashes(images, progress("reading"))
    records = [ImageRecord(full_name(images, i), key, class_name(images, i)) for i, key in enumerate(hashes)]
    known = {} if before is None else before.rows()
    have = {row.hash for row in known.values()}
    journal = Journal(path / ".journal.sqlite", manifest.model or model.fingerprint())
    try:
        embedded = embed_new(
            model, images, hashes, have, journal, batch_size, thumbnails=True, progress=progress("embedding")
        )
        rows, changes, next_id = plan_rows(known, records, embedded.failed, prune=prune, next_id=manifest.next_id)
        changes.embedded = embedded.count
        changes.skipped = [(records[index].path, reason) for index, reason in embedded.reasons]
        if not rows and not known:
            raise DataError(no_readable_images(len(images), changes.skipped))
        after = before
        if before is None or changes.added or changes.updated or changes.removed:
            manifest = replace(manifest, next_id=next_id)
            after = write_index(path, manifest, rows, _stored_or_journaled(before, journal), progress)
    except BaseException:
        journal.close()
        raise
    journal.delete()
    return after, changes


def no_readable_images(count: int, skipped: Sequence[tuple[str, str]]) -> str:
    """Return the message for images of which none can be read."""
    first = f" (first: {skipped[0][0]}, {skipped[0][1]})" if skipped else ""
    return f"images: none of the {count} images can be read{first}. Check the files."


def rewrite_index(
    path: Path, manifest: Manifest, before: IndexSnapshot, rows: Sequence[Row], progress: ProgressFactory
) -> IndexSnapshot:
    """Write a new generation from rows of the current one, and switch to it."""
    return write_index(path, manifest, rows, _stored_or_journaled(before, None), progress)


def vector_rows(
    vectors: Array, names: Sequence[str | PathLike[str] | int], labels: Sequence[str | int | None] | Array | None,
    dtype: str,
) -> tuple[NDArray[np.float32], list[Row]]:  # fmt: skip
    """Check given vectors, and return them with one row per vector.

    Args:
        vectors: Shape (N, D), any float type.
        names: Path or name of each vector.
        labels: Class of each vector; None: unknown.
        dtype: Type of the stored vectors.

    Raises:
        DataError: If the vectors are unusable, counts differ, or a name is repeated.
    """
    values = _stored_vectors(vectors, dtype)
    paths = _entry_paths(names, len(values))
    classes = _entry_labels(labels, len(values))
    with ThreadPoolExecutor(available_cores()) as pool:
        hashes = list(pool.map(lambda path: file_hash(path) or text_hash(path), paths))
    return values, [Row(i, paths[i], classes[i], hashes[i], None) for i in range(len(values))]


def write_vectors(
    path: Path, manifest: Manifest, vectors: NDArray[np.float32], rows: Sequence[Row], progress: ProgressFactory
) -> tuple[IndexSnapshot, Changes]:
    """Write a new index of vectors and rows from `vector_rows`.

    Image files get thumbnails.
    """
    with ThreadPoolExecutor(available_cores()) as pool:

        def content(chunk: Sequence[Row]) -> Iterator[_Content]:
            thumbnails = pool.map(_thumbnail_or_empty, [row.path for row in chunk])
            return ((vectors[row.id], image) for row, image in zip(chunk, thumbnails, strict=True))

        snapshot = write_index(path, replace(manifest, next_id=len(rows)), rows, content, progress)
    return snapshot, Changes(added=len(rows))


def _stored_vectors(vectors: Array, dtype: str) -> NDArray[np.float32]:
    """Return vectors (N, D) as float32, if they are finite in the type that is stored."""
    values: NDArray[np.float32] = as_embeddings(as_embeddings(vectors, "vectors").float(), "vectors").cpu().numpy()
    limit = float(np.finfo(dtype).max)
    largest = float(np.abs(values).max())
    if largest > limit:
        raise DataError(f"vectors: {largest:g} is too large for {dtype}. Scale the vectors, or use dtype='float32'.")
    return values


def _entry_paths(names: Sequence[str | PathLike[str] | int], count: int) -> list[str]:
    """Return each entry's path: absolute for an existing file, else the name."""
    if isinstance(names, str) or len(names) != count:
        number = "one string" if isinstance(names, str) else str(len(names))
        raise DataError(f"names: expected {count} names, one per vector, got {number}.")
    paths: dict[str, int] = {}
    for index, name in enumerate(names):
        text = os.fspath(name) if isinstance(name, PathLike) else str(name)
        path = valid_text(os.path.abspath(text) if os.path.isfile(text) else text)
        if path in paths:
            raise DataError(f"names: {text!r} is at positions {paths[path]} and {index}. Names must be unique.")
        paths[path] = index
    return list(paths)


def _entry_labels(labels: Sequence[str | int | None] | Array | None, count: int) -> list[str | None]:
    """Return the class of each entry as text; None if unknown."""
    if labels is None:
        return [None] * count
    values: Sequence[object] = labels.tolist() if isinstance(labels, np.ndarray | Tensor) else labels
    if isinstance(labels, str) or len(values) != count:
        number = "one string" if isinstance(labels, str) else str(len(values))
        raise DataError(f"labels: expected {count} labels, one per vector, got {number}.")
    return [None if value is None else str(value) for value in values]


def _thumbnail_or_empty(path: str) -> bytes:
    """Return the thumbnail of an image file; empty if it cannot be read."""
    try:
        return thumbnail(read_image(path)) if os.path.isfile(path) else b""
    except DataError:
        return b""


def plan_rows(
    known: Mapping[str, Row], records: Sequence[ImageRecord], unreadable: Collection[str], *, prune: bool, next_id: int
) -> tuple[list[Row], Changes, int]:
    """Decide the entries of the next generation.

    - A path keeps its id, also if its content changes.
    - Known content keeps its vector, under any path.
    - Of repeated paths the first one counts.
    - An image that has become unreadable keeps its entry.

    Args:
        known: Current entries by path.
        records: Input images, in order.
        unreadable: Hashes of unreadable images.
        prune: Drop the entries that are not among the input images.
        next_id: First id that was never used.

    Returns:
        Rows to write, the changes, and the first id that is unused afterwards.
    """
    by_hash = {row.hash: row for row in known.values()}
    rows: dict[str, Row] = {} if prune else dict(known)
    changes, seen = Changes(), set[str]()
    for image in records:
        if image.path in seen:
            continue
        seen.add(image.path)
        old = known.get(image.path)
        if image.hash in unreadable:
            if old is not None:
                rows[image.path] = old
            continue
        same = by_hash.get(image.hash)
        number = next_id if old is None else old.id
        rows[image.path] = Row(number, image.path, image.label, image.hash, None if same is None else same.id)
        if old is None:
            next_id += 1
            changes.added += 1
        elif (old.hash, old.label) == (image.hash, image.label):
            changes.unchanged += 1
        else:
            changes.updated += 1
    changes.removed = len(known.keys() - rows.keys())
    return list(rows.values()), changes, next_id


def write_index(
    path: Path, manifest: Manifest, rows: Sequence[Row], content: Callable[[Sequence[Row]], Iterable[_Content]],
    progress: ProgressFactory,
) -> IndexSnapshot:  # fmt: skip
    """Write a new generation, switch to it, and remove the other generations.

    Args:
        path: Folder of the index.
        manifest: Manifest of the index; generation, count, and recall are replaced.
        rows: Entries to write.
        content: Returns the vector and the thumbnail of each of the given rows.
        progress: Reports the progress of each phase.
    """
    check_kind(manifest.kind, len(rows))
    numbers = [int(folder.name.removeprefix(_GENERATION)) for folder in generation_folders(path)]
    name = f"{_GENERATION}{max(numbers, default=0) + 1:06d}"
    folder = path / name
    write_generation(folder, rows, content, manifest.dim, manifest.dtype, progress("writing"))
    build_finder(manifest.kind, open_vectors(folder), folder)
    record_checksums(folder, sorted(file.name for file in folder.iterdir()))
    generation = Generation(folder, replace(manifest, count=len(rows)))
    finder = open_finder(manifest.kind, generation.vectors, folder)
    recall = None if manifest.kind == "exact" else measure_recall(finder, generation.vectors)
    manifest = replace(manifest, generation=name, count=len(rows), recall=recall)
    manifest.write(path)
    for other in generation_folders(path):
        if other.name != name:
            shutil.rmtree(other, ignore_errors=True)  # a reader keeps the files that it has open
    return IndexSnapshot(manifest, generation, finder)


def write_generation(
    folder: Path, rows: Sequence[Row], content: Callable[[Sequence[Row]], Iterable[_Content]], dim: int, dtype: str,
    progress: Progress,
) -> None:  # fmt: skip
    """Write a new generation into a folder that does not exist yet.

    Raises:
        DataError: If a vector contains NaN or infinite values; the partial folder is removed.
        OutputError: If writing fails; the partial folder is removed.
    """
    try:
        folder.mkdir(parents=True)
        np.save(folder / IDS, np.array([row.id for row in rows], dtype=np.int64))
        db = create_entry_table(folder / ENTRIES)
        with closing(db), open(folder / VECTORS, "wb") as file:
            write_array_header(file, dtype, (len(rows), dim))
            for start in range(0, len(rows), _CHUNK):
                chunk = rows[start : start + _CHUNK]
                found = list(content(chunk))
                values = np.stack([vector for vector, _ in found]).astype(dtype)
                finite = np.isfinite(values).all(axis=1)
                if not finite.all():
                    path = chunk[int(np.argmin(finite))].path
                    raise DataError(f"{path}: its vector contains NaN or infinite values. Check the model.")
                file.write(values.tobytes())
                db.executemany(
                    "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)",
                    [(row.id, start + number, row.path, row.label, row.hash, found[number][1])
                     for number, row in enumerate(chunk)],
                )  # fmt: skip
                progress(start + len(chunk), len(rows))
            db.commit()
        for name in (VECTORS, IDS):
            with open(folder / name, "r+b") as file:
                os.fsync(file.fileno())
    except DataError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    except (OSError, sqlite3.Error) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise OutputError(_not_written(folder, error)) from None


def _stored_or_journaled(
    before: IndexSnapshot | None, journal: Journal | None
) -> Callable[[Sequence[Row]], Iterator[_Content]]:
    """Return the content of rows from the current generation or the journal."""

    def content(rows: Sequence[Row]) -> Iterator[_Content]:
        for row in rows:
            if row.origin is not None:
                assert before is not None, "an origin is an entry of the current generation"
                stored = before.generation
                yield stored.vectors[stored.positions([row.origin])[0]], stored.table.stored_thumbnail(row.origin)
            else:
                assert journal is not None, "new images were embedded into the journal"
                vector, image = journal.get(row.hash)
                yield vector, image or b""

    return content


def generation_folders(path: Path) -> list[Path]:
    """Return the folders of all generations.

    One is current, the others are leftovers of interrupted changes.
    """
    return [one for one in path.glob(f"{_GENERATION}*") if one.name.removeprefix(_GENERATION).isdigit()]


def as_image_set(images: Images) -> ImageSet:
    """Return an image set from a set, a folder, a CSV file, or image files."""
    if isinstance(images, ImageSet):
        return images
    if isinstance(images, str | PathLike):
        return read_collection(Path(images))
    paths = [os.fspath(path) for path in images]
    return FileImages.from_names(Path(), paths, [UNLABELED] * len(paths))


def _not_written(path: Path, error: Exception) -> str:
    """Return the message for a file or folder that cannot be written."""
    return f"{path}: cannot be written ({error}). Free disk space or choose another folder."
