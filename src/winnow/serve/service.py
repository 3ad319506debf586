"""Encode, search, and cache images, independent of HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from winnow.data import upright_rgb
from winnow.files import open_regular
from winnow.index import Entry, Index
from winnow.index.storage import UnknownEntryError
from winnow.serve.batching import Batcher
from winnow.serve.encoder import EncodedImage, PreparedImage, QueryEncoder
from winnow.serve.middleware import Limits, Metrics, RequestError
from winnow.serve.uploads import decode_upload

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class SearchRequest:
    """A query image, how to pool it, and the number of neighbors."""

    image: EncodedImage
    k: int
    mu: float | None
    eps: float | None


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The query image as it was pooled, and its neighbors, nearest first."""

    image: EncodedImage
    ids: list[int]
    distances: list[float]


class SearchService:
    """An index and its model, with batching and a cache of encoded images.

    Args:
        index: The index to search.
        limits: Limits of images, batches, and memory.
        metrics: Metrics to update.
    """

    def __init__(self, index: Index, limits: Limits, metrics: Metrics) -> None:
        self.index, self.limits = index, limits
        self.encoder = QueryEncoder(index.model)
        self._encodings: Batcher[PreparedImage, EncodedImage] = Batcher(
            self.encoder.encode,
            max_size=limits.batch_size,
            wait_ms=limits.batch_wait_ms,
            on_batch=metrics.batch_images.observe,
        )
        self._searches: Batcher[SearchRequest, SearchResult] = Batcher(
            self._search_batch, max_size=limits.max_requests, wait_ms=0
        )
        self._decoders = ThreadPoolExecutor(2, thread_name_prefix="decode")  # at most two large images in memory
        self._lookups = ThreadPoolExecutor(2, thread_name_prefix="lookup")  # short work that never waits for decoding
        self._cache: OrderedDict[Hashable, EncodedImage] = OrderedDict()
        self._cached_bytes = 0

    def start(self) -> None:
        """Start batching; called inside the event loop."""
        self._encodings.start()
        self._searches.start()

    async def stop(self) -> None:
        """Stop, and cancel all waiting work."""
        await self._encodings.stop()
        await self._searches.stop()
        for pool in (self._decoders, self._lookups):
            pool.shutdown(wait=True, cancel_futures=True)

    async def encode_upload(self, data: bytes) -> tuple[str, EncodedImage]:
        """Decode and encode an upload; return its key in the cache, and the encoded image.

        Raises:
            RequestError: If the upload is not an accepted image.
        """
        key = hashlib.sha256(data).hexdigest()
        return key, await self._encode(key, lambda: self.encoder.prepare(decode_upload(data, self.limits)))

    def find_upload(self, key: str) -> EncodedImage:
        """Return an earlier upload.

        Raises:
            RequestError: 404 if it is no longer cached.
        """
        if key not in self._cache:
            raise RequestError(404, "key: no cached upload has it. Send the image again.")
        self._cache.move_to_end(key)
        return self._cache[key]

    async def entry(self, entry_id: int) -> Entry:
        """Return an entry of the index.

        Raises:
            RequestError: 404 if the index has no such entry.
        """
        try:
            return await self._run(self._lookups, lambda: self.index.entry(entry_id))
        except (UnknownEntryError, OverflowError):  # the number may exceed the integers of the table
            raise RequestError(404, f"id: the index has no image {entry_id}.") from None

    async def encode_entry(self, entry: Entry, mu: float | None = None, eps: float | None = None) -> EncodedImage:
        """Encode an image of the index.

        The vector is the stored one, also if only a thumbnail can be encoded.
        """

        def with_stored_vector() -> EncodedImage:
            return self.encoder.repool(replace(encoded, vector=self.index.vectors([entry.id])[0]), mu, eps)

        encoded = await self._encode(entry.id, lambda: self.encoder.prepare(read_entry_image(entry, self.limits)))
        return await self._run(self._lookups, with_stored_vector)

    async def search(self, image: EncodedImage, k: int, mu: float | None, eps: float | None) -> SearchResult:
        """Return the k nearest images of the index."""
        return await self._searches.submit(SearchRequest(image, k, mu, eps))

    async def _encode(self, key: Hashable, prepare: Callable[[], PreparedImage]) -> EncodedImage:
        if key not in self._cache:
            with self._encodings.announce():
                prepared = await self._run(self._decoders, prepare)
            encoded = await self._encodings.submit(prepared)
            self._add_to_cache(key, encoded)
            return encoded
        self._cache.move_to_end(key)
        return self._cache[key]

    def _add_to_cache(self, key: Hashable, encoded: EncodedImage) -> None:
        """Cache an encoded image, and drop the least recently used ones beyond the limit."""
        if key not in self._cache:  # two requests may have encoded the same image
            self._cached_bytes += encoded.nbytes
        self._cache[key] = encoded
        while self._cached_bytes > self.limits.cache_bytes and len(self._cache) > 1:
            self._cached_bytes -= self._cache.popitem(last=False)[1].nbytes

    async def _run(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    def _search_batch(self, requests: Sequence[SearchRequest]) -> list[SearchResult]:
        """Search for all requests in one call, with the largest k among them."""
        images = [self.encoder.repool(one.image, one.mu, one.eps) for one in requests]
        vectors: NDArray[np.float32] = np.stack([image.vector for image in images])
        hits = self.index.search(vectors, max(one.k for one in requests))
        results = []
        for request, image, ids, distances in zip(requests, images, hits.ids, hits.distances, strict=True):
            found = ids[: request.k] >= 0  # an approximate index may find fewer
            results.append(
                SearchResult(image, ids[: request.k][found].tolist(), distances[: request.k][found].tolist())
            )
        return results


def read_entry_image(entry: Entry, limits: Limits) -> Image.Image:
    """Return an image of the index, upright RGB.

    It is read from its file if the file is unchanged, otherwise from the thumbnail.

    The path is the stored one, never one from a request. The file is unchanged if its hash is the stored one.
    """
    original = _read_unchanged(entry, limits)
    if original is not None:
        try:
            image = Image.open(io.BytesIO(original))
            if image.width * image.height <= limits.max_pixels:
                return upright_rgb(image)
        except Exception:  # it was decoded for the index, perhaps by another version of Pillow
            pass
    return upright_rgb(Image.open(io.BytesIO(entry.thumbnail), formats=["JPEG"]))


def _read_unchanged(entry: Entry, limits: Limits) -> bytes | None:
    try:
        with open_regular(entry.path, max_bytes=limits.max_upload_bytes) as file:
            content = file.read(limits.max_upload_bytes)
    except (OSError, ValueError):
        return None
    return content if hashlib.sha256(content).hexdigest() == entry.hash else None
