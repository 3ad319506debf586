"""Image sets, splits, samplers, decoding, and crops, imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from winnow.data.crops import crop_batch, random_flips, test_boxes, train_boxes
    from winnow.data.datasets.mnist import read_mnist
    from winnow.data.decoder import Decoder, available_cores
    from winnow.data.decoding import IMAGE_SUFFIXES, UnreadableImageError, read_image, resize_short, upright_rgb
    from winnow.data.image_set import ArrayImages, FileImages, ImageSet, Labels, Splits, Subset, resolve_subset
    from winnow.data.object_boxes import boxes_in_crop
    from winnow.data.readers import UNLABELED, load_images, read_collection, read_folder, read_table
    from winnow.data.sampler import BatchSampler, MPerClassSampler, RandomSampler
    from winnow.data.splits import split_by_class
    from winnow.data.store import ImageCache, ImageCacheView, RaggedImages, StoredImages, free_device_memory
    from winnow.data.transforms import CropTransform, Transform

# Decoder processes import this package and must not load torch, which takes seconds and hundreds of megabytes.
_MODULES = {
    "crops": ("crop_batch", "random_flips", "test_boxes", "train_boxes"),
    "datasets.mnist": ("read_mnist",),
    "decoder": ("Decoder", "available_cores"),
    "decoding": ("IMAGE_SUFFIXES", "UnreadableImageError", "read_image", "resize_short", "upright_rgb"),
    "image_set": ("ArrayImages", "FileImages", "ImageSet", "Labels", "Splits", "Subset", "resolve_subset"),
    "object_boxes": ("boxes_in_crop",),
    "readers": ("UNLABELED", "load_images", "read_collection", "read_folder", "read_table"),
    "sampler": ("BatchSampler", "MPerClassSampler", "RandomSampler"),
    "splits": ("split_by_class",),
    "store": ("ImageCache", "ImageCacheView", "RaggedImages", "StoredImages", "free_device_memory"),
    "transforms": ("CropTransform", "Transform"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "IMAGE_SUFFIXES",
    "UNLABELED",
    "ArrayImages",
    "BatchSampler",
    "CropTransform",
    "Decoder",
    "FileImages",
    "ImageCache",
    "ImageCacheView",
    "ImageSet",
    "Labels",
    "MPerClassSampler",
    "RaggedImages",
    "RandomSampler",
    "Splits",
    "StoredImages",
    "Subset",
    "Transform",
    "UnreadableImageError",
    "available_cores",
    "boxes_in_crop",
    "crop_batch",
    "free_device_memory",
    "load_images",
    "random_flips",
    "read_collection",
    "read_folder",
    "read_image",
    "read_mnist",
    "read_table",
    "resize_short",
    "resolve_subset",
    "split_by_class",
    "test_boxes",
    "train_boxes",
    "upright_rgb",
]


def __getattr__(name: str) -> object:
    """Import a public name from its module on first use."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'winnow.data' has no attribute '{name}'")
    value: object = getattr(import_module(f"winnow.data.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
