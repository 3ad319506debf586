"""Record of a run's images, written at its start and compared on resuming."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from winnow.data import FileImages, ImageSet, Splits, available_cores, resolve_subset
from winnow.data.image_set import first_few
from winnow.errors import DataError, ModelError
from winnow.files import MAX_TEXT_BYTES, open_regular, valid_text

Compare: TypeAlias = Literal["ends", "contents"]
HEADER = ("split", "class", "image", "size", "time", "digest", "position")
EARLIER_HEADER = HEADER[:-1]
"""Columns of earlier records, without the order of images."""
SAMPLE = 4096
"""Bytes at each end of a file whose digest is recorded, unless whole files are compared."""


@dataclass(frozen=True)
class ImageState:
    """Split, class, and file of an image."""

    split: str
    class_name: str
    size: int  # bytes; 0 for an image that is not a file
    time: int  # modification time in nanoseconds; 0 for an image that is not a file
    digest: str  # of the file or of its ends; of the pixels for an image that is not a file
    position: int = -1  # in its split: batches are drawn by position; -1 if unknown

    def differs(self, other: ImageState) -> bool:
        """Return whether the image was replaced.

        A file of another time is the same if its digest is: copies of a dataset often lose the times of its files.
        """
        return self.size != other.size or (self.digest != other.digest)


@dataclass(frozen=True)
class DataRecord:
    """All images of a run by (split, name).

    The training, validation, and test images of one run are recorded together, because a renamed class changes which
    classes each split has.
    """

    images: Mapping[tuple[str, str], ImageState]

    @classmethod
    def of(cls, splits: Splits, compare: Compare = "ends") -> DataRecord:
        """Record the images of all splits.

        Args:
            splits: Images of a run.
            compare: "ends" records size, time, and a digest of both ends of each file; "contents" a digest of all of
                it, which reads every file.
        """
        parts = {"train": splits.train, "val": splits.val, "test": splits.test, "gallery": splits.gallery}
        if splits.val is splits.test:
            del parts["val"]
        found: dict[tuple[str, str], ImageState] = {}
        with ThreadPoolExecutor(available_cores()) as pool:  # network folders take their time for every file
            for split, images in parts.items():
                if images is not None:
                    states = pool.map(_reader(images, split, compare), range(len(images)))
                    found.update({(split, _text(images.name(i))): state for i, state in enumerate(states)})
        return cls(found)

    def digest(self) -> str:
        """Return the SHA-256 digest of the record."""
        return hashlib.sha256(self.to_csv().encode()).hexdigest()

    def to_csv(self) -> str:
        """Return the record as CSV, sorted by split and name."""
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        header = HEADER if all(one.position >= 0 for one in self.images.values()) else EARLIER_HEADER
        table.writerow(header)
        for (split, name), one in sorted(self.images.items()):
            row = [split, one.class_name, name, one.size, one.time, one.digest, one.position]
            table.writerow(row[: len(header)])
        return text.getvalue()

    def write(self, path: Path) -> None:
        """Write the record as compressed CSV."""
        path.write_bytes(gzip.compress(self.to_csv().encode(), mtime=0))

    @classmethod
    def read(cls, path: Path) -> DataRecord:
        """Read a record.

        Raises:
            ModelError: If the file is damaged.
        """
        try:
            with gzip.open(path) as file:
                text = file.read(MAX_TEXT_BYTES + 1)
            if len(text) > MAX_TEXT_BYTES:
                raise ValueError("a record has at most this size; a small file can contain a large text")
            rows = list(csv.reader(io.StringIO(text.decode())))
            assert tuple(rows[0]) in (HEADER, EARLIER_HEADER)
            return cls({
                (split, name): ImageState(split, class_name, int(size), int(time), digest, *map(int, position))
                for split, class_name, name, size, time, digest, *position in rows[1:]
            })  # fmt: skip
        except (OSError, EOFError, ValueError, IndexError, AssertionError, zlib.error, csv.Error):
            raise ModelError(f"{path}: file is damaged. Restore it from a copy.") from None

    def changes(self, now: DataRecord) -> list[str]:
        """Return the differences of the present images, one clause per kind of change."""
        before_split, now_split = _classes(self), _classes(now)
        both = sorted(before_split.keys() & now_split.keys())
        moved = [one for one in both if before_split[one] != now_split[one]]
        clauses = []
        if moved:
            first = moved[0]
            clauses.append(
                f"{len(moved)} classes are in another split (first: {first}, {before_split[first]} before, "
                f"{now_split[first]} now)"
            )
        # Images of moved classes are the same images; only other differences are listed besides.
        before = {name: one for (_, name), one in self.images.items()}
        present = {name: one for (_, name), one in now.images.items()}
        shared = sorted(before.keys() & present.keys())
        kinds = {
            "removed": sorted(before.keys() - present.keys()),
            "added": sorted(present.keys() - before.keys()),
            "replaced": [name for name in shared if before[name].differs(present[name])],
            "in another class": [name for name in shared if before[name].class_name != present[name].class_name],
        }
        clauses += [f"{len(names)} images {kind}: {first_few(names)}" for kind, names in kinds.items() if names]
        if not clauses and (reordered := self._reordered(now)):
            clauses = [f"{len(reordered)} images at another position or in another split: {first_few(reordered)}"]
        return clauses

    def _reordered(self, now: DataRecord) -> list[str]:
        """Return the images at another position or in another split; an order that was not recorded is not compared."""
        found = []
        for (split, name), one in self.images.items():
            other = now.images.get((split, name))
            if other is None or (one.position >= 0 and one.position != other.position):
                found.append(name)
        return found

    def check(self, now: DataRecord, run: str) -> int:
        """Check the present images.

        Returns:
            Number of files with another modification time, but equal size and digest.

        Raises:
            DataError: If they differ from the record; the message names the first of them.
        """
        clauses = self.changes(now)
        if clauses:
            raise DataError(
                f"{run}: the images changed since this run started: {'; '.join(clauses)}. Restore them, or train a "
                "new run."
            )
        return sum(one.time != now.images[key].time for key, one in self.images.items())


def _text(name: str) -> str:
    """Return a name as text that CSV holds: valid Unicode without carriage returns."""
    return valid_text(name).replace("\r", "\\r")


def _classes(record: DataRecord) -> dict[str, str]:
    """Return the splits of each class."""
    found: dict[str, set[str]] = {}
    for (split, _), one in record.images.items():
        found.setdefault(one.class_name, set()).add(split)
    return {name: " and ".join(sorted(splits)) for name, splits in found.items()}


def _reader(images: ImageSet, split: str, compare: Compare) -> Callable[[int], ImageState]:
    """Return a function from the position of an image to its state."""
    root, rows = resolve_subset(images)
    names: Sequence[str] = images.class_names
    labels = np.asarray(images.labels).tolist()

    def read(index: int) -> ImageState:
        class_name = _text(names[labels[index]])
        if not isinstance(root, FileImages):
            return ImageState(split, class_name, 0, 0, images.cache_key(index), index)
        try:
            path = root.path(int(rows[index]))
            state = os.stat(path)
            digest = digest_file(path, state.st_size, compare)
            return ImageState(split, class_name, state.st_size, state.st_mtime_ns, digest, index)
        except OSError:
            return ImageState(split, class_name, 0, 0, "missing", index)

    return read


def digest_file(path: Path, size: int, compare: Compare) -> str:
    """Return a digest of a file, or of both ends of it."""
    with open_regular(path) as file:
        if compare == "contents":
            return hashlib.file_digest(file, "sha256").hexdigest()
        pieces: Iterable[bytes] = [file.read(SAMPLE)]
        if size > SAMPLE:
            file.seek(max(SAMPLE, size - SAMPLE))
            pieces = [*pieces, file.read(SAMPLE)]
        return hashlib.sha256(b"".join(pieces)).hexdigest()[:32]
