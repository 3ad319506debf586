"""Requests that come at the same time share one call: micro-batches, made in a thread of their own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Collects what is submitted at about the same time, up to a number, and works on it together.

    While a batch is worked on, the next one gathers. A batch waits for what is known to be on its way, but not in vain:
    what comes alone is worked on at once. How much can wait is bounded by whoever submits. What was given up meanwhile
    is left out.

    Args:
        work: From items to their results, in the same order; called in one thread, one call at a time.
        most: Largest batch.
        wait_ms: How long a batch that is not full waits for what is on its way.
        note: Called with the size of each batch.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Sequence[Result]],
        *,
        most: int,
        wait_ms: float,
        note: Callable[[int], None] | None = None,
    ) -> None:
        self.work, self.most, self.wait, self.note = work, most, wait_ms / 1000, note
        self._queue: asyncio.Queue[tuple[Item, asyncio.Future[Result]]] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batch")
        self._task: asyncio.Task[None] | None = None
        self._coming = 0

    @contextlib.contextmanager
    def coming(self) -> Iterator[None]:
        """Tell that something is on its way, as long as it is."""
        self._coming += 1
        try:
            yield
        finally:
            self._coming -= 1

    async def submit(self, item: Item) -> Result:
        """Return the result for an item."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((item, future))
        return await future

    def start(self) -> None:
        """Begin to work; called inside the event loop."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End after the batch at hand; what still waits is cancelled."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        while not self._queue.empty():
            self._queue.get_nowait()[1].cancel()
        self._thread.shutdown(wait=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = [(item, future) for item, future in await self._gather() if not future.done()]
            if not batch:
                continue
            if self.note is not None:
                self.note(len(batch))
            try:
                results = await loop.run_in_executor(self._thread, self.work, [item for item, _ in batch])
            except asyncio.CancelledError:
                for _, future in batch:
                    future.cancel()
                raise
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)

    async def _gather(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        batch = [await self._queue.get()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.wait):
                while len(batch) < self.most and (self._coming or not self._queue.empty()):
                    batch.append(await self._queue.get())
        return batch
