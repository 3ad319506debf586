"""Estimate of how long a run will take, measured before it starts."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from winnow.data import Splits
from winnow.models import Embedder
from winnow.pooling import PrototypePooling
from winnow.seeding import fork_rng
from winnow.training.config import RunConfig
from winnow.training.engine.precision import make_fabric
from winnow.training.features import CPU_BATCH, count_missing, feature_storage


@dataclass(frozen=True)
class Duration:
    """Expected time of a run.

    Attributes:
        images: Images whose features are computed once; 0 if all are cached, or the backbone is trained.
        features: Seconds for these features.
        step: Seconds of a training step.
        steps: Largest number of steps.
        first_stop: Step at which early stopping ends training if nothing improves after the first validation.
    """

    images: int
    features: float
    step: float
    steps: int
    first_stop: int

    @property
    def total(self) -> float:
        """Seconds without an early stop, and without validation and test."""
        return self.features + self.step * self.steps


def first_stop(config: RunConfig) -> int:
    """Return the earliest step at which a run can end; the first subproblem of CCP ends by its own patience."""
    train, references = config.train, config.references
    patience = int(getattr(references, "patience", train.patience))
    if train.select_weights == "last" or train.eval_steps is None:
        return train.max_steps
    return min(train.max_steps, train.eval_steps * (1 + patience))


def measure_duration(embedder: Embedder, config: RunConfig, splits: Splits) -> Duration:
    """Time one batch of features and one training step on noise.

    The model, its prototypes, and the random generators stay as they are. Loss, optimizer, and decoding of images are
    not timed; they take a small part of a step.

    Args:
        embedder: Model of the run, before training.
        config: Resolved config.
        splits: Images of the run.
    """
    device = make_fabric(config).device
    crop = config.image.crop
    height, width = (crop, crop) if isinstance(crop, int) else crop
    batch, steps, fewest = config.train.images_per_batch, config.train.max_steps, first_stop(config)
    with fork_rng():
        if config.backbone.train != "frozen":
            model = _ready_copy(embedder).to(device).train()
            return Duration(0, 0.0, _seconds(model, torch.rand(batch, 3, height, width, device=device)), steps, fewest)
        images = missing_features(embedder, config, splits)
        size = CPU_BATCH if device.type == "cpu" else 128
        noise = torch.rand(size, 3, height, width, device=device)
        backbone = embedder.backbone.to(device).freeze()
        with torch.no_grad():
            maps: Tensor = backbone(noise)  # the first call allocates memory and selects kernels
            started = time.perf_counter()
            backbone(noise)
            _wait(device)
        features = (time.perf_counter() - started) / size * images
        rows = torch.arange(batch, device=device) % size
        head = _ready_copy(embedder.head).to(device).train()
        return Duration(images, features, _seconds(head, maps.float()[rows]), steps, fewest)


def missing_features(embedder: Embedder, config: RunConfig, splits: Splits) -> int:
    """Return the number of images whose features are in no cache."""
    crops = embedder.crops
    storage = feature_storage(config)
    device = make_fabric(config).device
    sets = {id(one): one for one in (splits.train, splits.val, splits.test, splits.gallery) if one is not None}
    return sum(count_missing(embedder.backbone, one, crops, device, storage) for one in sets.values())


def _ready_copy(model: nn.Module) -> nn.Module:
    """Return a copy whose prototypes count as set, as they are in most steps of a run."""
    found = copy.deepcopy(model)
    for module in found.modules():
        if isinstance(module, PrototypePooling):
            module.load_state_dict(module.state_dict() | {"ready": torch.ones((), dtype=torch.bool)})
    return found


def _seconds(model: nn.Module, batch: Tensor) -> float:
    """Return the time of the second forward and backward pass of a batch."""
    seconds = 0.0
    for _ in range(2):
        started = time.perf_counter()
        model(batch).square().mean().backward()
        _wait(batch.device)
        seconds = time.perf_counter() - started
    return seconds


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
