"""A whole run: data, model, training, test, and the folder that records it."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from winnow.data import Crops, ImageSet, ImageStore, Splits, load_images, load_splits
from winnow.data.emoji import load_emoji
from winnow.errors import ConfigError, DataError
from winnow.evaluation import RetrievalResult
from winnow.models import Embedder
from winnow.training.config import Config
from winnow.training.features import frozen_inputs
from winnow.training.folder import RunFolder
from winnow.training.inputs import CropInputs, Inputs
from winnow.training.judge import AverageOfFeatures, judge
from winnow.training.learner import Learner, build_learner, count_parameters
from winnow.training.monitor import Both, Monitor, TensorBoard
from winnow.training.provenance import provenance
from winnow.training.trainer import Trainer, make_fabric

FROZEN_LR, FULL_LR = 1e-3, 1e-5


@dataclass
class Prepared:
    """A run's data and model, before training.

    Attributes:
        frozen: Whether the inputs are feature maps of a frozen backbone.
    """

    config: Config
    embedder: Embedder
    train: Inputs
    val: Inputs
    test: Inputs | None
    num_classes: int
    frozen: bool

    @property
    def untrained(self) -> AverageOfFeatures:
        """The backbone with average pooling, nothing learned: what training has to beat."""
        return AverageOfFeatures(None if self.frozen else self.embedder.backbone)


def resolve_config(config: Config, num_classes: int | None = None) -> Config:
    """Settle what depends on the machine and the data: frozen or not, learning rate, classes per batch."""
    resolved = config.model_copy(deep=True)
    gpu = make_fabric(config).device.type == "cuda"
    if resolved.backbone.train == "auto":
        resolved.backbone.train = "full" if gpu else "frozen"
    if resolved.train.lr is None:
        resolved.train.lr = FROZEN_LR if resolved.backbone.train == "frozen" else FULL_LR
    if num_classes is not None:
        resolved.train.classes_per_batch = min(resolved.train.classes_per_batch, num_classes)
    return resolved


def load_data(config: Config) -> Splits:
    """Load the splits a config names."""
    data = config.data
    if data.path == "emoji":
        return load_emoji()
    return load_splits(
        data.path,
        train_classes=data.train_classes,
        val_classes=data.val_classes,
        test_classes=data.test_classes,
        val_share=data.val_share,
        test_share=data.test_share,
        seed=config.seed,
    )


def make_crops(config: Config) -> Crops:
    """Return how a config cuts images."""
    augment = config.augment
    transform = _import(augment.transform) if augment.transform else None
    return Crops(
        resize=config.image.resize, size=config.image.crop,
        area=augment.area, aspect=augment.aspect, flip=augment.flip, transform=transform,
    )  # fmt: skip


def prepare(config: Config, splits: Splits, monitor: Monitor) -> Prepared:
    """Build the model and the inputs of each split; `config` must be resolved."""
    torch.manual_seed(config.seed)
    embedder = Embedder.create(config)
    frozen = config.backbone.train == "frozen"
    device = make_fabric(config).device
    crops = make_crops(config)

    def inputs(images: ImageSet, title: str) -> Inputs:
        show = monitor.task(title)
        made: Inputs
        if frozen:
            made, skipped = frozen_inputs(
                embedder.backbone, images, crops, device,
                keep=config.data.features, on_error=config.data.on_error, progress=show,
            )  # fmt: skip
        else:
            store = ImageStore(
                images, resize=crops.resize, cache=config.data.cache, device=device,
                on_error=config.data.on_error, progress=show,
            )  # fmt: skip
            made, skipped = CropInputs(store, crops), store.skipped
        for name, reason in skipped:
            monitor.note(f"skipped {name}: {reason}")
        return made

    verb = "features" if frozen else "images"
    train = inputs(splits.train, f"training {verb}")
    val = inputs(splits.val, f"validation {verb}")
    test = inputs(splits.test, f"test {verb}") if splits.test is not None else None
    if frozen:
        embedder.backbone.freeze()
    return Prepared(config, embedder, train, val, test, len(splits.train.class_names), frozen)


def make_learner(prepared: Prepared) -> Learner:
    """Put the trainable part of the model and its objective together."""
    model = prepared.embedder.head if prepared.frozen else prepared.embedder
    return build_learner(prepared.config, model, prepared.num_classes)


def run_training(
    config: Config,
    folder: RunFolder,
    *,
    resume: bool = False,
    monitor: Monitor | None = None,
) -> dict[str, Any]:
    """Train, test and record one run.

    Args:
        config: The config; for a resumed run the one its folder holds.
        folder: Where everything goes.
        resume: Go on from the folder's last checkpoint.
        monitor: Told how it goes.

    Returns:
        What `result.json` holds.
    """
    monitor = monitor or Monitor()
    splits = load_data(config)
    for note in splits.notes:
        monitor.note(note)
    wanted = config.train.classes_per_batch
    config = resolve_config(config, len(splits.train.class_names))
    if config.train.classes_per_batch < wanted:
        monitor.note(f"a batch holds {config.train.classes_per_batch} classes, all there are to train on")
    if not resume:
        folder.create(config)
    prepared = prepare(config, splits, monitor)
    learner = make_learner(prepared)
    trainer = Trainer(config, learner, prepared.train, prepared.val, folder=folder)
    if resume:
        trainer.restore()
    if config.train.tensorboard:
        step = trainer.progress.step if resume else None
        monitor = Both(monitor, TensorBoard(folder.path / "tensorboard", step))
    trainer.monitor = monitor
    prepared.embedder.to(trainer.device)
    untrained = {"val": judge(prepared.untrained, prepared.val).metrics()}
    if prepared.test is not None:
        untrained["test"] = judge(prepared.untrained, prepared.test).metrics()
    monitor.start(config.train.steps, trainer.progress.step)
    try:
        progress = trainer.fit()
    finally:
        monitor.close()
    started = time.perf_counter()
    metrics = {"val": judge(learner.model, prepared.val).metrics()}
    test: RetrievalResult | None = None
    if prepared.test is not None:
        test = judge(learner.model, prepared.test, autocast=trainer.fabric.autocast)
        metrics["test"] = test.metrics()
    prepared.embedder.save_pretrained(folder.model_folder, metrics=metrics.get("test"))
    result = {
        **provenance(),
        "config": config.model_dump(mode="json"),
        "metrics": metrics,
        "untrained": untrained,
        "left_out": {"test": test.left_out} if test is not None else {},
        "steps": progress.step,
        "best_step": progress.best_step,
        "seconds": {"training": round(progress.seconds, 2), "testing": round(time.perf_counter() - started, 2)},
        "parameters": count_parameters(learner),
        "prototypes_ready": prepared.embedder.is_ready,
    }
    folder.write_json(folder.result_file, result)
    return result


def evaluate_run(folder: RunFolder, data: str | None = None, monitor: Monitor | None = None) -> RetrievalResult:
    """Judge a finished run's model on its own test classes, or on all images of other data."""
    config = folder.read_config()
    folder.read_result()  # refuses a run that is not finished
    images: ImageSet | None
    if data is None:
        images = load_data(config).test
        if images is None:
            raise DataError(f"the run {folder.path} has no test classes (too few to split): name others with --data")
    elif data == "emoji":
        images = load_emoji().test
    else:
        images = load_images(data)
    assert images is not None, "the embedded set has test classes"
    return judge_saved(folder.model_folder, images, config, monitor or Monitor())


def judge_saved(model: Path, images: ImageSet, config: Config, monitor: Monitor) -> RetrievalResult:
    """Judge a saved model on images."""
    device = make_fabric(config).device
    embedder = Embedder.from_pretrained(model, device=device)
    store = ImageStore(images, resize=config.image.resize, cache="none", device=device, on_error=config.data.on_error)
    show = monitor.task("embedding")
    inputs = CropInputs(store, embedder.crops)
    for name, reason in store.skipped:
        monitor.note(f"skipped {name}: {reason}")
    return judge(embedder, inputs, batch=64, keep=10, progress=show)


def _import(path: str) -> Callable[..., Any]:
    """Import 'module:function'."""
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"augment.transform={path}: {error}; write it as 'module:function'") from None
    if not callable(found):
        raise ConfigError(f"augment.transform={path} is not callable")
    return found  # type: ignore[no-any-return]
