"""Random and centre crops of whole batches, on the device the images are on."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from winnow.data.crop_fused import can_fuse, crop_fused
from winnow.data.ragged import Ragged

_ATTEMPTS = 10


def crop_batch(
    batch: Ragged,
    boxes: Tensor,
    size: int | tuple[int, int],
    flips: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Cut a box out of each image and scale it to one size.

    Bilinear with half-pixel centres and without antialiasing; what a box covers beyond the image takes the nearest
    edge pixel. A box of whole pixels that has the output's size gives exactly those pixels. On a GPU with Triton all
    of it is one kernel.

    Args:
        batch: B images.
        boxes: (B, 4) float on the CPU: top, left, height and width in pixels.
        size: Height and width of the output, or one number for both.
        flips: (B,) bool on the CPU, which crops to mirror left to right.
        out: Where to write the crops: (B, 3, height, width) float32 in channels-last order, on the batch's device.

    Returns:
        (B, 3, height, width) float32 in [0, 1], in channels-last order on the batch's device.
    """
    height, width = (size, size) if isinstance(size, int) else size
    if can_fuse(batch.pixels):
        return crop_fused(batch, boxes, (height, width), flips, out)
    crops = _crop_plain(batch, boxes, (height, width), flips)
    return crops if out is None else out.copy_(crops)


def _crop_plain(batch: Ragged, boxes: Tensor, size: tuple[int, int], flips: Tensor | None) -> Tensor:
    """Crop in plain PyTorch, whatever the device."""
    height, width = size
    device = batch.pixels.device
    offsets, heights, widths = (measure.to(device) for measure in (batch.offsets, batch.heights, batch.widths))
    top, left, box_height, box_width = boxes.to(device, torch.float32).unsqueeze(-1).unbind(1)
    y = _centres(height, device) * _divided(box_height, height) - 0.5 + top
    x = _centres(width, device) * _divided(box_width, width) - 0.5 + left
    if flips is not None:
        x = torch.where(flips.to(device)[:, None], x.flip(1), x)
    y0, x0 = y.floor(), x.floor()
    down, right = (y - y0)[:, :, None, None], (x - x0)[:, None, :, None]
    above, below = (_clamped(row, heights) * widths[:, None] for row in (y0, y0 + 1))
    before, after = (_clamped(column, widths) for column in (x0, x0 + 1))
    # Whole pixels are fetched, three bytes at an index: a third of the indices that single bytes would take.
    pixels = batch.pixels.view(-1, 3)
    start = (offsets // 3)[:, None]

    def fetch(rows: Tensor, columns: Tensor) -> Tensor:
        """Return the (B, height, width, 3) values at the crossings of rows and columns."""
        places = (start + rows)[:, :, None] + columns[:, None, :]
        return pixels.index_select(0, places.flatten()).view(*places.shape, 3).float()

    upper = torch.lerp(fetch(above, before), fetch(above, after), right)
    lower = torch.lerp(fetch(below, before), fetch(below, after), right)
    crops = torch.lerp(upper, lower, down)
    return _divided(crops, 255).permute(0, 3, 1, 2)


def train_boxes(
    heights: Tensor,
    widths: Tensor,
    generator: torch.Generator,
    *,
    area: tuple[float, float] = (0.16, 1.0),
    aspect: tuple[float, float] = (0.75, 4 / 3),
    whole: int | None = None,
    share: slice = slice(None),
) -> Tensor:
    """Draw one random box per image.

    The share of the area is uniform and the logarithm of the aspect is uniform, as in torchvision; the authors'
    TensorFlow code draws the aspect itself uniformly, and then the height. Boxes are not rounded to whole pixels. Of
    10 draws the first that fits is taken; when none does, the largest centred box of an allowed aspect.

    Args:
        heights: (B,) of the images, on the CPU.
        widths: (B,) of the images, likewise.
        generator: On the CPU, so that the boxes are the same for every device.
        area: Smallest and largest share of the image's area.
        aspect: Smallest and largest width / height.
        whole: Number of images in the batch, where these are only a share of it.
        share: Which of the batch these are; an image's box depends on its place in the whole batch alone.

    Returns:
        (B, 4) float32: top, left, height, width.
    """
    count = len(heights)
    drawn = torch.rand(2, whole or count, _ATTEMPTS, generator=generator)[:, share]
    places = torch.rand(2, whole or count, generator=generator)[:, share]
    shares = area[0] + (area[1] - area[0]) * drawn[0]
    low, high = math.log(aspect[0]), math.log(aspect[1])
    aspects = torch.exp(low + (high - low) * drawn[1])

    full_height, full_width = heights.float()[:, None], widths.float()[:, None]
    pixels = shares * full_height * full_width
    box_width, box_height = torch.sqrt(pixels * aspects), torch.sqrt(pixels / aspects)
    fits = (box_width <= full_width) & (box_height <= full_height)
    # The fallback stands in one more column that always fits; argmax finds the first that does.
    fallback_width = torch.minimum(full_width, full_height * aspect[1])
    fallback_height = torch.minimum(full_height, full_width * (1 / aspect[0]))
    always = torch.ones(count, 1, dtype=torch.bool)
    first = torch.cat([fits, always], 1).int().argmax(1, keepdim=True)
    box_width = torch.cat([box_width, fallback_width], 1).gather(1, first)[:, 0]
    box_height = torch.cat([box_height, fallback_height], 1).gather(1, first)[:, 0]
    places = torch.where(first[:, 0] == _ATTEMPTS, 0.5, places)
    top = places[0] * (heights - box_height)
    left = places[1] * (widths - box_width)
    return torch.stack([top, left, box_height, box_width], 1)


def test_boxes(heights: Tensor, widths: Tensor, size: int | tuple[int, int]) -> Tensor:
    """Return the centre box of `size` for each image, at whole pixels so that nothing is resampled.

    An image smaller than `size` gets a box that reaches beyond it on both sides; `crop_batch` fills what is outside
    with the nearest edge pixel.

    Args:
        heights: (B,) of the images.
        widths: (B,) of the images.
        size: Height and width of the box, or one number for both.

    Returns:
        (B, 4) float32: top, left, height, width.
    """
    height, width = (size, size) if isinstance(size, int) else size
    top = torch.div(heights - height, 2, rounding_mode="floor")
    left = torch.div(widths - width, 2, rounding_mode="floor")
    return torch.stack([top, left, torch.full_like(top, height), torch.full_like(left, width)], 1).float()


def random_flips(count: int, generator: torch.Generator) -> Tensor:
    """Return (count,) bool, each true with probability one half; drawn on the CPU."""
    return torch.rand(count, generator=generator) < 0.5


def _centres(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device, dtype=torch.float32) + 0.5


def _clamped(positions: Tensor, lengths: Tensor) -> Tensor:
    """Return (B, n) positions as int64 within 0 and length - 1."""
    return torch.minimum(positions.long().clamp(min=0), lengths[:, None] - 1)


def _divided(values: Tensor, number: float) -> Tensor:
    """Return values / number, rounded correctly on every device.

    By a plain number GPUs multiply with its rounded inverse: 227 / 227 would not be 1, nor aligned crops exact.
    """
    return values / torch.full((), float(number), device=values.device)
