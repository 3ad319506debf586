"""Images to vectors and thumbnails, and the identity of an image."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from winnow.data import UNLABELED, Decoder, FileImages, ImageSet, RaggedImages, Subset, available_cores
from winnow.data.crops import crop_batch, test_boxes
from winnow.data.decoder import Pixels
from winnow.errors import DataError
from winnow.files import open_regular, valid_text

if TYPE_CHECKING:
    from winnow.models import Embedder

THUMBNAIL = 192
"""Longest side of a thumbnail in pixels."""

Progress = Callable[[int, int], None]
"""Called with (done, total)."""

ProgressFactory = Callable[[str], Progress]
"""Returns the `Progress` of a phase of work, such as "embedding"."""


def no_progress(_title: str) -> Progress:
    """Return a `Progress` that shows nothing."""
    return lambda _done, _total: None


@dataclass(frozen=True, eq=False)
class EmbeddedBatch:
    """Vectors and thumbnails of a batch of images."""

    indices: list[int]  # positions in the image set
    vectors: NDArray[np.float32]  # (B, dim), normalized as the model config states
    thumbnails: list[bytes] | None  # upright JPEG of each image; None if not requested
    failures: list[tuple[int, DataError]]  # position and error of each unreadable image


def embed_images(
    model: Embedder, images: ImageSet, indices: Sequence[int], *, batch_size: int = 64, thumbnails: bool = False
) -> Iterator[EmbeddedBatch]:
    """Embed images of a set in the given order.

    The next batch is decoded while the network computes.
    """
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
            yield EmbeddedBatch(good, embed_pixels(model, pixels), small, failures)
    finally:
        decoder.close()


@torch.inference_mode()
def embed_pixels(model: Embedder, pixels: Sequence[Pixels]) -> NDArray[np.float32]:
    """Return normalized vectors of images (H, W, 3) that were resized already."""
    from winnow.functional import NORMALIZERS  # not needed to open and search an index

    if not pixels:
        return np.zeros((0, model.config.dim), dtype=np.float32)
    mode, size = model.training, model.crops.size
    sizes = torch.tensor([each.shape[:2] for each in pixels])
    starts = 3 * torch.cat([torch.zeros(1, dtype=torch.int64), sizes.prod(dim=1).cumsum(0)[:-1]])
    flat = torch.cat([torch.from_numpy(np.ascontiguousarray(each)).reshape(-1) for each in pixels])
    batch = RaggedImages(flat.to(model.device), starts, sizes[:, 0], sizes[:, 1])
    model.eval()
    try:
        vectors = model(crop_batch(batch, test_boxes(batch.heights, batch.widths, size), size)).float()
    finally:
        model.train(mode)
    result: NDArray[np.float32] = NORMALIZERS[model.config.normalize](vectors).cpu().numpy()
    return result


def thumbnail(image: Image.Image, side: int = THUMBNAIL) -> bytes:
    """Return an RGB image as a small JPEG file."""
    small = image.copy()
    small.thumbnail((side, side), Image.Resampling.BILINEAR)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def content_hashes(images: ImageSet, progress: Progress | None = None) -> list[str]:
    """Return the SHA-256 of the bytes of each image file.

    An image that is no file, or a file that cannot be opened, has the hash of its identity. Decoding reports errors.
    """
    hashes: list[str] = []
    with ThreadPoolExecutor(available_cores()) as pool:  # hashing releases the GIL
        for found in pool.map(lambda index: _hash(images, index), range(len(images))):
            hashes.append(found)
            if progress is not None:
                progress(len(hashes), len(images))
    return hashes


def full_name(images: ImageSet, index: int) -> str:
    """Return the absolute path of an image file, or the name of another image."""
    file = _file(images, index)
    return valid_text(images.name(index) if file is None else os.path.abspath(file))


def class_name(images: ImageSet, index: int) -> str | None:
    """Return the class name of an image; None if unknown."""
    name = images.class_names[int(images.labels[index])]
    return None if name == UNLABELED else valid_text(name)


def _file(images: ImageSet, index: int) -> str | None:
    """Return the path of an image file; None if the image is no file."""
    if isinstance(images, Subset):
        return _file(images.parent, int(images.indices[index]))
    return str(images.path(index)) if isinstance(images, FileImages) else None


def _hash(images: ImageSet, index: int) -> str:
    """Return the content hash of one image."""
    file = _file(images, index)
    return (None if file is None else file_hash(file)) or text_hash(images.cache_key(index))


def file_hash(file: str) -> str | None:
    """Return the SHA-256 of the bytes of a file; None if it cannot be opened."""
    try:
        with open_regular(file) as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError:
        return None


def text_hash(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
