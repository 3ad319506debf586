"""The index: images that can be searched by image."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from winnow.errors import DataError, ModelError
from winnow.evaluation.inputs import as_count, as_embeddings
from winnow.files import make_folder
from winnow.index.approximate import check_kind
from winnow.index.changes import Changes
from winnow.index.entries import Entry
from winnow.index.exact import measured
from winnow.index.hashing import Task, silent
from winnow.index.manifest import FILE, Manifest, locked
from winnow.index.opened import Opened
from winnow.index.writing import Images, as_image_set, bring_in, write
from winnow.models import Embedder
from winnow.models.embedder import ImageLike


class Hits(NamedTuple):
    """What a search found, nearest first.

    Attributes:
        ids: (Q, k) int64, of entries; -1 where an approximate index found fewer.
        distances: (Q, k) float32, Euclidean; infinite there.
    """

    ids: NDArray[np.int64]
    distances: NDArray[np.float32]


class Index:
    """A folder of vectors, thumbnails and the model that made them; nothing else is needed to search it.

    `Index.build(model, "photos", "photos.index")` makes one and `Index.open("photos.index")` opens it. A change writes
    a new generation beside the old one and then switches, so that a killed process leaves the index as it was, and a
    reader that has it open goes on reading what it opened. Searching is safe from many threads.

    Attributes:
        path: Its folder.
        built: What `build` did, for an index that was just built.
    """

    built: Changes | None = None

    def __init__(self, path: Path, *, device: str | torch.device = "cpu") -> None:
        self.path, self._device = path, device
        self._model: Embedder | None = None
        self._opened = Opened.read(path)

    @classmethod
    def open(cls, path: str | PathLike[str], *, device: str | torch.device = "cpu") -> Index:
        """Open an index.

        Args:
            path: Its folder.
            device: Where its model is to embed queries.

        Raises:
            DataError: when the folder is no index.
        """
        return cls(Path(path), device=device)

    @classmethod
    def build(
        cls, model: Embedder, images: Images, path: str | PathLike[str], *,
        kind: str = "exact", dtype: Literal["float32", "float16"] = "float32", batch_size: int = 64,
        task: Task = silent,
    ) -> Index:  # fmt: skip
        """Embed images and make an index of them; after a kill the same call goes on where it stopped.

        Args:
            model: What makes vectors of images; a copy goes into the index.
            images: An image set, a folder or CSV file as `read_collection` takes it, or paths of image files.
            path: The folder to make.
            kind: "exact" looks at all vectors; "hnsw" and "ivfpq" (FAISS) are for millions, and miss some.
            dtype: Of the stored vectors; float16 halves the file and changes distances in the third digit.
            batch_size: Images embedded at a time.
            task: Shows progress.

        Raises:
            DataError: when the folder holds an index already, or no image can be read.
        """
        folder = Path(path)
        if (folder / FILE).is_file():
            raise DataError(f"{folder} holds an index already: open it and add to it, or choose another folder")
        check_kind(kind)
        make_folder(folder)
        model.save_pretrained(folder / "model")
        manifest = Manifest("", model.fingerprint(), kind, dtype, 0, model.config.dim, 0)
        with locked(folder):
            _, changes = bring_in(
                folder, manifest, None, model, as_image_set(images), prune=False, batch_size=batch_size, task=task
            )
        index = cls(folder, device=model.device)
        index._model, index.built = model, changes
        return index

    def __len__(self) -> int:
        return self.manifest.count

    def __repr__(self) -> str:
        return f"Index({str(self.path)!r}, {len(self)} images, kind={self.kind!r})"

    @property
    def manifest(self) -> Manifest:
        """What it holds."""
        return self._opened.manifest

    @property
    def kind(self) -> str:
        """How it searches: "exact", "hnsw" or "ivfpq"."""
        return self.manifest.kind

    @property
    def model(self) -> Embedder:
        """The model that made the vectors; loaded when first asked for.

        Raises:
            ModelError: when it is not the one that did.
        """
        if self._model is None:
            model = Embedder.from_pretrained(self.path / "model", device=self._device)
            if model.fingerprint() != self.manifest.model:
                raise ModelError(
                    f"the model in {self.path} is not the one that made its vectors (it was changed, or this winnow "
                    "tells models apart in another way): delete the index and build it anew"
                )
            self._model = model
        return self._model

    def check_model(self, model: Embedder) -> None:
        """Refuse a model whose vectors cannot be compared with those in the index."""
        if model.fingerprint() != self.manifest.model:
            raise ModelError(
                f"the vectors in {self.path} were made by another model (or the same one before more training): "
                f"name {self.path / 'model'} in its place, or build a new index with this one"
            )

    def search(self, queries: ImageLike | Sequence[ImageLike] | NDArray[Any] | Tensor, k: int = 10) -> Hits:
        """Find the k nearest entries of each query.

        Args:
            queries: Vectors (Q, dim), normalised as `encode` does; or images, as `encode` takes them.
            k: How many; cut to the number of entries there are.
        """
        vectors = self.vectors_of(queries)
        k = min(as_count(k, "k", 1), len(self))
        if k == 0 or len(vectors) == 0:
            return Hits(np.zeros((len(vectors), k), dtype=np.int64), np.zeros((len(vectors), k), dtype=np.float32))
        stored = self._opened.generation
        distances, places = measured(stored.vectors, vectors, self._opened.finder.candidates(vectors, k), k)
        return Hits(np.where(places < 0, -1, stored.ids[places]), distances)

    def vectors_of(self, queries: ImageLike | Sequence[ImageLike] | NDArray[Any] | Tensor) -> NDArray[np.float32]:
        """Return the vectors (Q, dim) of queries: as they are, or of images by the index's model."""
        if not isinstance(queries, np.ndarray | Tensor) or (isinstance(queries, Tensor) and queries.dim() > 2):
            return self.model.encode(queries)
        vectors = as_embeddings(queries, "queries", empty=True).float().cpu().numpy()
        if vectors.shape[1] != self.manifest.dim:
            raise DataError(f"queries have {vectors.shape[1]} numbers each and the index {self.manifest.dim}: "
                            "embed them with the index's model")  # fmt: skip
        return vectors

    def entry(self, number: int) -> Entry:
        """Return an entry by its id.

        Raises:
            DataError: when there is none.
        """
        return self._opened.generation.table.entry(int(number))

    def find(self, path: str | PathLike[str]) -> int | None:
        """Return the id of the entry with a path or name; None where there is none."""
        found = self._opened.generation.table.find(str(path))
        return self._opened.generation.table.find(os.path.abspath(path)) if found is None else found

    def vectors(self, ids: ArrayLike) -> NDArray[np.float32]:
        """Return the vectors (..., dim) of entries by ids (...), to search on from them."""
        stored = self._opened.generation
        return np.asarray(stored.vectors[stored.places(ids)], dtype=np.float32)

    @property
    def ids(self) -> NDArray[np.int64]:
        """The ids of all entries."""
        return self._opened.generation.ids

    @property
    def labels(self) -> list[str | None]:
        """The class of each entry, in the order of `ids`; None where it is not known."""
        return self._opened.generation.table.labels()

    def add(self, images: Images, *, prune: bool = False, batch_size: int = 64, task: Task = silent) -> Changes:
        """Add images, and embed those anew whose content has changed; what is unchanged costs a look at its bytes.

        Args:
            images: As for `build`.
            prune: Also remove every entry that is not among them.
            batch_size: Images embedded at a time.
            task: Shows progress.
        """
        with locked(self.path):
            before = Opened.read(self.path)
            after, changes = bring_in(
                self.path, before.manifest, before, self.model, as_image_set(images), prune=prune,
                batch_size=batch_size, task=task,
            )  # fmt: skip
            self._opened = after or before
        return changes

    def remove(self, paths: Sequence[str | PathLike[str]]) -> Changes:
        """Remove entries by path or name.

        Raises:
            DataError: when one of them is not in the index; nothing is removed then.
        """
        with locked(self.path):
            self._opened = before = Opened.read(self.path)
            gone = {}
            for path in paths:
                number = self.find(path)
                if number is None:
                    raise DataError(f"{path} is not in the index {self.path}")
                gone[number] = path
            rows = [row for row in before.rows().values() if row.id not in gone]
            changes = Changes(removed=len(gone), unchanged=len(rows))
            if gone:
                self._opened = write(self.path, before.manifest, before, rows, None, silent)
        return changes

    def convert(self, kind: str) -> None:
        """Search in another way from now on."""
        with locked(self.path):
            self._opened = before = Opened.read(self.path)
            check_kind(kind, len(self))
            rows = list(before.rows().values())
            self._opened = write(self.path, replace(before.manifest, kind=kind), before, rows, None, silent)
