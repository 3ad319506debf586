"""Images to vectors and thumbnails, a batch at a time; each image is decoded once."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from winnow.data import ImageSet, Ragged
from winnow.data.crops import crop_batch, test_boxes
from winnow.data.decode import Decoder, Pixels
from winnow.errors import DataError
from winnow.functional import NORMALISE
from winnow.index.hashing import Progress
from winnow.index.journal import Journal
from winnow.models import Embedder

THUMBNAIL = 192
"""Longest side of a thumbnail in pixels."""


@dataclass(frozen=True, eq=False)
class Embedded:
    """A batch of images made into vectors.

    Attributes:
        indices: Which images of the set.
        vectors: (B, dim) float32, normalised as the model's config says.
        thumbnails: A JPEG file of each image, upright; None where they were not asked for.
        failures: Index and reason of each image of the batch that cannot be read.
    """

    indices: list[int]
    vectors: NDArray[np.float32]
    thumbnails: list[bytes] | None
    failures: list[tuple[int, DataError]]


def embed_images(
    model: Embedder, images: ImageSet, indices: Sequence[int], *, batch_size: int = 64, thumbnails: bool = False
) -> Iterator[Embedded]:
    """Embed some images of a set in their order; while the network computes, the next batch is decoded."""
    decoder = Decoder(images, model.config.image.resize)

    def decode(index: int) -> Pixels | DataError:
        try:
            return decoder.read(index)
        except DataError as error:
            return error

    try:
        decoded = zip(indices, decoder.map(decode, indices), strict=True)
        done = 0
        while done < len(indices):
            good: list[int] = []
            pixels: list[Pixels] = []
            failures: list[tuple[int, DataError]] = []
            for index, result in decoded:
                done += 1
                if isinstance(result, DataError):
                    failures.append((index, result))
                else:
                    good.append(index)
                    pixels.append(result)
                if len(good) + len(failures) == batch_size:
                    break
            small = [thumbnail(Image.fromarray(each)) for each in pixels] if thumbnails else None
            yield Embedded(good, embed_pixels(model, pixels), small, failures)
    finally:
        decoder.close()


@dataclass
class Made:
    """What `embed_new` did: how many vectors it made; hashes, and (index, reason), of images that cannot be read."""

    count: int = 0
    failed: set[str] = field(default_factory=set)
    reasons: list[tuple[int, str]] = field(default_factory=list)


def embed_new(
    model: Embedder, images: ImageSet, hashes: Sequence[str], known: set[str], journal: Journal, batch_size: int, *,
    thumbnails: bool, show: Progress,
) -> Made:  # fmt: skip
    """Embed into a journal the images whose hash is neither known nor in it; equal files are embedded once."""
    have = known | journal.hashes()
    new: dict[str, int] = {}
    for index, key in enumerate(hashes):
        if key not in have:
            new.setdefault(key, index)
    made, done = Made(), 0
    for batch in embed_images(model, images, list(new.values()), batch_size=batch_size, thumbnails=thumbnails):
        journal.add([hashes[index] for index in batch.indices], batch.vectors, batch.thumbnails)
        made.count += len(batch.indices)
        made.failed.update(hashes[index] for index, _ in batch.failures)
        made.reasons += [(index, str(getattr(error, "reason", error))) for index, error in batch.failures]
        done += len(batch.indices) + len(batch.failures)
        show(done, len(new))
    return made


@torch.inference_mode()
def embed_pixels(model: Embedder, pixels: Sequence[Pixels]) -> NDArray[np.float32]:
    """Return the normalised vectors of images (H, W, 3) that have the model's short side already."""
    if not pixels:
        return np.zeros((0, model.config.dim), dtype=np.float32)
    mode, size = model.training, model.crops.size
    sizes = torch.tensor([each.shape[:2] for each in pixels])
    starts = 3 * torch.cat([torch.zeros(1, dtype=torch.int64), sizes.prod(dim=1).cumsum(0)[:-1]])
    flat = torch.cat([torch.from_numpy(np.ascontiguousarray(each)).reshape(-1) for each in pixels])
    batch = Ragged(flat.to(model.device), starts, sizes[:, 0], sizes[:, 1])
    model.eval()
    try:
        vectors = model(crop_batch(batch, test_boxes(batch.heights, batch.widths, size), size)).float()
    finally:
        model.train(mode)
    result: NDArray[np.float32] = NORMALISE[model.config.normalise](vectors).cpu().numpy()
    return result


def thumbnail(image: Image.Image, side: int = THUMBNAIL) -> bytes:
    """Return an RGB image as a small JPEG file."""
    small = image.copy()
    small.thumbnail((side, side), Image.Resampling.BILINEAR)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
