"""The backbone with average pooling, nothing learned: what training has to beat, and what a projection starts from."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from winnow.data import StoredImages, StoreView
from winnow.models import Backbone
from winnow.pooling.base import as_tokens
from winnow.training.distributed import ALONE, Processes
from winnow.training.features import in_full_batches
from winnow.training.inputs import CropInputs, Inputs, QueryGallery
from winnow.training.judge import collect


class AverageOfFeatures(nn.Module):
    """The rival that needs no training: local features averaged, nothing learned.

    Args:
        backbone: None where the inputs are feature maps already.
        batch: Images that the backbone is given at a time.
    """

    def __init__(self, backbone: Backbone | None, batch: int = 128) -> None:
        super().__init__()
        self.backbone, self.batch = backbone, batch

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (B, C)."""
        if self.backbone is None:
            return as_tokens(inputs).mean(dim=1)
        return as_tokens(in_full_batches(self.backbone, inputs, self.batch)).mean(dim=1)


class Averages:
    """The average features of images, each made when it is first asked for and then kept for all runs that share them.

    They are kept in RAM, where they take a few hundredths of what decoded images take.
    """

    def __init__(self) -> None:
        self._kept: dict[StoredImages, tuple[Tensor, NDArray[np.bool_]]] = {}

    def of(self, model: AverageOfFeatures, inputs: Inputs, processes: Processes = ALONE) -> Tensor:
        """Return the average features (N, C) of inputs, in RAM.

        Args:
            model: Makes them; always of the same weights.
            inputs: Crops, always cut alike, or feature maps, whose averages are not worth keeping.
            processes: Who shares the work.
        """
        if isinstance(inputs, QueryGallery):
            return torch.cat([self.of(model, side, processes) for side in (inputs.queries, inputs.gallery)])
        if not isinstance(inputs, CropInputs) or model.backbone is None:
            return collect(model, inputs, batch=model.batch, processes=processes).cpu()
        store, rows = _whole(inputs.store)
        if store not in self._kept:
            count = len(store.labels)
            self._kept[store] = torch.empty(count, model.backbone.width), np.zeros(count, dtype=np.bool_)
        vectors, made = self._kept[store]
        missing = np.unique(rows[~made[rows]])
        if len(missing):
            whole = CropInputs(store, inputs.crops)
            vectors[missing] = collect(model, whole, missing, batch=model.batch, processes=processes).cpu()
            made[missing] = True
        return vectors[rows]


def identity(inputs: Inputs) -> Hashable:
    """Return what tells inputs from those of other runs, where runs share image stores and feature maps."""
    if isinstance(inputs, QueryGallery):
        return identity(inputs.queries), identity(inputs.gallery)
    if isinstance(inputs, CropInputs):
        store, rows = _whole(inputs.store)
        return store, rows.tobytes(), inputs.labels.tobytes()
    return (inputs,)  # by the object, which is kept


def _whole(store: StoredImages) -> tuple[StoredImages, NDArray[np.int64]]:
    """Return the store that a view is of, and the places of the view's images there."""
    if isinstance(store, StoreView):
        return store.store, store.rows
    return store, np.arange(len(store.labels), dtype=np.int64)
