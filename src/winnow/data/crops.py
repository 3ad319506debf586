"""Random and center crops of whole batches, on the device of the images."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from winnow.data.store import RaggedImages, max_halvings
from winnow.kernels.ops import can_fuse_crops, fused_crops

_ATTEMPTS = 10


def crop_batch(
    batch: RaggedImages,
    boxes: Tensor,
    size: int | tuple[int, int],
    flips: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Crop a box from each image and scale it to one size.

    Interpolation is bilinear with half-pixel centers and without antialiasing. Positions outside the image take the
    nearest edge pixel. A box of whole pixels that has the output size gives exactly those pixels. On a GPU with Triton
    this is one kernel.

    Args:
        batch: B images.
        boxes: (B, 4) float on the CPU: top, left, height, and width in pixels.
        size: Height and width of the output, or one number for both.
        flips: (B,) bool on the CPU, whether to mirror each crop left to right; None for no mirroring.
        out: Tensor to write the crops to, (B, 3, height, width) float32 in channels-last order on the device of the
            batch; None for a new tensor.

    Returns:
        (B, 3, height, width) float32 in [0, 1], in channels-last order on the device of the batch.
    """
    height, width = (size, size) if isinstance(size, int) else size
    if can_fuse_crops(batch.pixels):
        return fused_crops(batch, boxes, (height, width), flips, out)
    crops = _crop_plain(batch, boxes, (height, width), flips)
    return crops if out is None else out.copy_(crops)


