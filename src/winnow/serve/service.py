"""What the service does, apart from HTTP: see images, search with them, and remember what was seen."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from winnow.errors import DataError
from winnow.index import Entry, Index
from winnow.serve.batching import Batcher
from winnow.serve.limits import Limits, Refusal
from winnow.serve.looking import Looker, Prepared, Seen
from winnow.serve.metrics import Metrics
from winnow.serve.pictures import picture
from winnow.serve.uploads import decode_upload

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Question:
    """A search to be made: what was seen, how to pool it, and how many neighbours are wanted."""

    seen: Seen
    k: int
    mu: float | None
    eps: float | None


@dataclass(frozen=True, eq=False)
class Found:
    """What a search found: the query as it was pooled, and its neighbours, the nearest first."""

    seen: Seen
    ids: list[int]
    distances: list[float]


class Service:
    """An index and its model at work.

    Args:
        index: What is searched.
        limits: How much it takes on.
        metrics: Where calls of the model are counted.
    """

    def __init__(self, index: Index, limits: Limits, metrics: Metrics) -> None:
        self.index, self.limits = index, limits
        self.looker = Looker(index.model)
        self._looks: Batcher[Prepared, Seen] = Batcher(
            self.looker.look, most=limits.batch, wait_ms=limits.wait_ms, note=metrics.batch
        )
        self._searches: Batcher[Question, Found] = Batcher(self._search, most=limits.requests, wait_ms=0)
        # Two at a time, so that at most two large images are in memory at full size.
        self._decoders = ThreadPoolExecutor(2, thread_name_prefix="decode")
        self._lookups = ThreadPoolExecutor(2, thread_name_prefix="lookup")  # small, and never behind a large image
        self._remembered: OrderedDict[Hashable, Seen] = OrderedDict()
        self._held = 0

    def start(self) -> None:
        """Begin to work; called inside the event loop."""
        self._looks.start()
        self._searches.start()

    async def stop(self) -> None:
        """End; what still waits is cancelled."""
        await self._looks.stop()
        await self._searches.stop()
        for pool in (self._decoders, self._lookups):
            pool.shutdown(wait=True, cancel_futures=True)

    async def upload(self, data: bytes) -> tuple[str, Seen]:
        """See an upload; return the key it is remembered by, and what was seen.

        Raises:
            Refusal: where it is not an image that is taken.
        """
        key = hashlib.sha256(data).hexdigest()
        return key, await self._see(key, lambda: self.looker.prepare(decode_upload(data, self.limits)))

    def again(self, key: str) -> Seen:
        """Return what was seen of an upload.

        Raises:
            Refusal: 404 where it is forgotten.
        """
        if key not in self._remembered:
            raise Refusal(404, "that upload is no longer remembered: send the image again")
        self._remembered.move_to_end(key)
        return self._remembered[key]

    async def entry(self, number: int) -> Entry:
        """Return an image of the index.

        Raises:
            Refusal: 404 where there is none of that id.
        """
        try:
            return await self._in(self._lookups, lambda: self.index.entry(number))
        except (DataError, OverflowError):  # a number may be larger than any the table can hold
            raise Refusal(404, f"the index has no image {number}") from None

    async def see(self, entry: Entry, mu: float | None = None, eps: float | None = None) -> Seen:
        """See an image of the index; its vector is the index's own, even where only its thumbnail is left to see."""

        def settled() -> Seen:
            own = replace(seen, vector=self.index.vectors([entry.id])[0])
            return self.looker.select(own, mu, eps)

        seen = await self._see(entry.id, lambda: self.looker.prepare(picture(entry, self.limits)))
        return await self._in(self._lookups, settled)

    async def find(self, seen: Seen, k: int, mu: float | None, eps: float | None) -> Found:
        """Search with what was seen."""
        return await self._searches.submit(Question(seen, k, mu, eps))

    async def _see(self, key: Hashable, prepare: Callable[[], Prepared]) -> Seen:
        if key not in self._remembered:
            with self._looks.coming():
                prepared = await self._in(self._decoders, prepare)
            seen = await self._looks.submit(prepared)
            self._remember(key, seen)
            return seen
        self._remembered.move_to_end(key)
        return self._remembered[key]

    def _remember(self, key: Hashable, seen: Seen) -> None:
        """Keep what was seen, and forget what was not used for longest."""
        if key not in self._remembered:  # two requests may have seen the same image
            self._held += seen.nbytes
        self._remembered[key] = seen
        while self._held > self.limits.remembered_bytes and len(self._remembered) > 1:
            self._held -= self._remembered.popitem(last=False)[1].nbytes

    async def _in(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    def _search(self, questions: Sequence[Question]) -> list[Found]:
        """Search for all questions at once, for as many neighbours as the one that wants most."""
        seen = [self.looker.select(one.seen, one.mu, one.eps) for one in questions]
        vectors: NDArray[np.float32] = np.stack([one.vector for one in seen])
        hits = self.index.search(vectors, max(one.k for one in questions))
        found = []
        for question, one, ids, distances in zip(questions, seen, hits.ids, hits.distances, strict=True):
            real = ids[: question.k] >= 0  # an approximate index may have found fewer
            found.append(Found(one, ids[: question.k][real].tolist(), distances[: question.k][real].tolist()))
        return found
