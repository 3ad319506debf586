"""From image sets to what the model is fed: decoded once and cut, or as a frozen backbone's features."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from winnow.data import Crops, ImageSet, ImageStore, Splits, StoredImages
from winnow.errors import ConfigError
from winnow.models.backbone import Backbone
from winnow.training.config import Config
from winnow.training.features import frozen_inputs
from winnow.training.inputs import CropInputs, Inputs, QueryGallery
from winnow.training.monitor import Monitor
from winnow.training.shared import Shared, once


def make_crops(config: Config) -> Crops:
    """Return how a config cuts images."""
    augment = config.augment
    transform = _import(augment.transform) if augment.transform else None
    return Crops(
        resize=config.image.resize, train_resize=augment.resize, size=config.image.crop,
        area=augment.area, aspect=augment.aspect, flip=augment.flip, transform=transform,
    )  # fmt: skip


def open_splits(
    config: Config,
    splits: Splits,
    backbone: Backbone,
    device: torch.device,
    monitor: Monitor,
    shared: Shared | None = None,
    origin: str = "",
) -> tuple[Inputs, Inputs, Inputs | None]:
    """Return the inputs of training, validation and test.

    Args:
        config: A resolved one.
        splits: The images.
        backbone: Makes the features, if it is frozen.
        device: Where batches are wanted.
        monitor: Is shown the progress, and told of images that are left out.
        shared: What the run has in common with others beside it.
        origin: What tells the backbone's weights and crop from those of the others.
    """
    crops, data = make_crops(config), config.data
    frozen = config.backbone.train == "frozen"

    def fingerprint(images: ImageSet) -> str:
        return once(shared, lambda: ("fingerprint", images), images.fingerprint)

    def stored(images: ImageSet, resize: int, title: str) -> StoredImages:
        keep = ImageStore if shared is None else shared.store
        show = monitor.task(title)
        return keep(images, resize=resize, cache=data.cache, device=device, on_error=data.on_error, progress=show)

    def cropped(images: ImageSet, title: str) -> tuple[Inputs, list[tuple[str, str]]]:
        store = stored(images, crops.resize, title)
        if images is not splits.train or crops.train_resize in (None, crops.resize):
            return CropInputs(store, crops), store.skipped
        assert crops.train_resize is not None, "it is another"
        return CropInputs(store, crops, stored(images, crops.train_resize, f"{title}, larger")), store.skipped

    def featured(images: ImageSet, title: str) -> tuple[Inputs, list[tuple[str, str]]]:
        return once(
            shared,
            lambda: ("features", origin, fingerprint(images), data.features, data.on_error, device),
            lambda: frozen_inputs(
                backbone, images, crops, device,
                keep=data.features, on_error=data.on_error, progress=monitor.task(title),
            ),
        )  # fmt: skip

    def inputs(images: ImageSet, part: str) -> Inputs:
        made, skipped = featured(images, f"{part} features") if frozen else cropped(images, f"{part} images")
        for name, reason in skipped:
            monitor.note(f"skipped {name}: {reason}")
        return made

    train, val = inputs(splits.train, "training"), inputs(splits.val, "validation")
    test = val if splits.test is splits.val else None
    if splits.test is not None and test is None:
        test = inputs(splits.test, "test")
    if test is not None and splits.gallery is not None:
        test = QueryGallery(test, inputs(splits.gallery, "gallery"))
        val = test if splits.val is splits.test else val
    return train, val, test


def _import(path: str) -> Callable[..., Any]:
    """Import 'module:function'."""
    module, _, name = path.partition(":")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # an installed command does not look in the working folder by itself
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"augment.transform={path}: {error}; write it as 'module:function'") from None
    if not callable(found):
        raise ConfigError(f"augment.transform={path} is not callable")
    return found  # type: ignore[no-any-return]
