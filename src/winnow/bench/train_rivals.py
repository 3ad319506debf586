"""What training steps are timed against: the bare backbone, the eager loop, and average pooling."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from winnow.bench.scene import Scene
from winnow.models import Embedder
from winnow.training import Trainer
from winnow.training.engine.step import WARM_UP, TrainingStep
from winnow.training.engine.stream import DeviceStream, Steps, run_to_end

GSP = ("pooling=gsp", "pooling.memory_size=128", "zsr=0.1")
Rival = tuple[DeviceStream, Callable[[], Steps[None]]]


class Bare(nn.Module):
    """The backbone, averaged, and a loss that costs nothing: the floor under every step."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the loss."""
        return {"loss": self.backbone(images).float().mean(dim=(2, 3)).square().mean()}


def make_rivals(scene: Scene, batch: int, compiled: bool) -> dict[str, Rival]:
    """Build the rivals of one batch size and take their first steps."""
    graphs = scene.device.type == "cuda"
    made: dict[str, Rival] = {}
    if graphs:
        made["bare backbone, fixed images"] = _bare(scene, batch)
        for name, contiguous in (("average pooling, eager, contiguous", True), ("average pooling, eager", False)):
            trainer = scene.trainer(batch, "pooling=gap", "train.cuda_graph=false")
            if contiguous:
                _make_contiguous(trainer)
            warm(trainer)
            made[name] = (trainer.stream, scene.loop(trainer))
    variants = [("", "false"), (", compiled", "true")] if compiled else [("", "false")]
    for suffix, flag in variants:
        for name, chosen in (("average pooling", ("pooling=gap",)), ("GSP + ZSR", GSP)):
            trainer = scene.trainer(batch, *chosen, f"train.compile={flag}")
            warm(trainer)
            made[f"{name}, loop{suffix}"] = (trainer.stream, scene.loop(trainer))
            if graphs:
                made[f"{name}, fixed images{suffix}"] = (trainer.stream, scene.fixed(trainer))
    return made


def _bare(scene: Scene, batch: int) -> Rival:
    """Build the bare backbone's step, captured over the first batch."""
    source = scene.trainer(batch, "pooling=gap")
    model = source.objective.model
    assert isinstance(model, Embedder), "the whole network is trained"
    parameters = [p for p in model.backbone.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=1e-6, fused=True, capturable=True)
    wrapped, optimizer = source.fabric.setup(Bare(model.backbone), optimizer)
    step = TrainingStep(source.fabric, wrapped, optimizer, max_grad_norm=10.0, capture=source.stream.capture)

    def first() -> Steps[None]:
        indices = source.sampler.batch(0)
        images = source.train.train(indices, torch.Generator().manual_seed(0))
        for number in range(WARM_UP + 1):
            step.run(number, lambda out: images, source.train.labels[indices])
            yield

    def steps() -> Steps[None]:
        for _ in range(scene.count):
            step.replay()
            yield

    run_to_end(source.stream.run_on(first()))
    return source.stream, steps


def warm(trainer: Trainer) -> None:
    """Take the steps before the last phase is captured."""

    def steps() -> Steps[None]:
        batch = len(trainer.sampler.batch(0))
        for step in range(2 * WARM_UP + 128 // batch + 3):
            trainer.take_step(step)
            yield
        trainer.state.step = step + 1

    run_to_end(trainer.stream.run_on(steps()))


def _make_contiguous(trainer: Trainer) -> None:
    """Put a network's weights in PyTorch's default order, and feed it images in that order."""
    model = trainer.objective.model
    assert isinstance(model, Embedder), "the whole network is trained"
    backbone = model.backbone
    backbone.network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    backbone.forward = lambda images: backbone._features(images.contiguous())  # type: ignore[method-assign]
