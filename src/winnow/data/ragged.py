"""Images of different sizes in one flat buffer."""

from __future__ import annotations

from dataclasses import dataclass

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
