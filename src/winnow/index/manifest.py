"""The one file that says what an index holds; to replace it is to change the index, all at once."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from winnow.errors import DataError, ModelError
from winnow.files import lock, write_text

FILE = "index.json"
VERSION = 1


@dataclass(frozen=True)
class Manifest:
    """What an index holds.

    Attributes:
        generation: Name of the folder with vectors and entries.
        model: Fingerprint of the model in the index.
        kind: "exact", "hnsw" or "ivfpq".
        dtype: Of the stored vectors, "float32" or "float16".
        count: Number of entries.
        dim: Size of the vectors.
        next_id: The id that the next entry gets.
        recall: Of an approximate kind, the share of the 10 nearest that it finds; measured when it was built.
    """

    generation: str
    model: str
    kind: str
    dtype: str
    count: int
    dim: int
    next_id: int
    recall: float | None = None

    def write(self, folder: Path) -> None:
        """Make this what the folder holds."""
        content = {"format": "winnow-index", "version": VERSION, **asdict(self)}
        write_text(folder / FILE, json.dumps(content, indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read what a folder holds.

        Raises:
            DataError: when it is no index.
            ModelError: when another version of winnow wrote it.
        """
        if not (folder / FILE).is_file():
            raise DataError(f"{folder} is no index ({FILE} is missing): make one with `winnow index`")
        try:
            content = json.loads((folder / FILE).read_text(encoding="utf-8"))
            name, version = content.pop("format"), content.pop("version")
        except (ValueError, KeyError, AttributeError):
            raise DataError(f"{folder / FILE} is damaged: build the index anew with `winnow index`") from None
        if name != "winnow-index" or version != VERSION:
            raise ModelError(
                f"{folder} is an index of format {name} {version}, and this winnow reads winnow-index {VERSION}: "
                "build it anew with `winnow index`, or use the winnow that made it"
            )
        try:
            return cls(**content)
        except TypeError:
            raise DataError(f"{folder / FILE} is damaged: build the index anew with `winnow index`") from None


def locked(folder: Path) -> AbstractContextManager[None]:
    """Keep other processes from changing an index meanwhile; readers are not disturbed.

    Raises:
        OutputError: on entering, when another process is at it.
    """
    return lock(folder / ".lock", f"changing {folder}")
