"""Attributes of a sample of the index, and best matches of prototypes."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import numpy as np
from numpy.typing import NDArray

from winnow.serve.middleware import Limits, RequestError
from winnow.serve.service import SearchService

LOG = logging.getLogger("winnow.serve")


class PrototypeSampler:
    """Background encoder of evenly spaced images, with their attributes (S, m).

    Batches of the sample alternate with requests. Until all are encoded, results cover the finished part.

    Args:
        service: Encodes the images.
        limits: Size of the sample and of its batches.

    Attributes:
        ids: Ids of the sampled images.
        num_prototypes: Number of prototypes m; 0 without attributes.
        num_done: Number of sampled images that are encoded.
    """

    def __init__(self, service: SearchService, limits: Limits) -> None:
        self.service, self.batch_size = service, limits.batch_size
        self.ids = evenly_spaced(service.index.ids, limits.prototype_images)
        prototypes = service.encoder.prototypes
        self.num_prototypes = 0 if prototypes is None else len(prototypes)
        self.num_done = 0
        self._attributes = np.zeros((len(self.ids), self.num_prototypes), dtype=np.float32)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to encode the sample, if it was not started before.

        Raises:
            RequestError: 404 if the pooling has no prototypes with attributes.
        """
        if self.num_prototypes == 0:
            raise RequestError(404, "prototypes: the model's pooling has none, or they were not initialized from data.")
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop encoding."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    @property
    def mean_attributes(self) -> NDArray[np.float32]:
        """(m,) attributes averaged over the encoded images."""
        mean: NDArray[np.float32] = self._attributes[: max(1, self.num_done)].mean(axis=0)
        return mean

    def top_images(self, prototype: int, k: int) -> list[tuple[int, float]]:
        """Return ids and attributes of the k images with a prototype's largest attributes."""
        values = self._attributes[: self.num_done, prototype]
        order = np.argsort(-values, kind="stable")[:k]
        return [(int(self.ids[row]), float(values[row])) for row in order]

    async def _run(self) -> None:
        try:
            while self.num_done < len(self.ids):
                ids = self.ids[self.num_done : self.num_done + self.batch_size].tolist()
                attributes = await asyncio.gather(*map(self._attributes_of, ids))
                self._attributes[self.num_done : self.num_done + len(ids)] = np.stack(attributes)
                self.num_done += len(ids)
        except Exception:  # all other routes still work
            LOG.exception("encoding images for the prototypes failed")

    async def _attributes_of(self, entry_id: int) -> NDArray[np.float32]:
        encoded = await self.service.encode_entry(await self.service.entry(entry_id))
        assert encoded.attributes is not None
        return encoded.attributes


def evenly_spaced(ids: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return up to `count` ids, evenly spaced over all of them."""
    count = min(count, len(ids))
    return ids[((np.arange(count) + 0.5) * len(ids) / max(1, count)).astype(np.int64)]
