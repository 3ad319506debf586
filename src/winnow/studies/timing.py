"""Trainers on synthetic images, time of a step, and bytes saved for backward."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from winnow.data import ImageCache, ImageSet
from winnow.models import Embedder
from winnow.profiling import measure
from winnow.studies.settings import PLAIN_WEIGHTS
from winnow.training import Trainer, build_objective, load_config
from winnow.training.build import make_crops, resolve_config
from winnow.training.engine.stream import Steps, run_to_end
from winnow.training.inputs import CropInputs

NUM_CLASSES, IMAGES_PER_CLASS = 28, 8

STEP_SIZES = {True: ("tf_efficientnet_lite0", 224, 3), False: ("resnet50_v1", 227, 10)}
"""Network, pixels (49 local features; 64 at 227 pixels), and timed steps of `time_step`, by whether it is quick."""


class NoiseImages(ImageSet):
    """Images of noise, wider than high by different amounts."""

    def __init__(self, short: int, classes: int = NUM_CLASSES) -> None:
        self.short = short
        self.labels = np.repeat(np.arange(classes, dtype=np.int64), IMAGES_PER_CLASS)
        self.class_names = tuple(f"class {c}" for c in range(classes))

    def name(self, index: int) -> str:
        """Return the image's number."""
        return f"noise {index}"

    def read(self, index: int) -> Image.Image:
        """Return one image."""
        rng = np.random.default_rng(index)
        width = self.short + int(rng.integers(self.short // 2))
        return Image.fromarray(rng.integers(0, 256, (self.short, width, 3), dtype=np.uint8))

    def cache_key(self, index: int) -> str:
        """Return the name, which determines the pixels."""
        return self.name(index)


@dataclass
class TimingSetup:
    """Device, images, and settings shared by the trainers that are compared."""

    device: torch.device
    images: ImageCache
    settings: list[str]
    steps: int  # number of steps in one timed run
    num_classes: int = NUM_CLASSES  # of the objective; at least as many as the images have

    def build_trainer(self, batch: int, *settings: str) -> Trainer:
        """Return a trainer with random weights on the shared images."""
        sizes = [f"train.classes_per_batch={batch // 4}", "train.samples_per_class=4"]
        config = resolve_config(load_config(None, [*PLAIN_WEIGHTS, *self.settings, *sizes, *settings]))
        torch.manual_seed(config.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            embedder = Embedder.create(config).to(self.device)
        inputs = CropInputs(self.images, make_crops(config))
        trainer = Trainer(config, build_objective(config, embedder, self.num_classes), inputs, inputs)
        trainer.wrapped.train()
        return trainer

    def training_loop(self, trainer: Trainer) -> Callable[[], Steps[None]]:
        """Return a callable that iterates over `steps` steps of the training loop."""

        def iterate() -> Steps[None]:
            for _ in range(self.steps):
                trainer.take_step(trainer.state.step)
                trainer.state.step += 1
                yield

        return iterate

    def fixed_images(self, trainer: Trainer) -> Callable[[], Steps[None]]:
        """Return a callable that replays the captured step on one batch."""

        def iterate() -> Steps[None]:
            for _ in range(self.steps):
                trainer.training_step.replay()
                yield

        return iterate


@dataclass(frozen=True)
class StepTime:
    """Time of a training step."""

    ms: float
    of: str  # network, image size, and batch size


def time_step(batch: int, quick: bool, device: torch.device) -> StepTime:
    """Time a training step with the contrastive loss and average pooling.

    Weights are random and images are noise. The step is computed call by call, as a pooling layer alone is: a replayed
    step would not wait for Python.
    """
    network, crop, repeats = STEP_SIZES[quick]
    images = ImageCache(NoiseImages(crop), resize=crop, cache="device", device=device)
    settings = [f"backbone={network}", "backbone.weights=random", "backbone.train=full", f"image.resize={crop}",
                f"image.crop={crop}", f"train.device={device.type}", "pooling=gap", "dim=128", "loss=c2",
                "train.lr=1e-6", "train.eval_steps=1000000", "train.cuda_graph=false"]  # fmt: skip
    setup = TimingSetup(device, images, settings, steps=1)
    trainer = setup.build_trainer(batch)
    loop = setup.training_loop(trainer)
    timing = measure(lambda: run_to_end(trainer.stream.run_on(loop())), device=device, repeats=repeats, warmup=2)
    return StepTime(1e3 * timing.median, f"{network} at {crop} pixels, a batch of {batch}")


def saved_bytes(forward: Callable[[], object]) -> int:
    """Return the bytes that a forward pass saves for backward, each storage once."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()  # alive until the sum, so no address is used twice
    del result
    return sum(sizes.values())
