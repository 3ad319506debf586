"""Images decoded once, shrunk, and kept where batches are made from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, Protocol, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from winnow.data.decode import Decoder
from winnow.data.imageset import ImageSet, Labels
from winnow.data.memory import free_device, free_ram
from winnow.data.ragged import Ragged, joined, layout, packed
from winnow.errors import ConfigError, DataError

Cache = Literal["auto", "device", "ram", "none"]
OnError = Literal["raise", "skip"]
Progress = Callable[[int, int], None]

_SLAB_BYTES = 64 << 20
_SAMPLE = 16


class StoredImages(Protocol):
    """Images ready to be gathered into batches: a store, or a view of one."""

    resize: int
    labels: Labels
    skipped: list[tuple[str, str]]

    def name(self, index: int) -> str:
        """Return the name of an image."""
        ...

    def gather(self, indices: ArrayLike) -> Ragged:
        """Return some images as a batch on the device."""
        ...


class ImageStore:
    """The images of a set, shrunk to one short side, ready to be gathered into batches on a device.

    Args:
        images: What to hold.
        resize: Length of the short side in pixels; smaller images are enlarged to it.
        cache: Where decoded images are kept: "device", "ram", "none" (decoded anew for each batch), or "auto", the
            first of these that the images fit into with room to spare.
        device: Where batches are wanted.
        on_error: Whether an unreadable image raises, or is left out and listed in `skipped`.
        workers: How many threads or processes decode; None for what suits the machine and the number of images.
        progress: Called with (done, total) as images are decoded up front.

    Attributes:
        labels: (N,) int64, labels of the images kept.
        kept: (N,) int64, indices in `images` of the images kept.
        skipped: Name and reason for each image left out.
        failures: The error of each image left out, by its index in `images`.
        cache: Where the images are in fact kept.

    Raises:
        DataError: for an unreadable image unless they are skipped, or when none can be read.
    """

    def __init__(
        self,
        images: ImageSet,
        *,
        resize: int = 256,
        cache: Cache = "auto",
        device: torch.device | str = "cpu",
        on_error: OnError = "raise",
        workers: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        if cache not in get_args(Cache):
            raise ConfigError(f"data.cache={cache}: must be one of {', '.join(get_args(Cache))}")
        if on_error not in get_args(OnError):
            raise ConfigError(f"data.on_error={on_error}: must be one of {', '.join(get_args(OnError))}")
        if resize < 1:
            raise ConfigError(f"image.resize={resize}: must be at least 1")
        self.images = images
        self.resize = resize
        self.device = torch.device(device)
        self.on_error: OnError = on_error
        self.kept: NDArray[np.int64] = np.arange(len(images), dtype=np.int64)
        self.skipped: list[tuple[str, str]] = []
        self.failures: dict[int, DataError] = {}
        self._decoder = Decoder(images, resize, workers=workers)
        self.cache: Cache = self._choose() if cache == "auto" else cache
        if self.cache == "none":
            # Only a full pass finds the broken ones, and what is left out must be known before training starts.
            if on_error == "skip":
                for _ in self._decode_all(progress):
                    pass
        else:
            self._keep(progress)
            self._decoder.close()
        self.labels: Labels = images.labels[self.kept]

    def __len__(self) -> int:
        return len(self.kept)

    def name(self, index: int) -> str:
        """Return the name of a kept image."""
        return self.images.name(int(self.kept[index]))

    def gather(self, indices: ArrayLike) -> Ragged:
        """Return some images as a batch on the device; what is cached there is not copied."""
        chosen = np.asarray(indices, dtype=np.int64)
        # Checked here, because an index out of range on a GPU ends the process instead of raising.
        if len(chosen) and not (chosen.min() >= 0 and chosen.max() < len(self)):
            raise IndexError(f"image indices must be within 0-{len(self) - 1}")
        if self.cache == "none":
            decoded = list(self._decoder.map(self._decode, self.kept[chosen].tolist()))
            return self._moved([flat for flat, _, _ in decoded], [size[1:] for size in decoded])
        offsets, heights, widths = self._measures[:, torch.from_numpy(chosen)]
        if self.cache == "device" or self.device.type == "cpu":
            return Ragged(self._pixels, offsets, heights, widths)
        sizes = list(zip(heights.tolist(), widths.tolist(), strict=True))
        starts = zip(offsets.tolist(), sizes, strict=True)
        return self._moved([self._pixels[start : start + 3 * h * w] for start, (h, w) in starts], sizes)

    def _moved(self, parts: list[Tensor], sizes: list[tuple[int, int]]) -> Ragged:
        """Pack flat images into a batch and bring it to the device."""
        pixels = packed(parts)
        measures = layout(sizes)
        if self.device.type == "cuda":  # pinned memory travels without waiting for the GPU
            pixels = pixels.pin_memory()
        return Ragged(pixels.to(self.device, non_blocking=True), *measures)

    def _keep(self, progress: Progress | None) -> None:
        """Decode everything into one buffer, in the device's memory or in RAM."""
        home = self.device if self.cache == "device" else torch.device("cpu")
        slabs: list[Tensor] = []
        pending: list[Tensor] = []
        sizes: list[tuple[int, int]] = []
        held = 0
        for flat, height, width in self._decode_all(progress):
            pending.append(flat)
            sizes.append((height, width))
            held += len(flat)
            if held >= _SLAB_BYTES:  # few large copies to the device, and never the whole set in RAM for it
                slabs.append(packed(pending).to(home))
                pending, held = [], 0
        if pending:
            slabs.append(packed(pending).to(home))
        self._pixels = joined(slabs, home)
        self._measures = layout(sizes)

    def _decode(self, index: int) -> tuple[Tensor, int, int]:
        """Return one image of the set as flat interleaved bytes, its height and its width."""
        pixels = self._decoder.read(index)
        return torch.from_numpy(pixels.reshape(-1)), pixels.shape[0], pixels.shape[1]

    def _try(self, index: int) -> tuple[Tensor, int, int] | DataError:
        try:
            return self._decode(index)
        except DataError as error:
            return error

    def _decode_all(self, progress: Progress | None) -> Iterator[tuple[Tensor, int, int]]:
        """Yield all readable images in order, then settle `kept` and `skipped`."""
        kept: list[int] = []
        total = len(self.images)
        for index, result in enumerate(self._decoder.map(self._try, range(total))):
            if isinstance(result, DataError):
                if self.on_error == "raise":
                    raise result
                self.failures[index] = result
                self.skipped.append((self.images.name(index), str(getattr(result, "reason", result))))
            else:
                kept.append(index)
                yield result
            if progress is not None:
                progress(index + 1, total)
        if self.skipped and not kept:
            name, reason = self.skipped[0]
            raise DataError(f"none of the {total} images can be read; the first is {name} ({reason})")
        self.kept = np.array(kept, dtype=np.int64)

    def _choose(self) -> Cache:
        """Estimate the bytes the decoded images take from some of them, and choose where they fit."""
        count = min(_SAMPLE, len(self.images))
        sample = np.linspace(0, len(self.images) - 1, count).astype(np.int64).tolist()
        results = list(self._decoder.map(self._try, sample))
        sizes = [len(result[0]) for result in results if not isinstance(result, DataError)]
        estimate = float(np.mean(sizes)) * len(self.images) if sizes else 0.0
        if self.device.type == "cuda" and estimate < 0.4 * free_device(self.device):
            return "device"
        return "ram" if estimate < 0.5 * free_ram() else "none"
