"""How fast training steps are: against the bare backbone, against the eager loop, alone and side by side."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from winnow.bench.record import Bench, Row
from winnow.bench.timing import Timing, measure_all, pick_device
from winnow.data import Crops, ImageSet, ImageStore
from winnow.errors import ConfigError
from winnow.models import Embedder
from winnow.training import Trainer, build_learner, load_config
from winnow.training.inputs import CropInputs
from winnow.training.lane import Lane, Work, finish
from winnow.training.prepare import resolve_config
from winnow.training.step import WARM_UP, Step

AGAINST = "average pooling, loop"
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

    def identity(self, index: int) -> str:
        """Return the name; the pixels follow from it."""
        return self.name(index)


class Bare(nn.Module):
    """The backbone, averaged, and a loss that costs nothing: the floor under every step."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the loss."""
        return {"loss": self.backbone(images).float().mean(dim=(2, 3)).square().mean()}


@dataclass
class Scene:
    """What all rivals of a benchmark share."""

    device: torch.device
    store: ImageStore
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
        inputs = CropInputs(self.store, Crops(resize=config.image.resize, size=config.image.crop))
        trainer = Trainer(config, build_learner(config, embedder, self.classes), inputs, inputs)
        trainer.wrapped.train()
        return trainer

    def loop(self, trainer: Trainer) -> Callable[[], Work[None]]:
        """Return the steps of the loop, as many as are timed at once."""

        def steps() -> Work[None]:
            for _ in range(self.count):
                trainer.take_step(trainer.progress.step)
                trainer.progress.step += 1
                yield

        return steps

    def fixed(self, trainer: Trainer) -> Callable[[], Work[None]]:
        """Return as many replays of the step on the images in place."""

        def steps() -> Work[None]:
            for _ in range(self.count):
                trainer.one_step.again()
                yield

        return steps


def run_train(
    *,
    device: str = "auto",
    batches: Sequence[int] = (32, 112),
    packs: Sequence[int] = (1, 2, 4, 8),
    compiled: bool = False,
    precision: str = "32-true",
    backbone: str = "resnet50",
    crop: int = 227,
    steps: int = 20,
    repeats: int = 5,
    note: Callable[[str], None] = lambda text: None,
) -> Bench:
    """Time training steps of a whole network on images that are on the device already.

    Rivals of every batch size: the bare backbone's step on fixed images; the loop with average pooling, computed
    step by step with contiguous weights as PyTorch does by default, and in channels-last order; the loop as `winnow
    train` runs it, with average pooling and with GSP and ZSR, and the same steps on fixed images. Then runs side by
    side. Weights are random; only time is measured.

    Args:
        device: auto, cpu or cuda.
        batches: Batch sizes, multiples of 4.
        packs: How many runs are driven side by side, at the first batch size.
        compiled: Also with a compiled backbone; that takes minutes.
        precision: That of `train.precision`.
        backbone: Which network.
        crop: Pixels of the crops.
        steps: Steps in one timed run.
        repeats: Timed runs of every rival.
        note: Told what is being measured.

    Returns:
        Seconds of one step, and for runs side by side the steps per second of all together.

    Raises:
        ConfigError: for a batch size that the made-up images do not give.
    """
    wrong = next((batch for batch in batches if batch % 4 or not 8 <= batch <= 4 * CLASSES), None)
    if wrong is not None:
        raise ConfigError(f"a batch of {wrong}: choose a multiple of 4 from 8 to {4 * CLASSES}")
    place = pick_device(device)
    resize = crop + crop // 8
    store = ImageStore(Noise(resize), resize=resize, cache="device", device=place)
    words = [
        f"backbone={backbone}", "backbone.weights=random", "backbone.train=full", f"image.crop={crop}", "dim=128",
        f"image.resize={resize}", f"train.device={place.type}", f"train.precision={precision}", "train.lr=1e-6",
        "train.eval_every=1000000",
    ]  # fmt: skip
    scene = Scene(place, store, words, steps)
    rows: list[Row] = []
    for batch in batches:
        note(f"batch {batch}")
        rivals = _rivals(scene, batch, compiled)
        facts = {name: {"images/s": batch} for name in rivals}
        rows += _rows(f"batch {batch}", scene, {name: [one] for name, one in rivals.items()}, repeats, facts)
        del rivals
        _free(place)
    runs = [scene.trainer(batches[0], *_GSP, f"seed={seed}") for seed in range(max(packs, default=0))]
    lanes = [(run.lane, scene.loop(run)) for run in runs]
    for run in runs:
        _warm(run)
    note(f"side by side, batch {batches[0]}")
    packed = {f"{k} side by side": lanes[:k] for k in packs}
    rows += _rows(f"GSP + ZSR, batch {batches[0]}", scene, packed, repeats, {n: {"steps/s": 1.0} for n in packed})
    notes = [] if place.type == "cuda" else ["without a GPU nothing is replayed: fixed images and graphs are left out"]
    settings = {
        "device": place.type, "batches": list(batches), "packs": list(packs), "compiled": compiled,
        "precision": precision, "backbone": backbone, "crop": crop, "steps": steps, "repeats": repeats,
    }  # fmt: skip
    return Bench(f"train-{place.type}", f"training steps, {backbone} at {crop} pixels", AGAINST, settings, rows, notes)


