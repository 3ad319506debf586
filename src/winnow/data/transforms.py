"""Network inputs from cached images: random training crops and center crops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from winnow.data.augmentation import Augmentation
from winnow.data.crops import crop_batch, match_levels, random_flips, test_boxes, train_boxes
from winnow.data.decoding import Resize
from winnow.data.store import RaggedImages, StoredImages
from winnow.errors import ConfigError, DataError
from winnow.seeding import seed_everything

Transform = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class CropTransform:
    """Random crops for training and center crops for evaluation.

    Attributes:
        resize: Short side of the images that center crops are cut from.
        train_resize: Short side of the images that training crops are cut from, or "original" for their own size;
            None for `resize`. Small crops of larger images are sharper.
        size: Height and width of the crops, or one number for both.
        scale: Smallest and largest fraction of the image area that a training crop covers.
        ratio: Smallest and largest width / height of a training crop.
        hflip: Whether half of the training crops are mirrored.
        transform: Function that replaces random crop and flip in training. It takes one cached image, (3, H, W) uint8,
            and returns (3, h, w), float in [0, 1] or uint8, of one size for all images. The generators of torch,
            NumPy, and Python are seeded for each image.
        augmentation: Changes of training crops, also of those that `transform` returns.

    Raises:
        ConfigError: If a value is out of range.
    """

    resize: int = 256
    train_resize: Resize | None = None
    size: int | tuple[int, int] = 227
    scale: tuple[float, float] = (0.16, 1.0)
    ratio: tuple[float, float] = (0.75, 4 / 3)
    hflip: bool = True
    transform: Transform | None = None
    augmentation: Augmentation = field(default_factory=Augmentation)

    def __post_init__(self) -> None:
        sides = (self.size, self.size) if isinstance(self.size, int) else self.size
        if self.resize < 1 or min(sides) < 1:
            raise ConfigError(
                f"image.resize={self.resize}, image.crop={self.size}: expected at least 1. Increase them."
            )
        if isinstance(self.train_resize, int) and self.train_resize < 1:
            raise ConfigError(f"augment.resize={self.train_resize}: expected at least 1. Increase it.")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ConfigError(f"augment.scale={self.scale}: expected two fractions in (0, 1]. Write the smaller first.")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ConfigError(f"augment.ratio={self.ratio}: expected two positive numbers. Write the smaller first.")

    def train(
        self,
        store: StoredImages,
        indices: ArrayLike,
        generator: torch.Generator,
        out: Tensor | None = None,
        rows: slice = slice(None),
    ) -> Tensor:
        """Return training crops (B, 3, h, w), float32 in [0, 1].

        Args:
            store: Cached images.
            indices: Images of the batch.
            generator: Generator on the CPU that draws boxes and flips, or the seeds of the transform.
            out: Earlier batch of the same shape to write to; None for a new tensor.
            rows: Rows of the batch to return. They equal the same rows of the whole batch.
        """
        chosen = np.asarray(indices)
        batch, batch_size = _locate(store, chosen[rows], self.train_resize or self.resize), len(chosen)
        if self.transform is not None:
            seeds = torch.randint(2**62, (batch_size,), generator=generator)[rows]
            crops = _apply(self.transform, batch.to(store.device), seeds.tolist())
            crops = crops if out is None else _write(crops, out)
            return self.augmentation.apply(crops, generator, batch_size, rows)
        boxes = train_boxes(
            batch.heights, batch.widths, generator, scale=self.scale, ratio=self.ratio, batch_size=batch_size, rows=rows
        )
        flips = random_flips(batch_size, generator)[rows] if self.hflip else None
        if self.train_resize == "original":
            batch, boxes = match_levels(batch, boxes, self.size)
        crops = crop_batch(batch.to(store.device), boxes, self.size, flips, out=out)
        return self.augmentation.apply(crops, generator, batch_size, rows)

    def test(self, store: StoredImages, indices: ArrayLike) -> Tensor:
        """Return center crops (B, 3, h, w), float32 in [0, 1]."""
        batch = _locate(store, indices, self.resize).to(store.device)
        return crop_batch(batch, test_boxes(batch.heights, batch.widths, self.size), self.size)


def _locate(store: StoredImages, indices: ArrayLike, resize: Resize) -> RaggedImages:
    if store.resize != resize:
        raise ConfigError(
            f"resize: crops need images of short side {resize}, the cache has {store.resize}. Match them."
        )
    return store.locate(indices)


def _apply(transform: Transform, batch: RaggedImages, seeds: Sequence[int]) -> Tensor:
    """Apply a transform to each image with a separate seed, and stack the results."""
    pixels, results = batch.pixels, list[Tensor]()
    # Numbers that the loss draws later must not depend on the rows of this process.
    with torch.random.fork_rng([pixels.device] if pixels.is_cuda else []):
        for image, seed in zip(batch.images(), seeds, strict=True):
            seed_everything(seed)
            results.append(_apply_to_one(transform, image, results))
    return torch.stack(results)


def _apply_to_one(transform: Transform, image: Tensor, previous: Sequence[Tensor]) -> Tensor:
    """Apply a transform to one image, and check the size of the result."""
    try:
        result = transform(image)
    except Exception as error:
        raise DataError(
            f"augment.transform: failed on an image of shape {tuple(image.shape)}: {error!r}. Correct the function."
        ) from error
    if not isinstance(result, Tensor) or result.ndim != 3 or result.shape[0] != 3:
        got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise DataError(f"augment.transform: expected a (3, height, width) tensor, got {got}. Correct the function.")
    if previous and result.shape != previous[0].shape:
        raise _sizes_differ(tuple(previous[0].shape), tuple(result.shape))
    return result.float().div(255) if result.dtype == torch.uint8 else result.float()


def _write(crops: Tensor, out: Tensor) -> Tensor:
    if crops.shape != out.shape:
        raise _sizes_differ(tuple(out.shape[1:]), tuple(crops.shape[1:]))
    return out.copy_(crops)


def _sizes_differ(first: tuple[int, ...], second: tuple[int, ...]) -> DataError:
    return DataError(
        f"augment.transform: returned images of shape {first} and then {second}, expected one shape in all batches. "
        "End the function with a crop or a resize."
    )