def _crop_plain(batch: RaggedImages, boxes: Tensor, size: tuple[int, int], flips: Tensor | None) -> Tensor:
    """Crop in plain PyTorch, on any device."""
    height, width = size
    device = batch.pixels.device
    offsets, heights, widths = (measure.to(device) for measure in (batch.offsets, batch.heights, batch.widths))
    top, left, box_height, box_width = boxes.to(device, torch.float32).unsqueeze(-1).unbind(1)
    y = _centers(height, device) * _exact_divide(box_height, height) - 0.5 + top
    x = _centers(width, device) * _exact_divide(box_width, width) - 0.5 + left
    if flips is not None:
        x = torch.where(flips.to(device)[:, None], x.flip(1), x)
    y0, x0 = y.floor(), x.floor()
    down, right = (y - y0)[:, :, None, None], (x - x0)[:, None, :, None]
    above, below = (_clamp_positions(row, heights) * widths[:, None] for row in (y0, y0 + 1))
    before, after = (_clamp_positions(column, widths) for column in (x0, x0 + 1))
    # Fetch whole pixels of three bytes, which takes a third of the indices of single bytes.
    pixels = batch.pixels.view(-1, 3)
    start = (offsets // 3)[:, None]

    def fetch(rows: Tensor, columns: Tensor) -> Tensor:
        """Return the (B, height, width, 3) values at the given rows and columns."""
        positions = (start + rows)[:, :, None] + columns[:, None, :]
        return pixels.index_select(0, positions.flatten()).view(*positions.shape, 3).float()

    upper = torch.lerp(fetch(above, before), fetch(above, after), right)
    lower = torch.lerp(fetch(below, before), fetch(below, after), right)
    crops = torch.lerp(upper, lower, down)
    return _exact_divide(crops, 255).permute(0, 3, 1, 2)


def train_boxes(
    heights: Tensor,
    widths: Tensor,
    generator: torch.Generator,
    *,
    scale: tuple[float, float] = (0.16, 1.0),
    ratio: tuple[float, float] = (0.75, 4 / 3),
    batch_size: int | None = None,
    rows: slice = slice(None),
) -> Tensor:
    """Draw one random box per image.

    The fraction of the area is uniform and the logarithm of the aspect ratio is uniform, as in torchvision. The
    authors' TensorFlow code draws the aspect ratio uniformly, and then the height. Boxes are not rounded to whole
    pixels. Of 10 draws the first that fits is used. If none fits, the box is the largest centered one with an allowed
    aspect ratio.

    Args:
        heights: (B,) image heights on the CPU.
        widths: (B,) image widths on the CPU.
        generator: Generator on the CPU, so the boxes are equal on every device.
        scale: Smallest and largest fraction of the image area.
        ratio: Smallest and largest width / height.
        batch_size: Number of images in the whole batch, if these are only some of its rows.
        rows: Rows of the batch that these images are. The box of an image depends only on its row in the batch.

    Returns:
        (B, 4) float32: top, left, height, width.
    """
    count = len(heights)
    drawn = torch.rand(2, batch_size or count, _ATTEMPTS, generator=generator)[:, rows]
    positions = torch.rand(2, batch_size or count, generator=generator)[:, rows]
    fractions = scale[0] + (scale[1] - scale[0]) * drawn[0]
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspects = torch.exp(low + (high - low) * drawn[1])

    full_height, full_width = heights.float()[:, None], widths.float()[:, None]
    pixels = fractions * full_height * full_width
    box_width, box_height = torch.sqrt(pixels * aspects), torch.sqrt(pixels / aspects)
    fits = (box_width <= full_width) & (box_height <= full_height)
    # The fallback is one more column that always fits. argmax finds the first column that fits.
    fallback_width = torch.minimum(full_width, full_height * ratio[1])
    fallback_height = torch.minimum(full_height, full_width * (1 / ratio[0]))
    always = torch.ones(count, 1, dtype=torch.bool)
    first = torch.cat([fits, always], 1).int().argmax(1, keepdim=True)
    box_width = torch.cat([box_width, fallback_width], 1).gather(1, first)[:, 0]
    box_height = torch.cat([box_height, fallback_height], 1).gather(1, first)[:, 0]
    positions = torch.where(first[:, 0] == _ATTEMPTS, 0.5, positions)
    top = positions[0] * (heights - box_height)
    left = positions[1] * (widths - box_width)
    return torch.stack([top, left, box_height, box_width], 1)


def test_boxes(heights: Tensor, widths: Tensor, size: int | tuple[int, int]) -> Tensor:
    """Return the center box of each image, at whole pixels to avoid resampling.

    The box of an image smaller than `size` extends beyond it on both sides. `crop_batch` repeats the nearest edge
    pixel there.

    Args:
        heights: (B,) image heights.
        widths: (B,) image widths.
        size: Height and width of the box, or one number for both.

    Returns:
        (B, 4) float32: top, left, height, width.
    """
    height, width = (size, size) if isinstance(size, int) else size
    top = torch.div(heights - height, 2, rounding_mode="floor")
    left = torch.div(widths - width, 2, rounding_mode="floor")
    return torch.stack([top, left, torch.full_like(top, height), torch.full_like(left, width)], 1).float()


def match_levels(batch: RaggedImages, boxes: Tensor, size: int | tuple[int, int]) -> tuple[RaggedImages, Tensor]:
    r"""Select the halved copy of each image of original size whose box has about the size of the crop.

    A box that is $s$ times as large as the crop is cut from the copy that was halved $\lfloor\log_2 s + \frac12\rfloor$
    times. Interpolation then neither skips pixels nor blurs them.

    Args:
        batch: B images, each followed by its halved copies.
        boxes: (B, 4) top, left, height, and width in pixels of the images.
        size: Height and width of the crops, or one number for both.

    Returns:
        The copies, and the boxes in their pixels.
    """
    sides = torch.tensor([size, size] if isinstance(size, int) else size, dtype=boxes.dtype)
    factor = (boxes[:, 2:] / sides).amin(1)
    times = (factor.log2() + 0.5).floor().long().clamp(min=0)
    times = torch.minimum(times, max_halvings(batch.heights, batch.widths))
    return batch.halved(times), boxes / 2.0 ** times[:, None]


def random_flips(count: int, generator: torch.Generator) -> Tensor:
    """Draw (count,) bool on the CPU, each true with probability one half."""
    return torch.rand(count, generator=generator) < 0.5


def _centers(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device, dtype=torch.float32) + 0.5


def _clamp_positions(positions: Tensor, lengths: Tensor) -> Tensor:
    """Return (B, n) positions as int64 within 0 and length - 1."""
    return torch.minimum(positions.long().clamp(min=0), lengths[:, None] - 1)


def _exact_divide(values: Tensor, number: float) -> Tensor:
    """Return values / number, correctly rounded on every device.

    GPUs multiply by the rounded inverse of a plain number. Then 227 / 227 would not be 1, and aligned crops not exact.
    """
    return values / torch.full((), float(number), device=values.device)
