"""Vectors of many images in one file: NumPy, Parquet or safetensors, with the images' paths and labels."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.data import ImageSet
from winnow.errors import ConfigError, DataError, MissingExtraError
from winnow.files import write_atomically, write_text
from winnow.index.embedding import embed_new
from winnow.index.hashing import Task, content_hashes, full_name, label, silent
from winnow.index.journal import Journal
from winnow.models import Embedder

SUFFIXES = (".npy", ".parquet", ".safetensors")
_CHUNK = 4096


@dataclass(frozen=True)
class EmbeddedFile:
    """What was written: how many vectors, how many of them made now, and (path, reason) of images left out."""

    path: Path
    count: int
    embedded: int
    skipped: list[tuple[str, str]]


@dataclass(frozen=True)
class _Content:
    """What a file is made of; vectors come from the journal, a chunk at a time."""

    journal: Journal
    hashes: Sequence[str]
    paths: Sequence[str]
    labels: Sequence[str | None]
    dim: int
    model: str

    def chunks(self) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        for start in range(0, len(self.hashes), _CHUNK):
            part = slice(start, min(start + _CHUNK, len(self.hashes)))
            yield part, np.stack([self.journal.get(key)[0] for key in self.hashes[part]])


def embed_to_file(
    model: Embedder, images: ImageSet, path: str | Path, *, batch_size: int = 64, task: Task = silent
) -> EmbeddedFile:
    """Embed images into a file, in their order; after a kill the same call goes on where it stopped.

    `.npy` holds the vectors (N, dim) alone, and paths and labels stand in a `.csv` beside it; `.parquet` has the
    columns path, label and embedding; `.safetensors` the tensor `embeddings`, and in its metadata the JSON lists
    `paths` and `labels`. Images that cannot be read are left out.

    Args:
        model: What makes vectors of images.
        images: What to embed.
        path: The file; its suffix says of which kind.
        batch_size: Images embedded at a time.
        task: Shows progress.

    Raises:
        ConfigError: for another suffix.
        DataError: when no image can be read.
        MissingExtraError: for Parquet without pyarrow.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path}: vectors are written as {', '.join(SUFFIXES)}; end the file's name in one of these")
    if path.suffix.lower() == ".parquet":
        _pyarrow()
    hashes = content_hashes(images, task("reading"))
    journal = Journal(path.with_name(f".partial-{path.name}.sqlite"), model.fingerprint())
    try:
        made = embed_new(model, images, hashes, set(), journal, batch_size, thumbnails=False, show=task("embedding"))
        kept = [index for index, key in enumerate(hashes) if key not in made.failed]
        skipped = [(full_name(images, index), reason) for index, reason in made.reasons]
        if not kept:
            raise DataError(f"none of the {len(images)} images can be read" + f" ({skipped[0][1]})" * bool(skipped))
        content = _Content(
            journal,
            [hashes[index] for index in kept],
            [full_name(images, index) for index in kept],
            [label(images, index) for index in kept],
            model.config.dim,
            model.fingerprint(),
        )
        write = {".npy": _write_npy, ".parquet": _write_parquet, ".safetensors": _write_safetensors}
        write[path.suffix.lower()](path, content)
    except BaseException:
        journal.close()
        raise
    journal.delete()
    return EmbeddedFile(path, len(kept), made.count, skipped)


def _write_npy(path: Path, content: _Content) -> None:
    def write(partial: Path) -> None:
        shape = (len(content.hashes), content.dim)
        vectors = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=shape)
        for part, chunk in content.chunks():
            vectors[part] = chunk
        vectors.flush()

    listed = io.StringIO()
    table = csv.writer(listed, lineterminator="\n")
    table.writerow(["path", "label"])
    table.writerows([one, name or ""] for one, name in zip(content.paths, content.labels, strict=True))
    write_text(path.with_suffix(".csv"), listed.getvalue())
    write_atomically(path, write)


def _write_parquet(path: Path, content: _Content) -> None:
    arrow, parquet = _pyarrow()
    schema = arrow.schema(
        [("path", arrow.string()), ("label", arrow.string()), ("embedding", arrow.list_(arrow.float32(), content.dim))],
        metadata={"winnow_model": content.model},
    )

    def write(partial: Path) -> None:
        with parquet.ParquetWriter(str(partial), schema) as writer:
            for part, chunk in content.chunks():
                vectors = arrow.FixedSizeListArray.from_arrays(arrow.array(chunk.reshape(-1)), content.dim)
                columns = [arrow.array(content.paths[part]), arrow.array(content.labels[part], arrow.string()), vectors]
                writer.write_table(arrow.Table.from_arrays(columns, schema=schema))

    write_atomically(path, write)


def _write_safetensors(path: Path, content: _Content) -> None:
    """Write the format by hand, as its own library wants all vectors in memory: a header's length, header, numbers."""
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
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtraError("pyarrow", "parquet", "a Parquet file") from None
    return pyarrow, pyarrow.parquet
