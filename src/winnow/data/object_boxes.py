"""Bounding boxes of objects, mapped from an image file to the network input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from winnow.data.crops import test_boxes
from winnow.data.decoding import resized_size
from winnow.data.transforms import CropTransform


def boxes_in_crop(boxes: Tensor, sizes: Sequence[tuple[int, int]], crops: CropTransform) -> Tensor:
    """Map boxes in image files to boxes in the center crop of evaluation.

    The image is resized to its short side as `resize_short` does, and the center is cut out as `CropTransform.test`
    does. A box is clipped to the crop. A box outside the crop has no area.

    Args:
        boxes: Boxes (N, 4): left, top, right, and bottom, as fractions of the upright image.
        sizes: Width and height in pixels of each upright image file.
        crops: Size of the resized images and of the crop.

    Returns:
        Boxes (N, 4): left, top, right, and bottom, as fractions of the crop, float64.
    """
    kept, resized = zip(*(resized_size(size, crops.resize) for size in sizes), strict=True)
    file = torch.tensor(sizes, dtype=torch.float64).repeat(1, 2)
    region = torch.tensor(kept, dtype=torch.float64)
    scale = torch.tensor(resized, dtype=torch.float64) / (region[:, 2:] - region[:, :2])
    pixels = (boxes.double() * file - region[:, :2].repeat(1, 2)) * scale.repeat(1, 2)

    widths, heights = torch.tensor(resized).unbind(1)
    top, left, height, width = test_boxes(heights, widths, crops.size).double().unbind(1)
    corner, extent = torch.stack([left, top, left, top], 1), torch.stack([width, height, width, height], 1)
    return ((pixels - corner) / extent).clamp(0, 1)
