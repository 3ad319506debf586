"""Trainers on made-up images, to time their steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from winnow.data import CropTransform, ImageCache, ImageSet
from winnow.models import Embedder
from winnow.training import Trainer, build_objective, load_config
from winnow.training.build import resolve_config
from winnow.training.engine.stream import Steps
from winnow.training.inputs import CropInputs

CLASSES, EACH = 28, 8


class Noise(ImageSet):
    """Images of noise, wider than high by different amounts."""

    def __init__(self, short: int, classes: int = CLASSES) -> None:
        self.short = short
        self.labels = np.repeat(np.arange(classes, dtype=np.int64), EACH)
        self.class_names = tuple(f"class {c}" for c in range(classes))

    def name(self, index: int) -> str:
        """Return the image's number."""
        return f"noise {index}"

    def read(self, index: int) -> Image.Image:
        """Make one image."""
        rng = np.random.default_rng(index)
        width = self.short + int(rng.integers(self.short // 2))
        return Image.fromarray(rng.integers(0, 256, (self.short, width, 3), dtype=np.uint8))

    def cache_key(self, index: int) -> str:
        """Return the name; the pixels follow from it."""
        return self.name(index)


@dataclass
class Scene:
    """What all rivals of a benchmark share."""

    device: torch.device
    store: ImageCache
    words: list[str]
    count: int
    classes: int = CLASSES  # that the objective knows; those of the images or more

    def trainer(self, batch: int, *words: str) -> Trainer:
        """Build a trainer with random weights on the shared images."""
        sizes = [f"train.classes_per_batch={batch // 4}", "train.samples_per_class=4"]
        config = resolve_config(load_config(None, [*self.words, *sizes, *words]))
        torch.manual_seed(config.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            embedder = Embedder.create(config).to(self.device)
        inputs = CropInputs(self.store, CropTransform(resize=config.image.resize, size=config.image.crop))
        trainer = Trainer(config, build_objective(config, embedder, self.classes), inputs, inputs)
        trainer.wrapped.train()
        return trainer

    def loop(self, trainer: Trainer) -> Callable[[], Steps[None]]:
        """Return the steps of the loop, as many as are timed at once."""

        def steps() -> Steps[None]:
            for _ in range(self.count):
                trainer.take_step(trainer.state.step)
                trainer.state.step += 1
                yield

        return steps

    def fixed(self, trainer: Trainer) -> Callable[[], Steps[None]]:
        """Return as many replays of the step on the images in place."""

        def steps() -> Steps[None]:
            for _ in range(self.count):
                trainer.training_step.replay()
                yield

        return steps
