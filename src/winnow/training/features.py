"""A frozen backbone's feature maps, computed once and kept in RAM or on disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from winnow.data import Crops, ImageSet, ImageStore
from winnow.data.store import OnError, Progress
from winnow.errors import DataError
from winnow.models import Backbone
from winnow.training.inputs import CropInputs, FeatureInputs
from winnow.training.kept_features import KeptFeatures

CPU_BATCH = 8  # larger ones leave a CPU's caches and are several times slower


def cache_folder() -> Path:
    """Return where features are kept on disk: `$WINNOW_CACHE`, or the user's cache folder."""
    base = os.environ.get("WINNOW_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "winnow"


def in_full_batches(backbone: Backbone, images: Tensor, batch: int) -> Tensor:
    """Return the backbone's features of at most `batch` images, to which it is given others if they are fewer.

    Convolutions are computed in another order for another number of images, and an image's features must not depend,
    not even in their last bits, on which images are beside it.
    """
    missing = max(0, batch - len(images))
    filled = torch.cat([images, images[:1].expand(missing, *images.shape[1:])]) if missing else images
    features: Tensor = backbone(filled)
    return features[: len(images)]


@torch.no_grad()
def compute_features(
    backbone: Backbone, inputs: CropInputs, device: torch.device, progress: Progress | None = None
) -> Iterator[Tensor]:
    """Yield the backbone's maps (B, C, h, w) or tokens (B, n, C) of every image's centre crop, on the CPU, in order."""
    backbone.to(device).freeze()
    batch = CPU_BATCH if device.type == "cpu" else 128
    count = len(inputs.labels)
    for start in range(0, count, batch):
        stop = min(start + batch, count)
        yield in_full_batches(backbone, inputs.test(range(start, stop)), batch).float().cpu()
        if progress is not None:
            progress(stop, count)


def frozen_inputs(
    backbone: Backbone,
    images: ImageSet,
    crops: Crops,
    device: torch.device,
    *,
    keep: Literal["ram", "disk"] = "ram",
    on_error: OnError = "raise",
    progress: Progress | None = None,
) -> tuple[FeatureInputs, list[tuple[str, str]]]:
    """Make a set's features, or find them on disk.

    On disk they are found by the backbone's weights, the crop and the image, so that a change of any makes new ones,
    and sets that have images in common share theirs.

    Returns:
        The features, and the (name, reason) of each image that was skipped.
    """
    if keep == "disk":
        return _from_disk(backbone, images, crops, device, on_error, progress)
    store = _open(images, crops, device, on_error)
    maps: Tensor | None = None
    done = 0
    for part in compute_features(backbone, CropInputs(store, crops), device, progress):
        if maps is None:
            maps = torch.empty(len(store), *part.shape[1:])
        maps[done : done + len(part)] = part
        done += len(part)
    assert maps is not None, "an image set is never empty"
    return FeatureInputs(maps, store.labels, [store.name(i) for i in range(len(store))], device), store.skipped


def _from_disk(
    backbone: Backbone,
    images: ImageSet,
    crops: Crops,
    device: torch.device,
    on_error: OnError,
    progress: Progress | None,
) -> tuple[FeatureInputs, list[tuple[str, str]]]:
    """Find a set's features, after making those that are missing."""
    kept = KeptFeatures(cache_folder() / "features" / f"{backbone.fingerprint()}-{crops.resize}-{crops.size}")
    keys = [hashlib.sha256(images.identity(i).encode()).hexdigest()[:20] for i in range(len(images))]
    missing = kept.missing(keys)
    skipped: list[tuple[str, str]] = []
    if missing:
        part = images.of_images(missing)
        try:
            store = _open(part, crops, device, on_error)
        except DataError:
            if on_error == "raise" or len(missing) == len(images):
                raise
            # None of these can be read, and all others are here already.
            skipped = [(images.name(i), _why_unreadable(images, i)) for i in missing]
        else:
            skipped = store.skipped
            made = compute_features(backbone, CropInputs(store, crops), device, progress)
            kept.add([keys[missing[i]] for i in store.kept], made)
    rows = np.setdiff1d(np.arange(len(images)), kept.missing(keys))
    names = [images.name(int(i)) for i in rows]
    return FeatureInputs(kept.of([keys[i] for i in rows]), images.labels[rows], names, device), skipped


def _open(images: ImageSet, crops: Crops, device: torch.device, on_error: OnError) -> ImageStore:
    # Every image is needed once only, so none is kept decoded; but to skip is to have looked at all of them.
    cache: Literal["auto", "none"] = "auto" if on_error == "skip" else "none"
    return ImageStore(images, resize=crops.resize, cache=cache, device=device, on_error=on_error)


def _why_unreadable(images: ImageSet, index: int) -> str:
    try:
        images.read(index)
    except DataError as error:
        return str(getattr(error, "reason", error))
    return "it can be read again"
