"""What the model sees of an image, kept so that the selection can be made anew for other mu and eps."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
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


class Box(NamedTuple):
    """The part of an image that the network is shown, in shares of its width and height."""

    left: float
    top: float
    width: float
    height: float


class Prepared(NamedTuple):
    """An image cut for the network, (3, h, w) in [0, 1], and where it was cut out."""

    crop: Tensor
    box: Box


@dataclass(frozen=True, eq=False)
class Seen:
    """What the model made of an image.

    Attributes:
        box: The part of the image it was shown.
        grid: Rows and columns of its local features.
        vector: (dim,) normalised.
        weights: (n,) share of each local feature; None where the pooling has none.
        attributes: (m,) share of each prototype; None where it has none.
        features: (n, d) what the pooling got, where the selection can be made anew from it.
    """

    box: Box
    grid: tuple[int, int]
    vector: NDArray[np.float32]
    weights: NDArray[np.float32] | None
    attributes: NDArray[np.float32] | None
    features: Tensor | None

    @property
    def nbytes(self) -> int:
        """About how much memory it takes."""
        arrays = (self.vector, self.weights, self.attributes, self.features)
        return 1000 + sum(one.nbytes for one in arrays if one is not None)


class Looker:
    """A model that looks at images and pools what it saw, once or again with another mu and eps.

    Args:
        model: An Embedder.
    """

    def __init__(self, model: Embedder) -> None:
        self.model = model.eval()
        pooling = model.head.pooling
        self.pooling = pooling
        self.adjustable = isinstance(pooling, GSP | GSPGuidedPooling) and pooling.prototypes_ready
        self.mu = float(pooling.mu) if isinstance(pooling, GSP | GSPGuidedPooling) else None
        self.eps = float(pooling.eps) if isinstance(pooling, GSP | GSPGuidedPooling) else None

    @property
    def prototypes(self) -> Tensor | None:
        """(m, d), where the pooling has prototypes that were set from data and tells their shares."""
        pooling = self.pooling
        has_them = isinstance(pooling, PrototypePooling) and pooling.has_attributes and pooling.prototypes_ready
        return pooling.prototypes if has_them else None  # type: ignore[return-value]

    def prepare(self, image: Image.Image) -> Prepared:
        """Cut an upright RGB image as the model's images are cut."""
        size = self.model.crops.size
        pixels = np.array(resize_short(image, self.model.crops.resize))
        height, width = pixels.shape[:2]
        measures = (torch.tensor([number]) for number in (0, height, width))
        batch = RaggedImages(torch.from_numpy(pixels).reshape(-1), *measures)
        boxes = test_boxes(batch.heights, batch.widths, size)
        top, left, tall, wide = boxes[0].tolist()
        box = Box(left / width, top / height, wide / width, tall / height)
        return Prepared(crop_batch(batch, boxes, size)[0], _of_whole(box, image.size))

    @torch.inference_mode()
    def look(self, images: Sequence[Prepared]) -> list[Seen]:
        """Pass images through the network, in one call."""
        maps = self.model.backbone(torch.stack([image.crop for image in images]).to(self.model.device))
        rows, columns = grid_shape(maps)
        pooled = self.model.head(maps, return_details=True)
        vectors = self._vectors(pooled.vector)
        kept: Sequence[Tensor | None] = [None] * len(images)
        if self.adjustable:
            local = self.model.head.project(maps) if isinstance(self.pooling, GSP) else as_tokens(maps)
            kept = [one.clone() for one in local.cpu()]  # each on its own: a view would keep the whole batch alive
        return [
            Seen(
                image.box,
                (rows, columns),
                vectors[i].copy(),
                _row(pooled.weights, i),
                _row(pooled.attributes, i),
                kept[i],
            )
            for i, image in enumerate(images)
        ]

    @torch.inference_mode()
    def select(self, seen: Seen, mu: float | None, eps: float | None) -> Seen:
        """Make the selection anew; None stands for the model's own number."""
        if (mu is None and eps is None) or seen.features is None or self.mu is None or self.eps is None:
            return seen
        features = seen.features[None].to(self.model.device)
        pooled = self._pool(features, self.mu if mu is None else mu, self.eps if eps is None else eps)
        vector = self._vectors(pooled.vector)[0]
        return Seen(seen.box, seen.grid, vector, _row(pooled.weights, 0), _row(pooled.attributes, 0), seen.features)

    def _pool(self, features: Tensor, mu: float, eps: float) -> PoolingOutput:
        pooling = self.pooling
        if isinstance(pooling, GSP):
            moved = PoolingOutput(*gsp(features, pooling.prototypes, mu, eps))
            return moved if pooling.role == "foreground" else pool_residual(features, moved, mu)
        assert isinstance(pooling, GSPGuidedPooling)
        other = copy.copy(pooling)  # shares the parameters, and has its own mu and eps
        other.mu, other.eps = mu, eps
        result: PoolingOutput = other(features, guide=self.model.head.project(features), return_details=True)
        return result._replace(vector=self.model.head.projection(result.vector))

    @torch.inference_mode()
    def liking(self, seen: Seen, prototype: int) -> NDArray[np.float32] | None:
        r"""Return what a prototype i takes of each local feature j of an image, (n,), summing to one:

        $$\frac{p_j a_{ij}}{\sum_k p_k a_{ik}}, \qquad a_{ij} = \operatorname{softmax}_i(-\varepsilon c_{ij})$$
        """
        if seen.features is None or seen.weights is None or self.prototypes is None or self.eps is None:
            return None
        features = seen.features.to(self.model.device)
        local = features if isinstance(self.pooling, GSP) else self.model.head.project(features[None])[0]
        costs = pairwise_distance(clip_norm(local.float()), clip_norm(self.prototypes.float()))  # (n, m)
        shares = (-self.eps * costs).softmax(dim=1)[:, prototype].cpu() * torch.from_numpy(seen.weights)
        result: NDArray[np.float32] = (shares / shares.sum().clamp(min=1e-12)).numpy()
        return result

    def _vectors(self, pooled: Tensor) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = NORMALIZERS[self.model.config.normalize](pooled.float()).cpu().numpy()
        return vectors


def _row(values: Tensor | None, index: int) -> NDArray[np.float32] | None:
    return None if values is None else values[index].float().cpu().numpy().copy()


def _of_whole(box: Box, size: tuple[int, int]) -> Box:
    """Turn shares of the middle, which is all that is kept of a very long image, into shares of the whole."""
    width, height = size
    reach = MAX_ELONGATION * min(width, height)
    wide, tall = min(1.0, reach / width), min(1.0, reach / height)
    left, top = (1 - wide) / 2 + box.left * wide, (1 - tall) / 2 + box.top * tall
    return Box(left, top, box.width * wide, box.height * tall)