_GSP = ("pooling=gsp", "pooling.memory=128", "zsr=0.1")
Rival = tuple[Lane, Callable[[], Work[None]]]


def _rivals(scene: Scene, batch: int, compiled: bool) -> dict[str, Rival]:
    """Build the rivals of one batch size and take their first steps."""
    graphs = scene.device.type == "cuda"
    made: dict[str, Rival] = {}
    if graphs:
        made["bare backbone, fixed images"] = _bare(scene, batch)
        for name, contiguous in (("average pooling, eager, contiguous", True), ("average pooling, eager", False)):
            trainer = scene.trainer(batch, "pooling=gap", "train.graph=false")
            if contiguous:
                _make_contiguous(trainer)
            _warm(trainer)
            made[name] = (trainer.lane, scene.loop(trainer))
    variants = [("", "false"), (", compiled", "true")] if compiled else [("", "false")]
    for suffix, flag in variants:
        for name, chosen in (("average pooling", ("pooling=gap",)), ("GSP + ZSR", _GSP)):
            trainer = scene.trainer(batch, *chosen, f"train.compile={flag}")
            _warm(trainer)
            made[f"{name}, loop{suffix}"] = (trainer.lane, scene.loop(trainer))
            if graphs:
                made[f"{name}, fixed images{suffix}"] = (trainer.lane, scene.fixed(trainer))
    return made


def _bare(scene: Scene, batch: int) -> Rival:
    """Build the bare backbone's step, captured over the first batch."""
    source = scene.trainer(batch, "pooling=gap")
    model = source.learner.model
    assert isinstance(model, Embedder), "the whole network is trained"
    parameters = [p for p in model.backbone.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=1e-6, fused=True, capturable=True)
    wrapped, optimizer = source.fabric.setup(Bare(model.backbone), optimizer)
    step = Step(source.fabric, wrapped, optimizer, clip=10.0, capture=source.lane.capture)

    def first() -> Work[None]:
        indices = source.sampler.batch(0)
        images = source.train.train(indices, torch.Generator().manual_seed(0))
        for number in range(WARM_UP + 1):
            step.take(number, lambda out: images, source.train.labels[indices])
            yield

    def steps() -> Work[None]:
        for _ in range(scene.count):
            step.again()
            yield

    finish(source.lane.drive(first()))
    return source.lane, steps


def _warm(trainer: Trainer) -> None:
    """Take the steps before the last phase is captured."""

    def steps() -> Work[None]:
        batch = len(trainer.sampler.batch(0))
        for step in range(2 * WARM_UP + 128 // batch + 3):
            trainer.take_step(step)
            yield
        trainer.progress.step = step + 1

    finish(trainer.lane.drive(steps()))


def _make_contiguous(trainer: Trainer) -> None:
    """Put a network's weights in PyTorch's default order, and feed it images in that order."""
    model = trainer.learner.model
    assert isinstance(model, Embedder), "the whole network is trained"
    backbone = model.backbone
    backbone.network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    backbone.forward = lambda images: backbone._features(images.contiguous())  # type: ignore[method-assign]


def _rows(
    case: str,
    scene: Scene,
    rivals: Mapping[str, Sequence[Rival]],
    repeats: int,
    rates: Mapping[str, Mapping[str, float]],
) -> list[Row]:
    """Time rivals in turns; of rivals that are several runs, all are driven side by side.

    `rates` names what is done once per step, such as images, to tell how many there are in a second.
    """

    def together(runs: Sequence[Rival]) -> Callable[[], None]:
        def work() -> None:
            going = [lane.drive(steps()) for lane, steps in runs]
            while going:
                going = [one for one in going if next(one, "over") is None]

        return work

    works = {name: together(runs) for name, runs in rivals.items()}
    rows = []
    for name, timing in measure_all(works, device=scene.device, repeats=repeats, warmup=1).items():
        count = scene.count * len(rivals[name])
        each = Timing(tuple(seconds / count for seconds in timing.seconds))
        rows.append(Row(case, name, each, facts={fact: k / each.median for fact, k in rates[name].items()}))
    return rows


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
