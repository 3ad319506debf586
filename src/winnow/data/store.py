"""Decoded images of one short side, in RAM or on the device, and batches of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from winnow.data.decoder import Decoder
from winnow.data.decoding import SMALLEST_LEVEL, Resize
from winnow.data.image_set import ImageSet, Labels, resolve_subset
from winnow.errors import ConfigError, DataError

Cache = Literal["auto", "device", "ram", "none"]
OnError = Literal["raise", "skip"]
Progress = Callable[[int, int], None]

_SLAB_BYTES = 64 << 20
_SAMPLE = 16
_DEFAULT_RAM = 4 << 30  # Assumed free memory if the system reports none.


@dataclass(frozen=True)
class RaggedImages:
    """Batch of B images of different sizes, with all pixels in one buffer.

    Offsets and sizes are on the CPU, because boxes are drawn there and reading them from a GPU would synchronize.

    Attributes:
        pixels: Flat uint8 buffer with H * W * 3 interleaved RGB bytes per image; it may contain other images too.
            Halved copies follow an image of original size.
        offsets: (B,) int64 on the CPU, first byte of each image; always a multiple of 3.
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

    def halved(self, times: Tensor) -> RaggedImages:
        """Return a copy of each image that was halved (B,) times, without copying pixels."""
        offsets, heights, widths = self.offsets, self.heights, self.widths
        for number in range(int(times.max()) if len(times) else 0):
            more = times > number
            offsets = torch.where(more, offsets + 3 * heights * widths, offsets)
            heights, widths = (torch.where(more, (side + 1) // 2, side) for side in (heights, widths))
        return RaggedImages(self.pixels, offsets, heights, widths)

    def to(self, device: torch.device) -> RaggedImages:
        """Return the batch on a device; only its images are copied, without waiting for the device."""
        if self.pixels.device.type == device.type:
            return self
        sizes = list(zip(self.heights.tolist(), self.widths.tolist(), strict=True))
        starts = zip(self.offsets.tolist(), sizes, strict=True)
        pixels = _concatenate([self.pixels[start : start + 3 * h * w] for start, (h, w) in starts])
        if device.type == "cuda":  # Copies from pinned memory do not synchronize with the GPU.
            pixels = pixels.pin_memory()
        return RaggedImages(pixels.to(device, non_blocking=True), *_layout([(3 * h * w, h, w) for h, w in sizes]))


def max_halvings(heights: Tensor, widths: Tensor) -> Tensor:
    """Return how often images of original size (B,) were halved."""
    short, times = torch.minimum(heights, widths), torch.zeros_like(heights)
    while bool((more := short >= 2 * SMALLEST_LEVEL).any()):
        times = times + more
        short = torch.where(more, (short + 1) // 2, short)
    return times


class StoredImages(Protocol):
    """Images from which batches are gathered: an `ImageCache` or an `ImageCacheView`."""

    resize: Resize
    device: torch.device
    labels: Labels
    skipped: list[tuple[str, str]]

    def name(self, index: int) -> str:
        """Return the name of an image."""
        ...

    def locate(self, indices: ArrayLike) -> RaggedImages:
        """Return a batch of images where they are, in RAM or on the device."""
        ...

    def gather(self, indices: ArrayLike) -> RaggedImages:
        """Return a batch of images on the device."""
        ...


class ImageCache:
    """Images of a set, decoded once, resized, and gathered into batches on a device.

    Args:
        images: Set to decode.
        resize: Length of the short side in pixels; smaller images are enlarged. With "original" images keep their
            size up to a short side of 1024 pixels, and halved copies are stored with them: 4 bytes for each pixel.
        cache: Location of decoded images: "device", "ram", "none" (decoded again for each batch), or "auto" for the
            first of these with enough free memory.
        device: Device of the batches.
        on_error: Whether an unreadable image raises, or is skipped and listed in `skipped`.
        workers: Number of decoding threads or processes; None for a number that suits the machine and the images.
        progress: Called with (done, total) while images are decoded at construction.

    Attributes:
        labels: (N,) int64, labels of the images that were not skipped.
        kept: (N,) int64, indices in `images` of the images that were not skipped.
        skipped: Name and reason of each skipped image.
        failures: Error of each skipped image, by its index in `images`.
        cache: Actual location of the images.

    Raises:
        ConfigError: If an argument is invalid.
        DataError: If an image is unreadable and not skipped, or if no image is readable.
    """

    def __init__(
        self,
        images: ImageSet,
        *,
        resize: Resize = 256,
        cache: Cache = "auto",
        device: torch.device | str = "cpu",
        on_error: OnError = "raise",
        workers: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        if cache not in get_args(Cache):
            raise _unknown_value("data.image_cache", cache, get_args(Cache))
        if on_error not in get_args(OnError):
            raise _unknown_value("data.unreadable_images", on_error, get_args(OnError))
        if resize != "original" and resize < 1:
            raise ConfigError(f"image.resize={resize}: expected at least 1. Increase it.")
        self.images = images
        self.resize: Resize = resize
        self.device = torch.device(device)
        self.on_error: OnError = on_error
        self.kept: NDArray[np.int64] = np.arange(len(images), dtype=np.int64)
        self.skipped: list[tuple[str, str]] = []
        self.failures: dict[int, DataError] = {}
        self._decoder = Decoder(images, resize, workers=workers)
        self.cache: Cache = self._choose() if cache == "auto" else cache
        if self.cache == "none":
            # Only a full pass finds unreadable images, and training needs the final labels before it starts.
            if on_error == "skip":
                for _ in self._decode_all(progress):
                    pass
        else:
            self._fill(progress)
            self._decoder.close()
        self.labels: Labels = images.labels[self.kept]

    def __len__(self) -> int:
        return len(self.kept)

    def name(self, index: int) -> str:
        """Return the name of an image that was not skipped."""
        return self.images.name(int(self.kept[index]))

    def locate(self, indices: ArrayLike) -> RaggedImages:
        """Return a batch of images where they are: cached, or decoded into RAM."""
        chosen = _checked_indices(indices, len(self))
        if self.cache == "none":
            decoded = list(self._decoder.map(self._decode, self.kept[chosen].tolist()))
            measures = _layout([(len(flat), height, width) for flat, height, width in decoded])
            return RaggedImages(_concatenate([flat for flat, _, _ in decoded]), *measures)
        return RaggedImages(self._pixels, *self._measures[:, torch.from_numpy(chosen)])

    def gather(self, indices: ArrayLike) -> RaggedImages:
        """Return a batch of images on the device. Images cached there are not copied."""
        return self.locate(indices).to(self.device)

    def _fill(self, progress: Progress | None) -> None:
        """Decode all images into one buffer, in device memory or in RAM."""
        home = self.device if self.cache == "device" else torch.device("cpu")
        slabs: list[Tensor] = []
        pending: list[Tensor] = []
        sizes: list[tuple[int, int, int]] = []
        pending_bytes = 0
        for flat, height, width in self._decode_all(progress):
            pending.append(flat)
            sizes.append((len(flat), height, width))
            pending_bytes += len(flat)
            if pending_bytes >= _SLAB_BYTES:  # Few large copies to the device, and never the whole set in RAM.
                slabs.append(_concatenate(pending).to(home))
                pending, pending_bytes = [], 0
        if pending:
            slabs.append(_concatenate(pending).to(home))
        self._pixels = _join_slabs(slabs, home)
        self._measures = _layout(sizes)

    def _decode(self, index: int) -> tuple[Tensor, int, int]:
        """Return the flat interleaved bytes of an image and its copies, its height, and its width."""
        pixels, height, width = self._decoder.read_flat(index)
        return torch.from_numpy(pixels), height, width

    def _try_decode(self, index: int) -> tuple[Tensor, int, int] | DataError:
        try:
            return self._decode(index)
        except DataError as error:
            return error

    def _decode_all(self, progress: Progress | None) -> Iterator[tuple[Tensor, int, int]]:
        """Yield all readable images in order, then set `kept` and `skipped`."""
        kept: list[int] = []
        total = len(self.images)
        for index, result in enumerate(self._decoder.map(self._try_decode, range(total))):
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
            raise _none_readable(total, *self.skipped[0])
        self.kept = np.array(kept, dtype=np.int64)

    def _choose(self) -> Cache:
        """Choose a location with enough memory for all images, estimated by a sample."""
        count = min(_SAMPLE, len(self.images))
        sample = np.linspace(0, len(self.images) - 1, count).astype(np.int64).tolist()
        results = list(self._decoder.map(self._try_decode, sample))
        sizes = [len(result[0]) for result in results if not isinstance(result, DataError)]
        estimate = float(np.mean(sizes)) * len(self.images) if sizes else 0.0
        if self.device.type == "cuda" and estimate < 0.4 * free_device_memory(self.device):
            return "device"
        return "ram" if estimate < 0.5 * free_ram() else "none"


class ImageCacheView:
    """Images of a subset, taken from the cache of the whole set without copies.

    Args:
        store: Cache of the whole set.
        images: The whole set, or a subset of it at any depth.
        strict: Whether an image that the cache skipped raises. Otherwise it is skipped here too.

    Attributes:
        store: Cache of the whole set.
        rows: (N,) int64, positions of the images in the cache.
        labels: (N,) int64, labels in `images`.
        skipped: Name and reason of each skipped image.
        resize: Short side of the cached images.

    Raises:
        ValueError: If `images` is no subset of the cached set.
        DataError: If an image is unreadable and `strict` is set, or if no image is readable.
    """

    def __init__(self, store: ImageCache, images: ImageSet, *, strict: bool = True) -> None:
        root, indices = resolve_subset(images)
        if root is not store.images:
            raise ValueError("images: no subset of the cached set. Select them from `store.images`.")
        position = np.full(len(root), -1, dtype=np.int64)
        position[store.kept] = np.arange(len(store))
        rows = position[indices]
        missing = indices[rows < 0]
        if len(missing) and strict:
            raise store.failures[int(missing[0])]
        reasons = dict(store.skipped)
        self.skipped = [(root.name(int(i)), reasons[root.name(int(i))]) for i in missing]
        if len(missing) and len(missing) == len(indices):
            raise _none_readable(len(indices), *self.skipped[0])
        self.store, self.rows = store, rows[rows >= 0]
        self.resize, self.device = store.resize, store.device
        self.labels: Labels = images.labels[rows >= 0]

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        """Return the name of an image."""
        return self.store.name(int(self.rows[index]))

    def locate(self, indices: ArrayLike) -> RaggedImages:
        """Return a batch of images where they are."""
        return self.store.locate(self.rows[_checked_indices(indices, len(self))])

    def gather(self, indices: ArrayLike) -> RaggedImages:
        """Return a batch of images on the device."""
        return self.locate(indices).to(self.device)


def free_ram() -> int:
    """Return the free memory in bytes, within the limit of the container.

    Processes that torchrun started on this machine divide the memory.
    """
    free = [_read_meminfo() or _read_sysconf() or _DEFAULT_RAM]
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text().strip()
        free.append(int(limit) - int(used))
    except (OSError, ValueError):  # No container, or its limit is "max".
        pass
    return max(0, min(free)) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def free_device_memory(device: torch.device) -> int:
    """Return the free bytes of a CUDA device, and 0 for any other device."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.mem_get_info(device)[0])


def _read_meminfo() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    kibibytes = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), "0")
    return int(kibibytes) * 1024


def _read_sysconf() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0


def _checked_indices(indices: ArrayLike, count: int) -> NDArray[np.int64]:
    """Return indices as an array.

    On a GPU an index out of range would abort the process instead of raising.
    """
    chosen = np.asarray(indices, dtype=np.int64)
    if len(chosen) and not (chosen.min() >= 0 and chosen.max() < count):
        raise IndexError(f"indices: expected values within 0-{count - 1}.")
    return chosen


def _unknown_value(key: str, value: str, options: tuple[str, ...]) -> ConfigError:
    return ConfigError(f"{key}={value}: unknown value. Use one of {', '.join(options)}.")


def _none_readable(total: int, name: str, reason: str) -> DataError:
    return DataError(f"{name}: image cannot be read ({reason}), nor any other of the {total}. Check the folder.")


def _layout(sizes: list[tuple[int, int, int]]) -> Tensor:
    """Return (3, B) int64, offsets, heights, and widths of consecutive images, from their bytes and sides."""
    measures = torch.tensor(sizes, dtype=torch.int64).reshape(-1, 3).T.clone()
    measures[0] = measures[0].cumsum(0) - measures[0]
    return measures


def _concatenate(images: list[Tensor]) -> Tensor:
    """Concatenate flat images in NumPy: torch's threads would slow down decoding."""
    return torch.from_numpy(np.concatenate([image.numpy() for image in images]))


def _join_slabs(slabs: list[Tensor], home: torch.device) -> Tensor:
    """Concatenate slabs and free each, so RAM never contains all pixels twice."""
    whole = torch.empty(sum(map(len, slabs)), dtype=torch.uint8, device=home)
    start = 0
    slabs.reverse()
    while slabs:
        slab = slabs.pop()
        whole[start : start + len(slab)] = slab
        start += len(slab)
    return whole
