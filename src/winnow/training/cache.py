"""Objects that several runs share, such as decoded images and features."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch

from winnow.data import ImageCache, ImageCacheView, ImageSet, StoredImages, resolve_subset
from winnow.data.decoding import Resize
from winnow.data.store import Cache, OnError, Progress

T = TypeVar("T")


class RunCache:
    """Equal objects of several runs: image sets, decoded images, features.

    Every run gets exactly what it would make without a cache.
    """

    def __init__(self) -> None:
        self._objects: dict[Hashable, Any] = {}

    def cached(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the object under a key, and make it at the first call."""
        if key not in self._objects:
            self._objects[key] = make()
        found: T = self._objects[key]
        return found

    def fingerprint(self, images: ImageSet) -> str:
        """Return the fingerprint of an image set, computed once."""
        return self.cached(("fingerprint", images), images.fingerprint)

    def store(
        self,
        images: ImageSet,
        *,
        resize: Resize,
        cache: Cache,
        device: torch.device,
        on_error: OnError,
        progress: Progress | None = None,
    ) -> StoredImages:
        """Return images from a store of the whole image set they are a subset of.

        The store skips an unreadable image. It raises an error only in runs that use this image.
        """
        root, _ = resolve_subset(images)
        key = ("store", root, resize, cache, device)  # the image set by identity
        whole = self.cached(
            key,
            lambda: ImageCache(root, resize=resize, cache=cache, device=device, on_error="skip", progress=progress),
        )
        return ImageCacheView(whole, images, strict=on_error == "raise")


def cached(cache: RunCache | None, key: Hashable, make: Callable[[], T]) -> T:
    """Make an object for a run without a cache, or once for all runs that share one."""
    return make() if cache is None else cache.cached(key, make)
