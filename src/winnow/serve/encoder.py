"""Encoding of query images, and pooling again with other mu and eps."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from winnow.data import RaggedImages, crop_batch, resize_short, test_boxes
from winnow.data.decoding import MAX_ELONGATION
from winnow.functional import NORMALIZERS, PoolingOutput, clip_norm, gsp, pairwise_distance
from winnow.models import Embedder, grid_shape
from winnow.pooling import GSP, GSPGuidedPooling, PrototypePooling
from winnow.pooling.base import as_tokens
from winnow.pooling.gsp import pool_residual


class CropBox(NamedTuple):
    """Region of an image that enters the network, in fractions of its sides."""

    left: float
    top: float
    width: float
    height: float


class PreparedImage(NamedTuple):
    """Network input (3, h, w) in [0, 1], and its region of the image."""

    crop: Tensor
    box: CropBox


@dataclass(frozen=True, eq=False)
class EncodedImage:
    """Embedding, pooling weights, and attributes of one image."""

    box: CropBox
    grid: tuple[int, int]  # rows and columns of local features
    vector: NDArray[np.float32]  # (dim,) normalized embedding
    weights: NDArray[np.float32] | None  # (n,) pooling weights; None if the pooling has none
    attributes: NDArray[np.float32] | None  # (m,) fraction of each prototype; None if the pooling has none
    features: Tensor | None  # (n, d) input of the pooling, if it can be pooled again

    @property
    def nbytes(self) -> int:
        """Approximate memory size."""
        arrays = (self.vector, self.weights, self.attributes, self.features)
        objects = 1000 + 2400 * (self.features is not None)  # of Python and of the tensor, measured
        return objects + sum(one.nbytes for one in arrays if one is not None)


class QueryEncoder:
    """Model that encodes images, and pools features again with other mu and eps.

    Attributes:
        adjustable: Whether mu and eps can be changed.
        mu: The model's fraction mu; None if its pooling has none.
        eps: The model's sharpness eps; None if its pooling has none.
        max_mu: Largest mu that can be requested.

    Args:
        model: The model of the index.
    """

    def __init__(self, model: Embedder) -> None:
        self.model = model.eval()
        self.pooling = pooling = model.head.pooling
        selection = pooling if isinstance(pooling, GSP | GSPGuidedPooling) else None
        self.adjustable = selection is not None and selection.prototypes_ready
        self.mu = None if selection is None else float(selection.mu)
        self.eps = None if selection is None else float(selection.eps)
        drops_foreground = isinstance(pooling, GSP) and pooling.role == "background"
        self.max_mu = 0.99 if drops_foreground else 1.0  # at 1 such a pooling would drop all features

    @property
    def prototypes(self) -> Tensor | None:
        """Prototypes (m, d), or None.

        The value is None without attributes, or before prototypes are initialized from data.
        """
        pooling = self.pooling
        has_them = isinstance(pooling, PrototypePooling) and pooling.has_attributes and pooling.prototypes_ready
        return pooling.prototypes if has_them else None  # type: ignore[return-value]

    def prepare(self, image: Image.Image) -> PreparedImage:
        """Resize and crop an upright RGB image as in evaluation."""
        size = self.model.crops.size
        pixels = np.array(resize_short(image, self.model.crops.resize))
        height, width = pixels.shape[:2]
        offset, heights, widths = (torch.tensor([number]) for number in (0, height, width))
        batch = RaggedImages(torch.from_numpy(pixels).reshape(-1), offset, heights, widths)
        boxes = test_boxes(batch.heights, batch.widths, size)
        top, left, box_height, box_width = boxes[0].tolist()
        box = CropBox(left / width, top / height, box_width / width, box_height / height)
        return PreparedImage(crop_batch(batch, boxes, size)[0], _box_of_original(box, image.size))

    @torch.inference_mode()
    def encode(self, images: Sequence[PreparedImage]) -> list[EncodedImage]:
        """Encode images in one forward pass."""
        maps = self.model.backbone(torch.stack([image.crop for image in images]).to(self.model.device))
        grid = grid_shape(maps)
        pooled = self.model.head(maps, return_details=True)
        vectors = self._normalize(pooled.vector)
        features: Sequence[Tensor | None] = [None] * len(images)
        if self.adjustable:
            local = self.model.head.project(maps) if isinstance(self.pooling, GSP) else as_tokens(maps)
            features = [one.clone() for one in local.cpu()]  # a view would keep the whole batch in memory
        return [
            EncodedImage(
                image.box, grid, vectors[i].copy(), _row(pooled.weights, i), _row(pooled.attributes, i), features[i]
            )
            for i, image in enumerate(images)
        ]

    @torch.inference_mode()
    def repool(self, encoded: EncodedImage, mu: float | None, eps: float | None) -> EncodedImage:
        """Pool the features of an image with other mu and eps.

        None selects the value of the model.
        """
        if (mu is None and eps is None) or encoded.features is None or self.mu is None or self.eps is None:
            return encoded
        features = encoded.features[None].to(self.model.device)
        pooled = self._pool(features, self.mu if mu is None else mu, self.eps if eps is None else eps)
        return replace(
            encoded,
            vector=self._normalize(pooled.vector)[0],
            weights=_row(pooled.weights, 0),
            attributes=_row(pooled.attributes, 0),
        )

    @torch.inference_mode()
    def prototype_weights(self, encoded: EncodedImage, prototype: int) -> NDArray[np.float32] | None:
        r"""Return each local feature's weight for prototype i; None without prototypes.

        The weights (n,) sum to 1.

        $$\frac{p_j a_{ij}}{\sum_k p_k a_{ik}}, \qquad a_{ij} = \operatorname{softmax}_i(-\varepsilon c_{ij})$$
        """
        if encoded.features is None or encoded.weights is None or self.prototypes is None or self.eps is None:
            return None
        features = encoded.features.to(self.model.device)
        local = features if isinstance(self.pooling, GSP) else self.model.head.project(features[None])[0]
        costs = pairwise_distance(clip_norm(local.float()), clip_norm(self.prototypes.float()))  # (n, m)
        weights = (-self.eps * costs).softmax(dim=1)[:, prototype].cpu() * torch.from_numpy(encoded.weights)
        result: NDArray[np.float32] = (weights / weights.sum().clamp(min=1e-12)).numpy()
        return result

    def _pool(self, features: Tensor, mu: float, eps: float) -> PoolingOutput:
        pooling = self.pooling
        if isinstance(pooling, GSP):
            pooled = PoolingOutput(*gsp(features, pooling.prototypes, mu, eps))
            return pooled if pooling.role == "foreground" else pool_residual(features, pooled, mu)
        assert isinstance(pooling, GSPGuidedPooling)
        changed = copy.copy(pooling)  # with the same parameters
        changed.mu, changed.eps = mu, eps
        result: PoolingOutput = changed(features, guide=self.model.head.project(features), return_details=True)
        return result._replace(vector=self.model.head.projection(result.vector))

    def _normalize(self, pooled: Tensor) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = NORMALIZERS[self.model.config.normalize](pooled.float()).cpu().numpy()
        return vectors


def _row(values: Tensor | None, index: int) -> NDArray[np.float32] | None:
    return None if values is None else values[index].float().cpu().numpy().copy()


def _box_of_original(box: CropBox, size: tuple[int, int]) -> CropBox:
    """Convert fractions of the resized image to fractions of the original.

    A very long image is cropped before it is resized.
    """
    width, height = size
    longest = MAX_ELONGATION * min(width, height)
    kept_width, kept_height = min(1.0, longest / width), min(1.0, longest / height)
    left, top = (1 - kept_width) / 2 + box.left * kept_width, (1 - kept_height) / 2 + box.top * kept_height
    return CropBox(left, top, box.width * kept_width, box.height * kept_height)
