"""A whole training step, of which the cost of a pooling layer is told as a share."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from winnow.bench.scene import Noise, Scene
from winnow.bench.timing import measure
from winnow.data import ImageCache
from winnow.training.engine.stream import run_to_end

SIZES = {True: ("tf_efficientnet_lite0", 224, 3), False: ("resnet50_v1", 227, 10)}
"""By whether it is small: network, pixels (which make 49 local features or, at 227, 64), and steps that are timed."""


@dataclass(frozen=True)
class Step:
    """A training step.

    Attributes:
        ms: Its milliseconds.
        of: What it is a step of, and where its time is from.
    """

    ms: float
    of: str


def time_step(batch: int, small: bool, device: torch.device) -> Step:
    """Time a step with C2 and average pooling, which costs next to nothing, of random weights on noise.

    It is computed call by call, as the layer alone is: a replayed one would not wait for Python.
    """
    network, crop, repeats = SIZES[small]
    store = ImageCache(Noise(crop), resize=crop, cache="device", device=device)
    words = [f"backbone={network}", "backbone.weights=random", "backbone.train=full", f"image.resize={crop}",
             f"image.crop={crop}", f"train.device={device.type}", "pooling=gap", "dim=128", "loss=c2", "train.lr=1e-6",
             "train.eval_steps=1000000", "train.cuda_graph=false"]  # fmt: skip
    scene = Scene(device, store, words, count=1)
    trainer = scene.trainer(batch)
    steps = scene.loop(trainer)
    timing = measure(lambda: run_to_end(trainer.stream.run_on(steps())), device=device, repeats=repeats, warmup=2)
    return Step(1e3 * timing.median, f"{network} at {crop} pixels, a batch of {batch}")
