"""What every benchmark set declares of itself, and how its counts are held to what was published."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from winnow.data.fileset import first_few
from winnow.data.imageset import ImageSet
from winnow.data.sets.benchmark import Benchmark, FoldsBy
from winnow.errors import DataError
from winnow.files import write_text

RECORD = "missing.json"
"""In a set's folder: which of its images are known to be missing."""


NAMED = 20
"""So many of the missing files are named in a result."""


@dataclass(frozen=True)
class Source:
    """A file at a public address.

    Attributes:
        url: Where it is.
        file: What it is called.
        md5: Its published checksum; None where none is known for sure.
    """

    url: str
    file: str
    md5: str | None = None


@dataclass(frozen=True)
class Contents:
    """What a reader found: images by part (train, val, test, gallery), and what the label files list beside them.

    Attributes:
        parts: The images of each part.
        absent: For each part the names of what is listed and not there: files, or classes with too few images.
    """

    parts: Mapping[str, ImageSet]
    absent: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Shortfall:
    """A part with another number of images than was published.

    Attributes:
        part: Which one.
        found: Images that are there.
        expected: Images that were published.
        names: Of what is missing, as far as the label files tell.
    """

    part: str
    found: int
    expected: int
    names: tuple[str, ...] = ()

    def told(self, limit: int = 5) -> str:
        """Say it in a few words, with the first names up to a limit."""
        names = f": {first_few(self.names, limit)}" if self.names and limit else ""
        return f"{self.part} has {self.found:,} of {self.expected:,} images{names}"

    def to_dict(self, limit: int | None = None) -> dict[str, Any]:
        """Return what the record keeps, and results with so many names."""
        return {"found": self.found, "expected": self.expected, "names": list(self.names[:limit])}


class Dataset(ABC):
    """A published set: what it is, where it can be had, how its own files are read, and how many images it has.

    A new one is a subclass in a file of its own, and a line in `DATASETS`.

    Attributes:
        name: What it is called in `data=NAME`.
        title: Its full name.
        about: A sentence on what it shows and how it is split.
        terms: Under which terms its owners give it.
        home: Its page.
        layout: The files a folder of it holds.
        folder: What its folder is called; empty: as the set. Sets made from the same files share one.
        counts: Images of each part.
        classes: Classes of each part; a gallery has those of the test.
        ks: The ranks of R@k it is reported at.
        sources: Where its files are; empty where they have to be asked for.
        folds_by: What training is cut by to choose weights on: classes, or the images of each class where the test has
            the same classes; None where it is not cut.
    """

    name: str
    title: ClassVar[str]
    about: str
    terms: ClassVar[str]
    home: ClassVar[str]
    layout: ClassVar[str]
    folder: ClassVar[str] = ""
    counts: Mapping[str, int]
    classes: Mapping[str, int]
    ks: ClassVar[tuple[int, ...]] = (1, 2, 4, 8)
    sources: ClassVar[tuple[Source, ...]] = ()
    folds_by: ClassVar[FoldsBy | None] = "classes"

    @property
    def default_root(self) -> Path:
        """Where it is looked for and put if nothing is said: `$WINNOW_DATA/NAME`, or `data/NAME`."""
        return Path(os.environ.get("WINNOW_DATA", "data")) / (self.folder or self.name)

    @abstractmethod
    def read(self, root: Path) -> Contents:
        """Read the set's own files in a folder, whatever is missing there.

        Raises:
            DataError: where the files are not those of the set.
        """

    def check(self, root: str | Path) -> tuple[Contents, list[Shortfall]]:
        """Read a folder and compare what it holds with what was published.

        Raises:
            DataError: where there is no such folder, or its files are not those of the set.
        """
        root = Path(root)
        if not root.is_dir():
            to = "" if root == self.default_root else f" --to {root}"
            raise DataError(
                f"there is no folder {root}: `winnow datasets get {self.name}{to}` puts {self.title} there; if it is "
                "in another, name that (--data or data.root)"
            )
        contents = self.read(root)
        for part, count in self.classes.items():
            found = len(contents.parts[part].class_names)
            if found != count:
                raise DataError(f"{root}: {part} has {found:,} classes where {self.title} has {count:,}")
        short = [
            Shortfall(part, len(contents.parts[part]), count, contents.absent.get(part, ()))
            for part, count in self.counts.items()
            if len(contents.parts[part]) != count
        ]
        return contents, short

    def note_missing(self, root: str | Path, short: Sequence[Shortfall]) -> None:
        """Note in a folder that the set is used with what is missing; nothing missing takes the note away.

        Raises:
            OutputError: when it cannot be written.
        """
        path = Path(root) / RECORD
        noted = read_record(path.parent)
        noted[self.name] = {one.part: one.to_dict() for one in short}
        noted = {name: parts for name, parts in noted.items() if parts}
        if noted:
            write_text(path, json.dumps(noted, indent=2) + "\n")
        else:
            path.unlink(missing_ok=True)

    def is_noted(self, root: Path, short: Shortfall) -> bool:
        """Whether what a part lacks was noted by `note_missing`.

        Raises:
            DataError: when the note cannot be read.
        """
        return _covers(read_record(root).get(self.name, {}).get(short.part), short)

    def load(self, root: str | Path | None = None) -> Benchmark:
        """Read a folder, and refuse it if images are missing that were not noted by `note_missing`.

        Args:
            root: The folder; None for `default_root`.

        Raises:
            DataError: naming the files.
        """
        place = self.default_root if root is None else Path(root)
        contents, short = self.check(place)
        for one in short:
            if not self.is_noted(place, one):
                raise DataError(
                    f"{place}: {one.told()}. `winnow datasets verify {self.name} {place}` lists them; with "
                    "--allow-missing they are noted, and every result tells"
                )
        parts = contents.parts
        return Benchmark(
            name=self.name, train=parts["train"], test=parts["test"], val=parts.get("val"),
            gallery=parts.get("gallery"), ks=self.ks, folds_by=self.folds_by,
            missing={one.part: one.to_dict(NAMED) for one in short},
        )  # fmt: skip


def read_record(root: Path) -> dict[str, dict[str, Any]]:
    """Read what `note_missing` wrote: set, then part; nothing where it wrote nothing.

    Raises:
        DataError: when it cannot be read.
    """
    path = root / RECORD
    if not path.is_file():
        return {}
    try:
        noted: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        for parts in noted.values():
            for one in parts.values():
                _ = int(one["found"]), list(one["names"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise DataError(f"{path} cannot be read: delete it, and note what is missing anew") from None
    return noted


def _covers(known: Mapping[str, Any] | None, short: Shortfall) -> bool:
    """Whether a part lacks nothing beyond what was noted; too many images are never right."""
    if known is None or short.found > short.expected:
        return False
    return bool(short.found >= int(known["found"]) and set(short.names) <= set(known["names"]))
