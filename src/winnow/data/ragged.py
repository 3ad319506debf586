"""Images of different sizes in one flat buffer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Ragged:
    """B images of different sizes, their pixels on one device.

    The measures are on the CPU, where boxes are drawn: to ask a GPU for them would be to wait for it.

    Attributes:
        pixels: Flat uint8 buffer in which each image is a run of H * W * 3 bytes, interleaved RGB; it may hold other
            images too.
        offsets: (B,) int64 on the CPU, the byte at which each image begins; always a multiple of 3.
        heights: (B,) int64 on the CPU.
        widths: (B,) int64 on the CPU.
    """

    pixels: Tensor
    offsets: Tensor
    heights: Tensor
    widths: Tensor

    def __len__(self) -> int:
        return len(self.offsets)

    def images(self) -> list[Tensor]:
        """Return each image as a (3, H, W) uint8 view."""
        sizes = zip(self.offsets.tolist(), self.heights.tolist(), self.widths.tolist(), strict=True)
        return [
            self.pixels[start : start + 3 * height * width].view(height, width, 3).permute(2, 0, 1)
            for start, height, width in sizes
        ]


def layout(sizes: list[tuple[int, int]]) -> Tensor:
    """Return (3, B) int64: offsets, heights and widths of images packed one after another."""
    measures = torch.zeros(3, len(sizes), dtype=torch.int64)
    measures[1:] = torch.tensor(sizes, dtype=torch.int64).reshape(-1, 2).T
    measures[0, 1:] = (3 * measures[1] * measures[2]).cumsum(0)[:-1]
    return measures


def packed(parts: list[Tensor]) -> Tensor:
    """Concatenate flat images by plain copies: torch's threads would only wait for cores that decode."""
    return torch.from_numpy(np.concatenate([part.numpy() for part in parts]))


def joined(slabs: list[Tensor], home: torch.device) -> Tensor:
    """Concatenate slabs, freeing each once copied, so that RAM never holds everything twice."""
    whole = torch.empty(sum(map(len, slabs)), dtype=torch.uint8, device=home)
    start = 0
    slabs.reverse()
    while slabs:
        slab = slabs.pop()
        whole[start : start + len(slab)] = slab
        start += len(slab)
    return whole
