"""What prototypes like: their attributes over images of the index, gathered in the background once somebody asks."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import numpy as np
from numpy.typing import NDArray

from winnow.serve.limits import Limits, Refusal
from winnow.serve.service import Service

LOG = logging.getLogger("winnow.serve")


class Tastes:
    """The attributes of images spread evenly over the index, (S, m).

    Looking takes its turn with requests, a batch at a time; until it is done, answers are from what was looked at.

    Args:
        service: To see images with.
        ids: Ids of the images of the index.
        limits: How many images are looked at.
    """

    def __init__(self, service: Service, ids: NDArray[np.int64], limits: Limits) -> None:
        self.service, self.batch = service, limits.batch
        self.ids = spread(ids, limits.sampled)
        prototypes = service.looker.prototypes
        self.count = 0 if prototypes is None else len(prototypes)
        self.done = 0
        self._attributes = np.zeros((len(self.ids), self.count), dtype=np.float32)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look, if nobody has yet.

        Raises:
            Refusal: 404 where the pooling has no prototypes that tell anything.
        """
        if self.count == 0:
            raise Refusal(404, "the model's pooling has no prototypes, or they were never set from data")
        if self._task is None:
            self._task = asyncio.create_task(self._look())

    async def stop(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    @property
    def shares(self) -> NDArray[np.float32]:
        """(m,) attributes averaged over the images looked at."""
        seen: NDArray[np.float32] = self._attributes[: max(1, self.done)].mean(axis=0)
        return seen

    def best(self, prototype: int, k: int) -> list[tuple[int, float]]:
        """Return ids and attributes of the k images looked at that have a prototype's largest."""
        values = self._attributes[: self.done, prototype]
        order = np.argsort(-values, kind="stable")[:k]
        return [(int(self.ids[place]), float(values[place])) for place in order]

    async def _look(self) -> None:
        try:
            while self.done < len(self.ids):
                ids = self.ids[self.done : self.done + self.batch].tolist()
                seen = await asyncio.gather(*(self._attribute(number) for number in ids))
                self._attributes[self.done : self.done + len(ids)] = np.stack(seen)
                self.done += len(ids)
        except Exception:  # the rest of the service goes on without
            LOG.exception("looking at images for the prototypes ended early")

    async def _attribute(self, number: int) -> NDArray[np.float32]:
        seen = await self.service.see(await self.service.entry(number))
        assert seen.attributes is not None
        return seen.attributes


def spread(ids: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return ids spread evenly over all of them."""
    count = min(most, len(ids))
    return ids[((np.arange(count) + 0.5) * len(ids) / max(1, count)).astype(np.int64)]
