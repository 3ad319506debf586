"""Feature maps of a frozen backbone, computed once and cached in RAM or on disk."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winnow.array_file import ArrayFile
from winnow.data import CropTransform, FileImages, ImageCache, ImageSet, resolve_subset
from winnow.data.store import OnError, Progress
from winnow.errors import ConfigError, DataError, OutputError, warn_caller
from winnow.files import make_folder, parse_json, read_text
from winnow.integrity import file_digest
from winnow.models import Backbone
from winnow.training.data_record import digest_file
from winnow.training.inputs import CropInputs, FeatureInputs

if TYPE_CHECKING:
    from winnow.training.config import RunConfig

CPU_BATCH = 8
"""Images per batch on a CPU. Larger batches exceed its caches and are several times slower."""

CHUNK_BYTES = 64 << 20
"""Bytes of one file on disk: what an interruption loses at most, seconds of work."""

_ABANDONED_S = 3600

LIMIT_GB = 8.0
"""Size of the cache above which the least recently used features are removed; $WINNOW_CACHE_GB replaces it."""

Storage = Literal["auto", "ram", "disk"]
"""Storage of features; "auto" is the disk if they take at most half of the cache, else RAM."""


def feature_storage(config: RunConfig) -> Storage:
    """Return where a run stores features; never on disk by itself if no later run has its random weights."""
    storage = config.data.feature_cache
    return "ram" if storage == "auto" and config.backbone.weights == "random" else storage


def extract_features(
    backbone: Backbone,
    images: ImageSet,
    crops: CropTransform,
    device: torch.device,
    *,
    cache: Storage = "ram",
    on_error: OnError = "raise",
    progress: Progress | None = None,
) -> tuple[FeatureInputs, list[tuple[str, str]]]:
    """Compute the features of an image set's center crops, or read them from disk.

    On disk they are stored by the backbone's weights, the crop, and the image. A change of any of these computes new
    features. Image sets with common images share them.

    Returns:
        The features, and the (name, reason) of each skipped image.
    """
    if cache == "disk" or (cache == "auto" and fits_cache(backbone, images, crops, device)):
        try:
            return _extract_to_disk(backbone, images, crops, device, on_error, progress)
        except OutputError:
            if cache == "disk":
                raise
    store = _open(images, crops, device, on_error)
    maps: Tensor | None = None
    done = 0
    for part in iter_features(backbone, CropInputs(store, crops), device, progress):
        if maps is None:
            maps = torch.empty(len(store), *part.shape[1:])
        maps[done : done + len(part)] = part
        done += len(part)
    assert maps is not None, "an image set is never empty"
    return FeatureInputs(maps, store.labels, [store.name(i) for i in range(len(store))], device), store.skipped


@torch.no_grad()
def iter_features(
    backbone: Backbone, inputs: CropInputs, device: torch.device, progress: Progress | None = None
) -> Iterator[Tensor]:
    """Yield features of all center crops, on the CPU and in order.

    Features are maps (B, C, h, w) or tokens (B, n, C).
    """
    backbone.to(device).freeze()
    batch = CPU_BATCH if device.type == "cpu" else 128
    count = len(inputs.labels)
    for start in range(0, count, batch):
        stop = min(start + batch, count)
        yield compute_in_full_batches(backbone, inputs.test(range(start, stop)), batch).float().cpu()
        if progress is not None:
            progress(stop, count)


def compute_in_full_batches(backbone: Backbone, images: Tensor, batch: int) -> Tensor:
    """Return features of at most `batch` images from a batch of exactly that size.

    Convolutions add in another order for another batch size. The features of an image must not depend on the other
    images of a batch, not even in their last bits.
    """
    missing = max(0, batch - len(images))
    filled = torch.cat([images, images[:1].expand(missing, *images.shape[1:])]) if missing else images
    features: Tensor = backbone(filled)
    return features[: len(images)]


def cache_folder() -> Path:
    """Return the folder of cached features.

    It is `$WINNOW_CACHE`, or `winnow` in the user's cache folder.
    """
    base = os.environ.get("WINNOW_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "winnow"


def cache_limit() -> int:
    """Return the size in bytes above which the least recently used features are removed.

    Raises:
        ConfigError: If $WINNOW_CACHE_GB is not a number of at least 0.
    """
    text = os.environ.get("WINNOW_CACHE_GB", "")
    try:
        size = float(text) if text else LIMIT_GB
    except ValueError:
        size = -1.0
    if not 0 <= size < math.inf:
        raise ConfigError(f"WINNOW_CACHE_GB: expected a number of at least 0, got '{text}'. Set a size in GB.")
    return int(size * 1e9)


@torch.no_grad()
def fits_cache(backbone: Backbone, images: ImageSet, crops: CropTransform, device: torch.device) -> bool:
    """Whether features of image files take at most half of the cache, and a quarter of the free disk space.

    Images that are in memory have no features on disk.
    """
    if not isinstance(resolve_subset(images)[0], FileImages):
        return False
    height, width = (crops.size, crops.size) if isinstance(crops.size, int) else crops.size
    one: Tensor = backbone.to(device).freeze()(torch.zeros(1, 3, height, width, device=device))
    size = len(images) * one.float().nbytes
    try:
        make_folder(cache_folder())
        return size <= cache_limit() / 2 and size <= shutil.disk_usage(cache_folder()).free / 4
    except (OSError, OutputError):
        return False


@dataclass(frozen=True)
class CachedChunk:
    """File of feature maps on disk with its list of keys."""

    index: Path  # its time of modification is that of the last use
    size: int
    used: float

    def remove(self) -> None:
        """Remove the files, first the list, without which the maps do not count."""
        with suppress(OSError):  # another process removed it, or uses it on Windows
            self.index.unlink(missing_ok=True)
            self.index.with_suffix(".npy").unlink(missing_ok=True)


def cached_chunks() -> list[CachedChunk]:
    """Return all chunks of the cache, the least recently used first."""
    found = []
    for index in (cache_folder() / "features").glob("*/*.json"):
        with suppress(OSError):
            state = index.stat()
            size = state.st_size + index.with_suffix(".npy").stat().st_size
            found.append(CachedChunk(index, size, state.st_mtime))
    return sorted(found, key=lambda one: one.used)


def trim_cache(limit: int, in_use: Collection[Path] = ()) -> None:
    """Remove the least recently used chunks until the cache is at most as large as a limit.

    Args:
        limit: Bytes.
        in_use: Lists of chunks that stay.
    """
    chunks = cached_chunks()
    size = sum(one.size for one in chunks)
    for one in chunks:
        if size <= limit:
            break
        if one.index not in in_use:
            one.remove()
            size -= one.size


def _image_key(images: ImageSet, index: int) -> str:
    """Return a key of an image by path, size, time, and both ends of its file."""
    root, rows = resolve_subset(images)
    text = images.cache_key(index)
    if isinstance(root, FileImages):
        path = root.path(int(rows[index]))
        with suppress(OSError):  # the error is raised when the image is read
            text += digest_file(path, path.stat().st_size, "ends")
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def count_missing(
    backbone: Backbone, images: ImageSet, crops: CropTransform, device: torch.device, cache: Storage
) -> int:
    """Return the number of images whose features `extract_features` would compute."""
    if cache == "ram" or (cache == "auto" and not fits_cache(backbone, images, crops, device)):
        return len(images)
    try:
        store = _open_store(backbone, crops, device)
    except OutputError:
        return len(images)
    return len(store.missing([_image_key(images, index) for index in range(len(images))]))


def _open_store(backbone: Backbone, crops: CropTransform, device: torch.device) -> FeatureStore:
    # Devices and versions of torch differ in the last bits, which the seed of a run must determine.
    name = f"{backbone.fingerprint()}-{crops.resize}-{crops.size}-{device.type}-{torch.__version__}"
    return FeatureStore(cache_folder() / "features" / name)


def _extract_to_disk(
    backbone: Backbone,
    images: ImageSet,
    crops: CropTransform,
    device: torch.device,
    on_error: OnError,
    progress: Progress | None,
) -> tuple[FeatureInputs, list[tuple[str, str]]]:
    """Compute the features that are not on disk yet, and open all."""
    features = _open_store(backbone, crops, device)
    keys = [_image_key(images, i) for i in range(len(images))]
    features.verify(keys)
    missing = features.missing(keys)
    skipped: list[tuple[str, str]] = []
    if missing:
        part = images.select(missing)
        try:
            store = _open(part, crops, device, on_error)
        except DataError:
            if on_error == "raise" or len(missing) == len(images):
                raise
            # None of the missing images can be read, and the features of all others are on disk.
            skipped = [(images.name(i), _why_unreadable(images, i)) for i in missing]
        else:
            skipped = store.skipped
            computed = iter_features(backbone, CropInputs(store, crops), device, progress)
            features.add([keys[missing[i]] for i in store.kept], computed)
    rows = np.setdiff1d(np.arange(len(images)), features.missing(keys))
    names = [images.name(int(i)) for i in rows]
    maps = features.get([keys[i] for i in rows])
    if missing:
        trim_cache(cache_limit(), features.used)
    return FeatureInputs(maps, images.labels[rows], names, device), skipped


def _open(images: ImageSet, crops: CropTransform, device: torch.device, on_error: OnError) -> ImageCache:
    # Every image is used once, so none is cached. To skip unreadable images, all must be decoded first.
    cache: Literal["auto", "none"] = "auto" if on_error == "skip" else "none"
    return ImageCache(images, resize=crops.resize, cache=cache, device=device, on_error=on_error)


def _why_unreadable(images: ImageSet, index: int) -> str:
    try:
        images.read(index)
    except DataError as error:
        return str(getattr(error, "reason", error))
    return "the file can be read again"


class DiskFeatures:
    """Maps (N, ...) in files, in any order.

    A map is read when it is used.

    Args:
        chunks: Maps of each file.
        locations: File and row (N, 2) int64 of each map.
    """

    def __init__(self, chunks: Sequence[ArrayFile], locations: NDArray[np.int64]) -> None:
        self.chunks, self.locations = chunks, locations

    def __len__(self) -> int:
        return len(self.locations)

    @property
    def nbytes(self) -> int:
        """Bytes of all maps."""
        return len(self) * self._sample.nbytes // len(self._sample) if len(self) else 0

    @property
    def _sample(self) -> ArrayFile:
        """A file of these maps; other files of the store may hold maps of another shape."""
        return self.chunks[int(self.locations[0, 0])]

    def take(self, rows: Tensor) -> Tensor:
        """Return selected maps (B, ...) in RAM."""
        locations = self.locations[rows.numpy()]
        found = torch.empty(len(rows), *self._sample.shape[1:])
        for chunk in np.unique(locations[:, 0]):
            own = np.flatnonzero(locations[:, 0] == chunk)
            found[torch.from_numpy(own)] = torch.from_numpy(self.chunks[chunk][locations[own, 1]])
        return found

    def to(self, device: torch.device) -> Tensor:
        """Return all maps on a device, copied chunk by chunk to save RAM."""
        whole = torch.empty(len(self), *self.chunks[0].shape[1:], device=device)
        for start in range(0, len(self), 128):
            stop = min(start + 128, len(self))
            whole[start:stop] = self.take(torch.arange(start, stop)).to(device)
        return whole


class FeatureStore:
    """Folder of feature maps, stored by the key of their image.

    Maps are added in chunks. A chunk is a file of maps and, written after it, a list of keys with the checksum of the
    maps; without the list it does not count. Several processes may add at a time: the same images in the same order
    make the same chunk.
    """

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self.folder = folder
        self.used: set[Path] = set()  # lists of the chunks whose maps were requested
        self._chunks: list[ArrayFile] = []
        self._digests: list[str] = []  # of chunks that are not verified yet; "" afterward
        self._indices: list[Path] = []
        self._locations: dict[str, tuple[int, int]] = {}
        for index in sorted(folder.glob("*.json")):
            self._open(index)
        for partial in folder.glob(".partial-*"):  # of processes that were killed
            with suppress(OSError):
                if partial.stat().st_mtime < time.time() - _ABANDONED_S:
                    partial.unlink()

    def missing(self, keys: Sequence[str]) -> list[int]:
        """Return the positions of the keys without a map."""
        return [i for i, key in enumerate(keys) if key not in self._locations]

    def verify(self, keys: Sequence[str]) -> None:
        """Verify the chunks of keys once, and remove damaged ones, whose maps are missing then."""
        for chunk in sorted({self._locations[key][0] for key in keys if key in self._locations}):
            maps, digest = self._chunks[chunk], self._digests[chunk]
            self._digests[chunk] = ""
            if digest and file_digest(maps.path) != digest:
                warn_caller(f"{maps.path}: does not match its checksum; its features are computed again", UserWarning)
                self._locations = {key: place for key, place in self._locations.items() if place[0] != chunk}
                with suppress(OSError):  # the cache belongs to another user
                    self._indices[chunk].unlink(missing_ok=True)

    def get(self, keys: Sequence[str]) -> DiskFeatures:
        """Return the maps of keys that are all in the store."""
        locations = np.array([self._locations[key] for key in keys], dtype=np.int64).reshape(-1, 2)
        self.used |= {self._indices[chunk] for chunk in np.unique(locations[:, 0])}
        for index in self.used:
            with suppress(OSError):  # the cache belongs to another user
                os.utime(index)
        return DiskFeatures(self._chunks, locations)

    def add(self, keys: Sequence[str], parts: Iterable[Tensor]) -> None:
        """Store maps that arrive in parts (n, ...).

        A chunk is written when it is large enough.

        Raises:
            OutputError: If the disk is full or not writable.
        """
        held: list[Tensor] = []
        done = 0
        for part in parts:
            held.append(part)
            if sum(each.nbytes for each in held) >= CHUNK_BYTES:
                done += self._add_chunk(keys[done:], torch.cat(held))
                held = []
        if held:
            self._add_chunk(keys[done:], torch.cat(held))

    def _add_chunk(self, keys: Sequence[str], maps: Tensor) -> int:
        """Store maps (n, ...) of the first n keys and return n."""
        own = list(keys[: len(maps)])
        name = hashlib.sha256("\n".join(own).encode()).hexdigest()[:20]
        self._write(self.folder / f"{name}.npy", lambda file: np.save(file, maps.numpy()))
        index = self.folder / f"{name}.json"
        content = {"sha256": file_digest(index.with_suffix(".npy")), "keys": own}
        self._write(index, lambda file: file.write(json.dumps(content).encode()))
        self._open(index)
        return len(own)

    def _open(self, index: Path) -> None:
        """Open a chunk.

        A damaged chunk counts as missing and is replaced when its images are requested.
        """
        try:
            content = parse_json(read_text(index))
            keys, digest = content["keys"], content["sha256"]
            maps = ArrayFile(index.with_suffix(".npy"), remedy="Run `winnow cache --clear`, which removes it.")
        except (OSError, ValueError, EOFError, KeyError, TypeError):  # also lists without a checksum, of version 0.1.0
            return
        if len(maps) == len(keys) and maps.dtype == np.float32:
            self._locations.update({key: (len(self._chunks), row) for row, key in enumerate(keys)})
            self._chunks.append(maps)
            self._digests.append(digest)
            self._indices.append(index)

    def _write(self, path: Path, write: Callable[[IO[bytes]], object]) -> None:
        partial = None
        try:
            number, partial = tempfile.mkstemp(dir=self.folder, prefix=".partial-")
            with open(number, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except OSError as error:
            raise OutputError(
                f"{self.folder}: features cannot be written ({error.strerror}). Free disk space, set WINNOW_CACHE to "
                "another folder, or set data.feature_cache=ram."
            ) from None
        finally:
            if partial is not None:
                Path(partial).unlink(missing_ok=True)
