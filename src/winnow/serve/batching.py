"""Micro-batches: concurrent requests share one call, made in a separate thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Collects concurrently submitted items into batches and computes their results.

    The next batch collects items while one is computed. A batch waits only for items that are announced; without any,
    a single item is computed immediately. The queue has no limit: callers limit it. Cancelled items are skipped.

    Args:
        work: Maps items to their results, in order; called in one thread, one call at a time.
        max_size: Largest batch.
        wait_ms: Longest wait of a batch for announced items.
        on_batch: Called with the size of each batch.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Sequence[Result]],
        *,
        max_size: int,
        wait_ms: float,
        on_batch: Callable[[int], None] | None = None,
    ) -> None:
        self.work, self.max_size, self.wait, self.on_batch = work, max_size, wait_ms / 1000, on_batch
        self._queue: asyncio.Queue[tuple[Item, asyncio.Future[Result]]] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batch")
        self._task: asyncio.Task[None] | None = None
        self._announced = 0

    @contextlib.contextmanager
    def announce(self) -> Iterator[None]:
        """Announce one item while it is being prepared, so a batch waits for it."""
        self._announced += 1
        try:
            yield
        finally:
            self._announced -= 1

    async def submit(self, item: Item) -> Result:
        """Return the result of an item."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((item, future))
        return await future

    def start(self) -> None:
        """Start to compute batches; called inside the event loop."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop after the current batch and cancel all waiting items."""
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
            batch = [(item, future) for item, future in await self._collect() if not future.done()]
            if not batch:
                continue
            if self.on_batch is not None:
                self.on_batch(len(batch))
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

    async def _collect(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        batch = [await self._queue.get()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.wait):
                while len(batch) < self.max_size and (self._announced or not self._queue.empty()):
                    batch.append(await self._queue.get())
        return batch
