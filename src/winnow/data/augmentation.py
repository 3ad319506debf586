"""Changes of training crops by torchvision: RandAugment, color jitter, and random erasing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from winnow.errors import ConfigError
from winnow.vision import ensure_torchvision

LARGEST_MAGNITUDE = 30
"""Largest magnitude of RandAugment in torchvision."""

ERASED = (0.485, 0.456, 0.406)
"""Color of erased boxes: the mean of ImageNet, which the usual normalization maps to zero."""

_NOTHING = (0, 0, 0, 0)


@dataclass(frozen=True)
class Augmentation:
    """Random changes of crops, in the order of the attributes.

    Random numbers of a crop depend only on its seed. They are drawn on the CPU, so every device gets the same changes.
    Operations and distributions are those of `torchvision.transforms.v2`.

    Attributes:
        rand_augment: Magnitude of the two operations of RandAugment on each crop, from 1 to 30; 0 for none. Crops are
            rounded to 8 bits.
        color_jitter: Largest relative change of brightness, contrast, and saturation; 0 for none.
        random_erasing: Probability that a box of 2 to 33% of the crop is filled with a constant color.

    Raises:
        ConfigError: If a value is out of range.

    References:
        Cubuk et al., "RandAugment: Practical Automated Data Augmentation with a Reduced Search Space", NeurIPS 2020.
        Zhong et al., "Random Erasing Data Augmentation", AAAI 2020.
    """

    rand_augment: int = 0
    color_jitter: float = 0.0
    random_erasing: float = 0.0

    def __post_init__(self) -> None:
        for name, value, largest in (
            ("rand_augment", self.rand_augment, LARGEST_MAGNITUDE),
            ("color_jitter", self.color_jitter, 1),
            ("random_erasing", self.random_erasing, 1),
        ):
            if not 0 <= value <= largest:
                raise ConfigError(f"augment.{name}={value}: expected 0 to {largest}. Correct it.")

    @property
    def changes_nothing(self) -> bool:
        """Whether no change is requested."""
        return not (self.rand_augment or self.color_jitter or self.random_erasing)

    @torch.no_grad()
    def apply(self, crops: Tensor, generator: torch.Generator, batch_size: int, rows: slice = slice(None)) -> Tensor:
        """Change crops (B, 3, h, w), float in [0, 1], in place, and return them.

        Args:
            crops: Crops: some rows of a batch.
            generator: Generator on the CPU that draws a seed for each image of the batch.
            batch_size: Number of images in the whole batch.
            rows: Rows of the batch that these crops are.
        """
        if self.changes_nothing or batch_size == 0:
            return crops
        seeds = torch.randint(2**62, (batch_size,), generator=generator)[rows].tolist()
        changes, draw_box = self._transforms()
        sources: Tensor | list[Tensor] = list(crops)
        if self.rand_augment:
            sources = (crops * 255).round().to(torch.uint8)
        boxes = []
        for crop, source, seed in zip(crops, sources, seeds, strict=True):
            with _drawing_from(seed):
                changed = source
                for change in changes:
                    changed = change(changed)
                boxes.append(draw_box(crop))
            if changes:
                crop.copy_(changed)
        return _erase(crops, boxes) if self.random_erasing else crops

    def _transforms(self) -> tuple[list[Callable[[Tensor], Tensor]], Callable[[Tensor], tuple[int, int, int, int]]]:
        """Return the changes of a crop, and the function that draws its erased box."""
        ensure_torchvision()
        from torchvision.transforms import v2

        changes: list[Any] = []
        if self.rand_augment:
            changes += [v2.RandAugment(2, self.rand_augment), v2.ToDtype(torch.float32, scale=True)]
        if self.color_jitter:
            changes.append(v2.ColorJitter(self.color_jitter, self.color_jitter, self.color_jitter))
        erasing = v2.RandomErasing(value=0)

        def draw_box(crop: Tensor) -> tuple[int, int, int, int]:
            """Return top, left, height, and width of the erased box; zeros for none."""
            if torch.rand(()) >= self.random_erasing:
                return _NOTHING
            drawn = erasing.make_params([crop])
            return _NOTHING if drawn["v"] is None else (drawn["i"], drawn["j"], drawn["h"], drawn["w"])

        return changes, draw_box


@contextmanager
def _drawing_from(seed: int) -> Iterator[None]:
    """Seed the generator of the CPU, from which torchvision draws, and restore it at exit.

    `torch.manual_seed` would change the generator of the GPU too.
    """
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(seed)
        yield


def _erase(crops: Tensor, boxes: list[tuple[int, int, int, int]]) -> Tensor:
    """Fill a box (top, left, height, width) of each crop, for the whole batch at once."""
    table = torch.tensor(boxes, dtype=torch.int32)
    if crops.is_cuda:
        table = table.pin_memory()
    top, left, height, width = table.to(crops.device, non_blocking=True)[:, :, None, None, None].unbind(1)
    y = torch.arange(crops.shape[2], device=crops.device)[:, None]
    x = torch.arange(crops.shape[3], device=crops.device)
    inside = (y >= top) & (y < top + height) & (x >= left) & (x < left + width)
    for channel, value in enumerate(ERASED):
        crops[:, channel : channel + 1].masked_fill_(inside, value)
    return crops
