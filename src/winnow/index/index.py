"""The searchable index of images, and its search with re-ranking."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from winnow.errors import DataError, ModelError
from winnow.evaluation.inputs import Array, as_count, as_embeddings
from winnow.evaluation.reranking import KReciprocal, check_reranking, expand_query, k_reciprocal_distances
from winnow.files import make_folder
from winnow.index.embedding import ProgressFactory, no_progress
from winnow.index.finders import check_kind, rank_exactly
from winnow.index.storage import MANIFEST, VECTORS, Entry, IndexSnapshot, Manifest, check_finite, lock_index
from winnow.index.update import (
    Changes,
    Images,
    as_image_set,
    rewrite_index,
    update_index,
    vector_rows,
    write_vectors,
)

if TYPE_CHECKING:
    from winnow.models import Embedder, ImageLike

_RERANKED = 100


class Hits(NamedTuple):
    """Search results of Q queries, nearest first."""

    ids: NDArray[np.int64]  # (Q, k): ids of entries; -1 where an approximate index found fewer than k
    distances: NDArray[np.float32]  # (Q, k): Euclidean distances; infinite where the id is -1


class Index:
    """A folder of vectors, thumbnails, and the model that made the vectors.

    - `Index.build(model, "photos", "photos.index")` embeds images.
    - `Index.build(vectors=array, names=names, path="photos.index")` stores vectors that exist already.
    - `Index.open("photos.index")` opens an index. Neither the images nor the run are needed for search.

    A change writes a new generation next to the current one and then switches. A killed process leaves the index
    unchanged, and an open reader keeps its generation. Search is safe from many threads.

    Args:
        path: Folder of the index.
        device: Device of its model, which embeds queries.
        model: See `open`.
    """

    path: Path
    built: Changes | None = None
    """Changes made by `build`; None for an index that was opened."""

    def __init__(self, path: Path, *, device: str | torch.device = "cpu", model: Embedder | None = None) -> None:
        self.path, self._device = path, device
        self._opened = IndexSnapshot.read(path)
        self._model: Embedder | None = None
        if model is not None:
            if self.manifest.model:
                self.check_model(model)
            _check_dim(self.manifest.dim, model)
            self._model = model

    @classmethod
    def open(
        cls, path: str | PathLike[str], *, device: str | torch.device = "cpu", model: Embedder | None = None
    ) -> Index:
        """Open an index.

        Args:
            path: Folder of the index.
            device: Device of its model, which embeds queries.
            model: Model for image queries. Default: the copy in the folder. Pass one if the index was built from
                vectors without a model, or if the copy cannot be loaded because its network is your own code.

        Raises:
            DataError: If the folder is no index.
            ModelError: If `model` is not the model that made the vectors.
        """
        return cls(Path(path), device=device, model=model)

    @overload
    @classmethod
    def build(
        cls, model: Embedder, images: Images, path: str | PathLike[str], *,
        kind: str = ..., dtype: Literal["float32", "float16"] = ..., batch_size: int = ...,
        progress: ProgressFactory = ...,
    ) -> Index: ...  # fmt: skip
    @overload
    @classmethod
    def build(
        cls, model: Embedder | None = None, *, path: str | PathLike[str], vectors: Array,
        names: Sequence[str | PathLike[str] | int], labels: Sequence[str | int | None] | Array | None = ...,
        kind: str = ..., dtype: Literal["float32", "float16"] = ..., progress: ProgressFactory = ...,
    ) -> Index: ...  # fmt: skip
    @classmethod
    def build(
        cls, model: Embedder | None = None, images: Images | None = None, path: str | PathLike[str] | None = None, *,
        vectors: Array | None = None, names: Sequence[str | PathLike[str] | int] | None = None,
        labels: Sequence[str | int | None] | Array | None = None,
        kind: str = "exact", dtype: Literal["float32", "float16"] = "float32", batch_size: int = 64,
        progress: ProgressFactory = no_progress,
    ) -> Index:  # fmt: skip
        """Build an index of images or of vectors.

        - From images: `Index.build(model, "photos", "photos.index")`. If the process is killed, the same call resumes.
        - From vectors: `Index.build(vectors=array, names=names, path="photos.index")`. Search ranks by Euclidean
          distance, so L2-normalize the vectors for cosine similarity. Names of image files get thumbnails. With the
          `model` that made the vectors the index also accepts images; without one it accepts vectors only.

        Args:
            model: Embeds images and queries; a copy is saved in the index. Optional with `vectors`.
            images: Image set, folder or CSV file as for `read_collection`, or paths of image files.
            path: Folder to create.
            vectors: Vectors to store, shape (N, D), any float type, torch or numpy, instead of `images`.
            names: Path of the image file, or any unique name, of each vector.
            labels: Class of each vector. Default: unknown.
            kind: "exact" scans all vectors; "hnsw" and "ivfpq" (FAISS) are for millions of vectors and miss some.
            dtype: Type of the stored vectors. float16 halves the file and changes distances in the third digit.
            batch_size: Images per batch of the model.
            progress: Reports the progress of each phase.

        Raises:
            DataError: If the folder contains an index, no image is readable, or vectors and names do not match.
            TypeError: If neither `model` and `images` nor `vectors` and `names` are passed.
        """
        usage = TypeError(
            "Index.build: expected model, images, and path, or vectors, names, and path (model and labels optional)."
        )
        if path is None or (images is not None and any(one is not None for one in (vectors, names, labels))):
            raise usage
        folder = Path(path)
        if (folder / MANIFEST).is_file():
            raise DataError(f"{folder}: folder already contains an index. Open it and add to it, or use another one.")
        check_kind(kind)
        if model is not None and images is not None:
            manifest = _create_folder(folder, model, kind, dtype, model.config.dim)
            with lock_index(folder):
                _, changes = update_index(
                    folder, manifest, None, model, as_image_set(images), prune=False, batch_size=batch_size,
                    progress=progress,
                )  # fmt: skip
        elif vectors is not None and names is not None:
            values, rows = vector_rows(vectors, names, labels, dtype)
            if model is not None:
                _check_dim(values.shape[1], model)
            manifest = _create_folder(folder, model, kind, dtype, values.shape[1])
            with lock_index(folder):
                _, changes = write_vectors(folder, manifest, values, rows, progress)
        else:
            raise usage
        index = cls(folder, device="cpu" if model is None else model.device)
        index._model, index.built = model, changes
        return index

    def verify(self) -> None:
        """Verify all files of the index and its model.

        Opening an index verifies its small files. Files above 64 MB are verified by a thread, and the first search
        waits for it.

        Raises:
            DataError: If a file does not match its checksum, or a vector is not finite.
            ModelError: If the model does not match its checksum, or is not the model that made the vectors.
        """
        stored = self._opened.generation
        stored.verification.wait()
        check_finite(stored.vectors, stored.folder / VECTORS)
        if self.manifest.model:
            _ = self.model

    def check(self) -> bool:
        """Return whether all files that opening the index verifies are verified by now.

        Raises:
            DataError: If a file does not match its checksum, or was cut short.
        """
        self._opened.generation.vectors.check_length()
        self._opened.generation.table.check_length()
        return self._opened.generation.verification.check()

    def __len__(self) -> int:
        return self.manifest.count

    def __repr__(self) -> str:
        return f"Index({str(self.path)!r}, {len(self)} images, kind={self.kind!r})"

    @property
    def manifest(self) -> Manifest:
        """Format, model, and size of the index."""
        return self._opened.manifest

    @property
    def kind(self) -> str:
        """Kind of search: "exact", "hnsw", or "ivfpq"."""
        return self.manifest.kind

    @property
    def model(self) -> Embedder:
        """Model that made the vectors, loaded on first use.

        Raises:
            ModelError: If the index contains no model, or another one than the one that made its vectors.
        """
        if self._model is None:
            from winnow.models import Embedder  # loads pooling and networks, which search by vectors does not need

            if not self.manifest.model:
                raise ModelError(self._no_model())
            model = Embedder.from_pretrained(self.path / "model", device=self._device)
            if model.fingerprint() != self.manifest.model:
                raise ModelError(
                    f"{self.path / 'model'}: not the model that made the vectors. The file was changed, or another "
                    "version of winnow computes other fingerprints. Delete the index and build it again."
                )
            self._model = model
        return self._model

    def check_model(self, model: Embedder) -> None:
        """Raise `ModelError` if a model is not the one that made the vectors of the index."""
        if not self.manifest.model:
            raise ModelError(self._no_model())
        if model.fingerprint() != self.manifest.model:
            raise ModelError(
                f"{self.path}: the vectors were made by another model, or by this one before more training. "
                f"Use the model in {self.path / 'model'}, or build a new index."
            )

    def _no_model(self) -> str:
        """Return the message for a missing model."""
        return (
            f"{self.path}: the index was built from vectors and contains no model. "
            "Search by vectors, or open the index with its model."
        )

    def search(self, queries: ImageLike | Sequence[ImageLike] | NDArray[Any] | Tensor, k: int = 10) -> Hits:
        """Find the k nearest entries of each query.

        Args:
            queries: Vectors (Q, dim), normalized as the vectors of the index; or images, as `Embedder.encode` takes
                them.
            k: Number of hits per query, at most the number of entries.

        Raises:
            DataError: If vectors have the wrong shape or are not finite, or an image is unreadable.
            ModelError: If queries are images and the index contains no model.
        """
        vectors = self.query_vectors(queries)
        k = min(as_count(k, "k", 1), len(self))
        if k == 0 or len(vectors) == 0:
            return Hits(np.zeros((len(vectors), k), dtype=np.int64), np.zeros((len(vectors), k), dtype=np.float32))
        stored = self._opened.generation
        stored.verification.wait()
        distances, rows = rank_exactly(stored.vectors, vectors, self._opened.finder.candidates(vectors, k), k)
        return Hits(np.where(rows < 0, -1, stored.ids[rows]), distances)

    def query_vectors(self, queries: ImageLike | Sequence[ImageLike] | NDArray[Any] | Tensor) -> NDArray[np.float32]:
        """Return the vectors (Q, dim) of queries.

        Images are embedded by the model of the index.
        """
        if not isinstance(queries, np.ndarray | Tensor) or (isinstance(queries, Tensor) and queries.dim() > 2):
            return self.model.encode(queries)
        vectors = as_embeddings(queries, "queries", empty=True).float().cpu().numpy()
        if vectors.shape[1] != self.manifest.dim:
            raise DataError(
                f"queries: expected {self.manifest.dim} dimensions, got {vectors.shape[1]}. "
                "Embed them with the model of the index."
            )
        return vectors

    def entry(self, number: int) -> Entry:
        """Return an entry by its id.

        Raises:
            DataError: If the id does not exist.
        """
        self._opened.generation.verification.raise_failure()
        return self._opened.generation.table.entry(int(number))

    def find(self, path: str | PathLike[str] | int) -> int | None:
        """Return the id of the entry with a path or name; None if it does not exist."""
        found = self._opened.generation.table.find(str(path))
        return self._opened.generation.table.find(os.path.abspath(str(path))) if found is None else found

    def vectors(self, ids: ArrayLike) -> NDArray[np.float32]:
        """Return the vectors (..., dim) of entries by ids (...), for example as queries.

        Raises:
            DataError: If an id does not exist.
        """
        stored = self._opened.generation
        return np.asarray(stored.vectors[stored.positions(ids)], dtype=np.float32)

    @property
    def ids(self) -> NDArray[np.int64]:
        """Ids of all entries."""
        return self._opened.generation.ids

    @property
    def labels(self) -> list[str | None]:
        """Class of each entry, in the order of `ids`; None if unknown."""
        return self._opened.generation.table.labels()

    def add(
        self, images: Images, *, prune: bool = False, batch_size: int = 64, progress: ProgressFactory = no_progress
    ) -> Changes:
        """Add images, and embed images with changed content again.

        Unchanged files are only hashed.

        Args:
            images: As for `build`.
            prune: Remove every entry that is not among the images.
            batch_size: Images per batch of the model.
            progress: Reports the progress of each phase.

        Raises:
            ModelError: If the index contains no model.
            OutputError: If another process changes the index, or writing fails.
        """
        with lock_index(self.path):
            before = IndexSnapshot.read(self.path)
            after, changes = update_index(
                self.path, before.manifest, before, self.model, as_image_set(images), prune=prune,
                batch_size=batch_size, progress=progress,
            )  # fmt: skip
            self._opened = after or before
        return changes

    def remove(self, paths: Sequence[str | PathLike[str] | int]) -> Changes:
        """Remove entries by path or name.

        Raises:
            DataError: If a path is not in the index; then no entry is removed.
        """
        with lock_index(self.path):
            self._opened = before = IndexSnapshot.read(self.path)
            gone = set()
            for path in paths:
                number = self.find(path)
                if number is None:
                    raise DataError(f"paths: {path} is not in the index {self.path}. No entry was removed.")
                gone.add(number)
            rows = [row for row in before.rows().values() if row.id not in gone]
            changes = Changes(removed=len(gone), unchanged=len(rows))
            if gone:
                self._opened = rewrite_index(self.path, before.manifest, before, rows, no_progress)
        return changes

    def convert(self, kind: str) -> None:
        """Change the kind of search: "exact", "hnsw", or "ivfpq"."""
        with lock_index(self.path):
            self._opened = before = IndexSnapshot.read(self.path)
            check_kind(kind, len(self))
            rows = list(before.rows().values())
            self._opened = rewrite_index(self.path, replace(before.manifest, kind=kind), before, rows, no_progress)


def reranked_search(
    index: Index, vectors: NDArray[np.float32], k: int, rerank: str, *,
    num_neighbors: int = 5, alpha: float = 3.0, settings: KReciprocal = KReciprocal(),  # noqa: B008
) -> Hits:  # fmt: skip
    """Search an index and re-rank the hits.

    Args:
        index: Index to search.
        vectors: Queries, shape (Q, dim).
        k: Number of hits per query.
        rerank: "aqe" searches again with queries expanded by their first hits; "reciprocal" orders the first hits (100,
            or k if larger) by k-reciprocal distances among them.
        num_neighbors: Number of hits in query expansion.
        alpha: Decay of their weight with the distance.
        settings: Settings of k-reciprocal distances.

    Returns:
        The hits, nearest first by the new distances, which are comparable only with each other.

    Raises:
        ConfigError: If `rerank` is unknown.
    """
    check_reranking(rerank)
    if len(index) == 0 or len(vectors) == 0:
        return index.search(vectors, k)
    if rerank == "aqe":
        first = index.search(vectors, num_neighbors)
        ids = np.where(first.ids < 0, first.ids[:, :1], first.ids)  # missing hits are replaced by the first hit
        near = torch.from_numpy(index.vectors(ids))
        return index.search(expand_query(torch.from_numpy(vectors), near, alpha).numpy(), k)
    first = index.search(vectors, max(k, _RERANKED))
    ids, distances = first.ids[:, :k].copy(), first.distances[:, :k].copy()
    for row, query in enumerate(vectors):
        found = first.ids[row][first.ids[row] >= 0]
        reranked = k_reciprocal_distances(query[None], index.vectors(found), settings)[0].numpy()
        order = np.argsort(reranked, kind="stable")[:k]
        ids[row, : len(order)], distances[row, : len(order)] = found[order], reranked[order]
    return Hits(ids, distances)


def _create_folder(folder: Path, model: Embedder | None, kind: str, dtype: str, dim: int) -> Manifest:
    """Create the folder of a new index, and return its first manifest."""
    make_folder(folder)
    if model is None:
        return Manifest("", "", kind, dtype, 0, dim, 0)
    model.save_pretrained(folder / "model")
    return Manifest("", model.fingerprint(), kind, dtype, 0, dim, 0)


def _check_dim(dim: int, model: Embedder) -> None:
    """Raise `DataError` if vectors and a model differ in dimension."""
    if model.config.dim != dim:
        raise DataError(f"model: expected {dim} dimensions to match the vectors, got {model.config.dim}.")
