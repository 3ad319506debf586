"""Baseline: the pretrained backbone with average pooling, without training.

Its features also initialize the projection.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from winnow.data import ImageCacheView, StoredImages
from winnow.models import Backbone
from winnow.pooling.base import as_tokens
from winnow.training.engine.distributed import SINGLE_PROCESS, Processes
from winnow.training.evaluation import embed
from winnow.training.features import compute_in_full_batches
from winnow.training.inputs import CropInputs, Inputs, QueryGallery


class MeanPoolBaseline(nn.Module):
    """Pretrained backbone with global average pooling; nothing is trained.

    Args:
        backbone: None if the inputs are feature maps.
        batch: Images per batch of the backbone.
    """

    def __init__(self, backbone: Backbone | None, batch: int = 128) -> None:
        super().__init__()
        self.backbone, self.batch = backbone, batch

    def forward(self, inputs: Tensor) -> Tensor:
        """Return mean features (B, C)."""
        if self.backbone is None:
            return as_tokens(inputs).mean(dim=1)
        return as_tokens(compute_in_full_batches(self.backbone, inputs, self.batch)).mean(dim=1)


class MeanFeatureCache:
    """Mean features of images, each computed once for all runs that share the cache.

    They are in RAM and take a few percent of the memory of decoded images.
    """

    def __init__(self) -> None:
        self._stores: dict[StoredImages, tuple[Tensor, NDArray[np.bool_]]] = {}

    def get(self, model: MeanPoolBaseline, inputs: Inputs, processes: Processes = SINGLE_PROCESS) -> Tensor:
        """Return mean features (N, C) of inputs, in RAM.

        Args:
            model: Computes them; its weights must be the same in every call.
            inputs: Crops, cut alike in every call, or feature maps; means of feature maps are not cached.
            processes: Processes that share the work.
        """
        if isinstance(inputs, QueryGallery):
            return torch.cat([self.get(model, side, processes) for side in (inputs.queries, inputs.gallery)])
        if not isinstance(inputs, CropInputs) or model.backbone is None:
            return embed(model, inputs, batch=model.batch, processes=processes).cpu()
        store, rows = _whole_store(inputs.store)
        if store not in self._stores:
            count = len(store.labels)
            self._stores[store] = torch.empty(count, model.backbone.num_features), np.zeros(count, dtype=np.bool_)
        vectors, computed = self._stores[store]
        missing = np.unique(rows[~computed[rows]])
        if len(missing):
            whole = CropInputs(store, inputs.crops)
            vectors[missing] = embed(model, whole, missing, batch=model.batch, processes=processes).cpu()
            computed[missing] = True
        return vectors[rows]


def inputs_key(inputs: Inputs) -> Hashable:
    """Return a key of inputs for runs that share image stores and feature maps."""
    if isinstance(inputs, QueryGallery):
        return inputs_key(inputs.queries), inputs_key(inputs.gallery)
    if isinstance(inputs, CropInputs):
        store, rows = _whole_store(inputs.store)
        return store, rows.tobytes(), inputs.labels.tobytes()
    return (inputs,)  # by the object, which stays alive


def _whole_store(store: StoredImages) -> tuple[StoredImages, NDArray[np.int64]]:
    """Return the store behind a view, and the rows of the view in it."""
    if isinstance(store, ImageCacheView):
        return store.store, store.rows
    return store, np.arange(len(store.labels), dtype=np.int64)
