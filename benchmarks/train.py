"""Time of training steps: bare backbone, eager loop, GSP, concurrent runs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from benchmarks.record import Benchmark, Measurement
from winnow.data import ImageCache
from winnow.errors import ConfigError
from winnow.models import Embedder
from winnow.profiling import measure_all, pick_device
from winnow.studies.timing import NUM_CLASSES, NoiseImages, TimingSetup
from winnow.training import Trainer
from winnow.training.engine.step import WARM_UP, TrainingStep
from winnow.training.engine.stream import DeviceStream, Steps, run_to_end

REFERENCE = "average pooling, loop"
GSP = ("pooling=gsp", "pooling.memory_size=128", "zsr=0.1")
ADDITIONS = {
    "averaged weights": ("train.average=0.998",),
    "cosine schedule": ("train.schedule=cosine", "train.max_steps=1000000", "train.warmup_steps=100"),
    "layer norm before the projection": ("head=layer", "head.position=pooled"),
    "layer norm of the embedding": ("head=layer",),
    "random erasing": ("augment.random_erasing=0.5",),
    "color jitter": ("augment.color_jitter=0.4",),
    "RandAugment": ("augment.rand_augment=9",),
}
"""Settings that are timed beside a run without them."""

Run = tuple[DeviceStream, Callable[[], Steps[None]]]
"""Stream of a run, and the steps to time on it."""


class BareBackbone(nn.Module):
    """Backbone, averaged, and a loss without cost: the lower bound of a step."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the loss."""
        return {"loss": self.backbone(images).float().mean(dim=(2, 3)).square().mean()}


def run_train(
    *,
    device: str = "auto",
    batches: Sequence[int] = (32, 112),
    jobs: Sequence[int] = (1, 2, 4, 8),
    compiled: bool = False,
    precision: str = "32-true",
    backbone: str = "resnet50",
    crop: int = 227,
    steps: int = 20,
    repeats: int = 5,
    note: Callable[[str], None] = lambda text: None,
) -> Benchmark:
    """Time training steps of a whole network on images that are on the device already.

    Methods of every batch size: the bare backbone's step on fixed images; the eager loop with average pooling, with
    contiguous weights as PyTorch has them by default, and in channels-last order; the loop of training, with average
    pooling and with GSP and ZSR, and the same steps on fixed images. Then additions to a step, one by one, and
    concurrent runs, at the first batch size. Weights are random; only time is measured.

    Args:
        device: auto, cpu, or cuda.
        batches: Batch sizes, multiples of 4.
        jobs: Numbers of concurrent runs, at the first batch size.
        compiled: Adds a compiled backbone; that takes minutes.
        precision: As `train.precision`.
        backbone: Name of the network.
        crop: Pixels of the crops.
        steps: Steps in one timed run.
        repeats: Timed runs of every method.
        note: Called with progress messages.

    Returns:
        Seconds of one step; for concurrent runs also the steps per second of all together.

    Raises:
        ConfigError: for a batch size that the synthetic images do not allow.
    """
    wrong = next((batch for batch in batches if batch % 4 or not 8 <= batch <= 4 * NUM_CLASSES), None)
    if wrong is not None:
        raise ConfigError(f"batch: expected a multiple of 4 from 8 to {4 * NUM_CLASSES}, got {wrong}.")
    place = pick_device(device)
    resize = crop + crop // 8
    images = ImageCache(NoiseImages(resize), resize=resize, cache="device", device=place)
    settings = [
        f"backbone={backbone}", "backbone.weights=random", "backbone.train=full", f"image.crop={crop}", "dim=128",
        f"image.resize={resize}", f"train.device={place.type}", f"train.precision={precision}", "train.lr=1e-6",
        "train.eval_steps=1000000",
    ]  # fmt: skip
    setup = TimingSetup(place, images, settings, steps)
    rows: list[Measurement] = []
    for batch in batches:
        note(f"batch {batch}")
        runs = {name: [run] for name, run in _make_runs(setup, batch, compiled).items()}
        rows += _time_runs(f"batch {batch}", setup, runs, repeats, {name: {"images/s": batch} for name in runs})
        del runs
        _free(place)
    note(f"additions, batch {batches[0]}")
    runs = {name: [run] for name, run in _make_additions(setup, batches[0]).items()}
    rows += _time_runs(f"additions, batch {batches[0]}", setup, runs, repeats, {name: {} for name in runs})
    del runs
    _free(place)
    trainers = [setup.build_trainer(batches[0], *GSP, f"seed={seed}") for seed in range(max(jobs, default=0))]
    for trainer in trainers:
        _warm_up(trainer)
    note(f"concurrent runs, batch {batches[0]}")
    all_runs = [(trainer.stream, setup.training_loop(trainer)) for trainer in trainers]
    concurrent = {f"{k} concurrent run{'s' * (k > 1)}": all_runs[:k] for k in jobs}
    rates = {name: {"steps/s": 1.0} for name in concurrent}
    rows += _time_runs(f"GSP + ZSR, batch {batches[0]}", setup, concurrent, repeats, rates)
    notes = [] if place.type == "cuda" else ["Without a GPU no step is replayed: fixed images and graphs are skipped."]
    return Benchmark(
        name=f"train-{place.type}",
        title=f"Training steps, {backbone} at {crop} pixels",
        reference=REFERENCE,
        settings={
            "device": place.type, "batches": list(batches), "packs": list(jobs), "compiled": compiled,
            "precision": precision, "backbone": backbone, "crop": crop, "steps": steps, "repeats": repeats,
        },
        rows=rows,
        notes=notes,
    )  # fmt: skip


