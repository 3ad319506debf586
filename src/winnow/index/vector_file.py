"""Embeddings, paths, and labels in one file: NumPy, Parquet, or safetensors."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from winnow.array_file import write_array_header
from winnow.data import ImageSet
from winnow.errors import ConfigError, DataError, MissingExtraError
from winnow.files import write_atomically, write_text
from winnow.index.embedding import ProgressFactory, class_name, content_hashes, full_name, no_progress
from winnow.index.update import Journal, embed_new, no_readable_images

if TYPE_CHECKING:
    from winnow.models import Embedder

SUFFIXES = (".npy", ".parquet", ".safetensors")
_CHUNK = 4096


@dataclass(frozen=True)
class EmbeddedFile:
    """Result of `embed_to_file`."""

    path: Path
    count: int  # number of vectors in the file
    embedded: int  # number of images embedded by this call
    skipped: list[tuple[str, str]]  # path and reason of each unreadable image


@dataclass(frozen=True)
class _Content:
    """Content of a file; vectors are read from the journal, chunk by chunk."""

    journal: Journal
    hashes: Sequence[str]
    paths: Sequence[str]
    labels: Sequence[str | None]
    dim: int
    model: str

    def chunks(self) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        """Yield the rows and the vectors of each chunk."""
        for start in range(0, len(self.hashes), _CHUNK):
            chunk = slice(start, min(start + _CHUNK, len(self.hashes)))
            yield chunk, np.stack([self.journal.get(key)[0] for key in self.hashes[chunk]])


def embed_to_file(
    model: Embedder,
    images: ImageSet,
    path: str | Path,
    *,
    batch_size: int = 64,
    progress: ProgressFactory = no_progress,
) -> EmbeddedFile:
    """Embed images into a file, in their order.

    If the process is killed, the same call resumes.

    - `.npy` contains the vectors (N, dim); a `.csv` file with the same stem contains paths and labels.
    - `.parquet` contains the columns `path`, `label`, and `embedding`.
    - `.safetensors` contains the tensor `embeddings`; its metadata contains the JSON lists `paths` and `labels`.

    Unreadable images are skipped.

    Args:
        model: Model that embeds the images.
        images: Images to embed.
        path: File to write; its suffix selects the format.
        batch_size: Images per batch of the model.
        progress: Reports the progress of each phase.

    Raises:
        ConfigError: If the suffix is unknown.
        DataError: If no image is readable.
        MissingExtraError: If pyarrow is not installed and the format is Parquet.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path}: unknown suffix {path.suffix!r}. Use one of {', '.join(SUFFIXES)}.")
    if path.suffix.lower() == ".parquet":
        _pyarrow()
    hashes = content_hashes(images, progress("reading"))
    journal = Journal(path.with_name(f".partial-{path.name}.sqlite"), model.fingerprint())
    try:
        embedded = embed_new(
            model, images, hashes, set(), journal, batch_size, thumbnails=False, progress=progress("embedding")
        )
        readable = [index for index, key in enumerate(hashes) if key not in embedded.failed]
        skipped = [(full_name(images, index), reason) for index, reason in embedded.reasons]
        if not readable:
            raise DataError(no_readable_images(len(images), skipped))
        content = _Content(
            journal,
            [hashes[index] for index in readable],
            [full_name(images, index) for index in readable],
            [class_name(images, index) for index in readable],
            model.config.dim,
            model.fingerprint(),
        )
        write = {".npy": _write_npy, ".parquet": _write_parquet, ".safetensors": _write_safetensors}
        write[path.suffix.lower()](path, content)
    except BaseException:
        journal.close()
        raise
    journal.delete()
    return EmbeddedFile(path, len(readable), embedded.count, skipped)


def _write_npy(path: Path, content: _Content) -> None:
    """Write vectors as NumPy, and paths and labels as CSV."""

    def write(partial: Path) -> None:
        with open(partial, "wb") as file:
            write_array_header(file, np.float32, (len(content.hashes), content.dim))
            for _, chunk in content.chunks():
                file.write(chunk.astype(np.float32).tobytes())

    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["path", "label"])
    quoted = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for name, label in zip(content.paths, content.labels, strict=True):
        row = [name, label or ""]
        (quoted if "\r" in "".join(row) else table).writerow(row)  # by default csv does not quote this line end
    write_text(path.with_suffix(".csv"), text.getvalue())
    write_atomically(path, write)


def _write_parquet(path: Path, content: _Content) -> None:
    """Write vectors, paths, and labels as columns of a Parquet file."""
    arrow, parquet = _pyarrow()
    schema = arrow.schema(
        [("path", arrow.string()), ("label", arrow.string()), ("embedding", arrow.list_(arrow.float32(), content.dim))],
        metadata={"winnow_model": content.model},
    )

    def write(partial: Path) -> None:
        with parquet.ParquetWriter(str(partial), schema) as writer:
            for rows, chunk in content.chunks():
                vectors = arrow.FixedSizeListArray.from_arrays(arrow.array(chunk.reshape(-1)), content.dim)
                columns = [arrow.array(content.paths[rows]), arrow.array(content.labels[rows], arrow.string()), vectors]
                writer.write_table(arrow.Table.from_arrays(columns, schema=schema))

    write_atomically(path, write)


def _write_safetensors(path: Path, content: _Content) -> None:
    """Write length of the header, header, and values without the library.

    The library requires all vectors in memory.
    """
    shape = [len(content.hashes), content.dim]
    about = {"paths": json.dumps(content.paths), "labels": json.dumps(content.labels), "model": content.model}
    tensor = {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * shape[0] * shape[1]]}
    header = json.dumps({"__metadata__": about, "embeddings": tensor}).encode()
    header += b" " * (-len(header) % 8)

    def write(partial: Path) -> None:
        with open(partial, "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for _, chunk in content.chunks():
                file.write(chunk.astype("<f4").tobytes())

    write_atomically(path, write)


def _pyarrow() -> tuple[Any, Any]:
    """Return the modules pyarrow and pyarrow.parquet."""
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtraError("pyarrow", "parquet", "a Parquet file") from None
    return pyarrow, pyarrow.parquet
