"""From stored images to what the network is shown: random crops in training, centre crops in judging."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from winnow.data.crops import crop_batch, random_flips, test_boxes, train_boxes
from winnow.data.ragged import Ragged
from winnow.data.store import StoredImages
from winnow.errors import ConfigError, DataError
from winnow.seeding import seed_everything

Transform = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Crops:
    """How stored images are cut.

    Attributes:
        resize: Short side of the images that centre crops are cut from.
        train_resize: The same of training crops; None for the same images. From larger ones small crops are sharper.
        size: Height and width of the crops, or one number for both.
        area: Smallest and largest share of the image's area a training crop takes.
        aspect: Smallest and largest width / height of a training crop.
        flip: Whether half of the training crops are mirrored.
        transform: A user's own augmentation. It takes one stored image, (3, H, W) uint8, and returns (3, h, w), float
            in [0, 1] or uint8, of the same size for every image; in training it replaces random crop and flip. What it
            draws from the generators of torch, numpy or Python is seeded for each image.
    """

    resize: int = 256
    train_resize: int | None = None
    size: int | tuple[int, int] = 227
    area: tuple[float, float] = (0.16, 1.0)
    aspect: tuple[float, float] = (0.75, 4 / 3)
    flip: bool = True
    transform: Transform | None = None

    def __post_init__(self) -> None:
        sides = (self.size, self.size) if isinstance(self.size, int) else self.size
        if self.resize < 1 or min(sides) < 1:
            raise ConfigError(f"image.resize={self.resize}, image.crop={self.size}: must be at least 1")
        if self.train_resize is not None and self.train_resize < 1:
            raise ConfigError(f"augment.resize={self.train_resize}: must be at least 1")
        if not 0 < self.area[0] <= self.area[1] <= 1:
            raise ConfigError(f"augment.area={self.area}: must be two shares of the image, the smaller first")
        if not 0 < self.aspect[0] <= self.aspect[1]:
            raise ConfigError(f"augment.aspect={self.aspect}: must be two positive numbers, the smaller first")

    def train(
        self,
        store: StoredImages,
        indices: ArrayLike,
        generator: torch.Generator,
        out: Tensor | None = None,
        share: slice = slice(None),
    ) -> Tensor:
        """Return (B, 3, h, w) float32 in [0, 1]: random crops, or what the user's transform makes.

        Given `out`, an earlier batch of the same shape, they are written into it. Given a share, only that part of the
        batch is made, the same as within the whole: what is drawn for an image depends on its place in the batch alone.
        """
        rows = np.asarray(indices)
        batch, whole = _gather(store, rows[share], self.train_resize or self.resize), len(rows)
        if self.transform is not None:
            seeds = torch.randint(2**62, (whole,), generator=generator)[share]
            made = _transformed(batch, self.transform, seeds.tolist())
            return made if out is None else _written(made, out)
        boxes = train_boxes(
            batch.heights, batch.widths, generator, area=self.area, aspect=self.aspect, whole=whole, share=share
        )
        flips = random_flips(whole, generator)[share] if self.flip else None
        return crop_batch(batch, boxes, self.size, flips, out=out)

    def test(self, store: StoredImages, indices: ArrayLike) -> Tensor:
        """Return (B, 3, h, w) float32 in [0, 1]: centre crops."""
        batch = _gather(store, indices, self.resize)
        return crop_batch(batch, test_boxes(batch.heights, batch.widths, self.size), self.size)


def _gather(store: StoredImages, indices: ArrayLike, resize: int) -> Ragged:
    if store.resize != resize:
        raise ConfigError(f"crops of resize {resize} are asked of a store made with resize {store.resize}")
    return store.gather(indices)


def _transformed(batch: Ragged, transform: Transform, seeds: Sequence[int]) -> Tensor:
    """Apply a transform image by image, each with its own seed, and stack what it returns."""
    pixels, results = batch.pixels, list[Tensor]()
    # What is drawn after the transforms, by a loss, must not depend on which images this process has.
    with torch.random.fork_rng([pixels.device] if pixels.is_cuda else []):
        for image, seed in zip(batch.images(), seeds, strict=True):
            seed_everything(seed)
            results.append(_checked(image, transform, results))
    return torch.stack(results)


def _checked(image: Tensor, transform: Transform, others: Sequence[Tensor]) -> Tensor:
    """Apply a transform to one image; what it returns must be an image of the others' size."""
    try:
        result = transform(image)
    except Exception as error:
        raise DataError(f"the transform failed on an image of shape {tuple(image.shape)}: {error!r}") from error
    if not isinstance(result, Tensor) or result.ndim != 3 or result.shape[0] != 3:
        got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise DataError(f"the transform must return a (3, height, width) tensor, not {got}")
    if others and result.shape != others[0].shape:
        raise DataError(
            f"the transform must return images of one size, but returned {tuple(others[0].shape)} "
            f"and then {tuple(result.shape)}: end it with a crop or a resize"
        )
    return result.float().div(255) if result.dtype == torch.uint8 else result.float()


def _written(made: Tensor, out: Tensor) -> Tensor:
    if made.shape != out.shape:
        raise DataError(
            f"the transform must return images of one size in all batches, but returned {tuple(out.shape[2:])} and "
            f"then {tuple(made.shape[2:])}: end it with a crop or a resize"
        )
    return out.copy_(made)