def _make_runs(setup: TimingSetup, batch: int, compiled: bool) -> dict[str, Run]:
    """Build the methods of one batch size and take their first steps."""
    graphs = setup.device.type == "cuda"
    runs: dict[str, Run] = {}
    if graphs:
        runs["bare backbone, fixed images"] = _bare_run(setup, batch)
        for name, contiguous in (("average pooling, eager, contiguous", True), ("average pooling, eager", False)):
            trainer = setup.build_trainer(batch, "pooling=gap", "train.cuda_graph=false")
            if contiguous:
                _make_contiguous(trainer)
            _warm_up(trainer)
            runs[name] = (trainer.stream, setup.training_loop(trainer))
    variants = [("", "false"), (", compiled", "true")] if compiled else [("", "false")]
    for suffix, flag in variants:
        for name, settings in (("average pooling", ("pooling=gap",)), ("GSP + ZSR", GSP)):
            trainer = setup.build_trainer(batch, *settings, f"train.compile={flag}")
            _warm_up(trainer)
            runs[f"{name}, loop{suffix}"] = (trainer.stream, setup.training_loop(trainer))
            if graphs:
                runs[f"{name}, fixed images{suffix}"] = (trainer.stream, setup.fixed_images(trainer))
    return runs


def _make_additions(setup: TimingSetup, batch: int) -> dict[str, Run]:
    """Build a run without additions, and one with each of them."""
    plain = {REFERENCE: (), **ADDITIONS, "two passes, chunks of a quarter": (f"train.chunk_size={batch // 4}",)}
    runs: dict[str, Run] = {}
    for name, settings in plain.items():
        trainer = setup.build_trainer(batch, "pooling=gap", *settings)
        _warm_up(trainer)
        runs[name] = (trainer.stream, setup.training_loop(trainer))
    return runs


def _bare_run(setup: TimingSetup, batch: int) -> Run:
    """Build the bare backbone's step, captured on the first batch."""
    source = setup.build_trainer(batch, "pooling=gap")
    model = source.objective.model
    assert isinstance(model, Embedder), "the whole network is trained"
    parameters = [p for p in model.backbone.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=1e-6, fused=True, capturable=True)
    wrapped, optimizer = source.fabric.setup(BareBackbone(model.backbone), optimizer)
    step = TrainingStep(source.fabric, wrapped, optimizer, max_grad_norm=10.0, capture=source.stream.capture)

    def first() -> Steps[None]:
        indices = source.sampler.batch(0)
        images = source.train.train(indices, torch.Generator().manual_seed(0))
        for number in range(WARM_UP + 1):
            step.run(number, lambda out: images, source.train.labels[indices])
            yield

    def steps() -> Steps[None]:
        for _ in range(setup.steps):
            step.replay()
            yield

    run_to_end(source.stream.run_on(first()))
    return source.stream, steps


def _warm_up(trainer: Trainer) -> None:
    """Take the steps before the last graph is captured."""

    def steps() -> Steps[None]:
        batch = len(trainer.sampler.batch(0))
        for step in range(2 * WARM_UP + 128 // batch + 3):
            trainer.take_step(step)
            yield
        trainer.state.step = step + 1

    run_to_end(trainer.stream.run_on(steps()))


def _make_contiguous(trainer: Trainer) -> None:
    """Store weights in PyTorch's default order, and feed images in that order."""
    model = trainer.objective.model
    assert isinstance(model, Embedder), "the whole network is trained"
    backbone = model.backbone
    backbone.network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    backbone.forward = lambda images: backbone._features(images.contiguous())  # type: ignore[method-assign]


def _time_runs(
    case: str,
    setup: TimingSetup,
    methods: Mapping[str, Sequence[Run]],
    repeats: int,
    rates: Mapping[str, Mapping[str, float]],
) -> list[Measurement]:
    """Time methods round-robin; a method of several runs drives them concurrently.

    `rates` names what one step processes, such as images, to report how many per second.
    """

    def concurrently(runs: Sequence[Run]) -> Callable[[], None]:
        def work() -> None:
            active = [stream.run_on(steps()) for stream, steps in runs]
            while active:
                active = [one for one in active if next(one, "over") is None]

        return work

    works = {name: concurrently(runs) for name, runs in methods.items()}
    rows = []
    for name, timing in measure_all(works, device=setup.device, repeats=repeats, warmup=1).items():
        each = timing.divided_by(setup.steps * len(methods[name]))
        facts = {fact: amount / each.median for fact, amount in rates[name].items()}
        rows.append(Measurement(case, name, each, facts=facts))
    return rows


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
