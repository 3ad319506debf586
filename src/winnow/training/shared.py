"""What runs in one process have in common, made once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch

from winnow.data import ImageSet, ImageStore, StoredImages, StoreView
from winnow.data.store import Cache, OnError, Progress
from winnow.data.view import root_of

T = TypeVar("T")


class Shared:
    """Things that several runs need and that come out the same for each: image sets, decoded images, features.

    Every run gets exactly what it would have made alone.
    """

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what was made under a key, or make it."""
        if key not in self._made:
            self._made[key] = make()
        made: T = self._made[key]
        return made

    def store(
        self,
        images: ImageSet,
        *,
        resize: int,
        cache: Cache,
        device: torch.device,
        on_error: OnError,
        progress: Progress | None = None,
    ) -> StoredImages:
        """Return a set's images from a store of the whole set it was cut from.

        An image that cannot be read is left out there, and raises only for the runs that ask for it.
        """
        root, _ = root_of(images)
        key = ("store", root, resize, cache, device)  # the set itself, by identity
        whole = self.once(
            key,
            lambda: ImageStore(root, resize=resize, cache=cache, device=device, on_error="skip", progress=progress),
        )
        return StoreView(whole, images, strict=on_error == "raise")


def once(shared: Shared | None, key: Callable[[], Hashable], make: Callable[[], T]) -> T:
    """Make something for a run alone, or once for all that share; the key is asked for only then."""
    return make() if shared is None else shared.once(key(), make)
