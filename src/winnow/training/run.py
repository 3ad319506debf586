"""A whole run: data, model, training, test, and the folder that records it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from winnow.data import FileSet, ImageSet, ImageStore, Splits, load_images
from winnow.data.emoji import load_emoji
from winnow.data.sets import DATASETS
from winnow.errors import ConfigError, DataError, TrainingError, WinnowError
from winnow.evaluation import RetrievalResult
from winnow.functional import NORMALISE
from winnow.models import Embedder
from winnow.seeding import fork_rng
from winnow.training.arithmetic import make_fabric
from winnow.training.config import AugmentConfig, Config
from winnow.training.distributed import launched, missing_others
from winnow.training.folder import RunFolder
from winnow.training.inputs import CropInputs, Inputs, QueryGallery
from winnow.training.judge import KS, judging
from winnow.training.lane import Work, finish
from winnow.training.learner import count_parameters
from winnow.training.monitor import Both, Monitor, TensorBoard, require_tensorboard
from winnow.training.prepare import judge_untrained, load_data, make_learner, prepare, resolve_config
from winnow.training.provenance import provenance
from winnow.training.same import differing
from winnow.training.shared import Shared
from winnow.training.trainer import Trainer
from winnow.training.untrained import Averages


def run_training(
    config: Config,
    folder: RunFolder,
    *,
    resume: bool = False,
    monitor: Monitor | None = None,
    shared: Shared | None = None,
) -> dict[str, Any]:
    """Train, test and record one run, in this process or together with the others that torchrun started.

    Args:
        config: The config; for a resumed run the one its folder holds.
        folder: Where everything goes; of several processes the first writes, and all read what is resumed.
        resume: Go on from the folder's last checkpoint.
        monitor: Told how it goes.
        shared: What it has in common with other runs in this process, if any.

    Returns:
        What `result.json` holds.

    Raises:
        ConfigError: for a run that was begun with other settings.
        ModelError: for a checkpoint of other settings, and for damaged files.
        TrainingError: when training cannot go on.
    """
    try:
        work = training(config, folder, resume=resume, monitor=monitor, shared=shared)
        with fork_rng(), missing_others(launched()), closing(work):
            return finish(work)
    except torch.cuda.OutOfMemoryError:
        raise TrainingError(
            "the GPU has no memory left: use smaller batches (train.classes_per_batch), smaller images (image.crop) "
            "or train.precision=bf16-mixed"
        ) from None


def training(
    config: Config,
    folder: RunFolder,
    *,
    resume: bool | None = False,
    monitor: Monitor | None = None,
    shared: Shared | None = None,
) -> Work[dict[str, Any]]:
    """Do what `run_training` does in pieces, beside other runs that share what they have in common.

    All that is drawn from the global generators before the first step is drawn within the first piece. With `resume`
    None a run that the folder holds is gone on with, and otherwise one is begun.
    """
    origin = provenance()  # of the code that was imported, not of what is committed meanwhile
    processes = launched()
    monitor = monitor if monitor is not None and processes.is_first else Monitor()
    splits = load_data(config, shared)
    if not config.train.test:
        splits = replace(splits, test=None, gallery=None)
    for note in splits.notes:
        monitor.note(note)
    wanted = config.train.classes_per_batch
    config = resolve_config(config, splits.train)
    counts = {"train": splits.train, "validate": splits.val, "test": splits.test}
    told = ", ".join(f"{len(s.class_names)} to {verb}" for verb, s in counts.items() if s is not None)
    monitor.note(f"data {config.data.path}: classes {told}")
    if config.data.val_classes == "test":
        monitor.note("weights are chosen on the test classes, so that what they reach there is too good")
    if config.train.classes_per_batch < wanted:
        monitor.note(f"a batch holds {config.train.classes_per_batch} classes, all there are to train on")
    if config.backbone.train == "frozen" and config.augment != AugmentConfig():
        monitor.note("augment.* has no effect: a frozen backbone sees centre crops; backbone.train=full augments")
    if config.train.tensorboard:
        require_tensorboard()
    if processes.count > 1:
        batch = config.train.classes_per_batch * config.train.samples_per_class
        monitor.note(f"{processes.count} processes share the {batch} images of a batch")
    if resume is None:  # asked only now: another process may have begun it while the data were read
        resume = folder.config_file.is_file()
    if resume and not folder.checkpoint_file.exists():  # a checkpoint is checked for itself
        check_begun(config, folder)
    if not resume and processes.is_first:
        folder.create(config)
    with folder.held() if processes.is_first else nullcontext():
        return (yield from _training(config, folder, splits, origin, resume=resume, monitor=monitor, shared=shared))


def _training(
    config: Config, folder: RunFolder, splits: Splits, origin: Mapping[str, Any], *, resume: bool, monitor: Monitor,
    shared: Shared | None,
) -> Work[dict[str, Any]]:  # fmt: skip
    """Do it with the data at hand, in a folder that is this run's."""
    processes = launched()
    try:
        prepared = prepare(config, splits, monitor, shared)
        prepared.embedder.to(make_fabric(config).device)
        untrained = judge_untrained(prepared)
        learner = make_learner(prepared)
        prepared.averages = Averages()  # training needs none; those that runs share are kept for the next
        sizes = np.unique(prepared.train.labels, return_counts=True)[1].tolist()
        notes = learner.references.notes(config.train.steps, sizes)
        for note in [*notes, *([] if learner.zsr is None else learner.zsr.notes(learner.zsr_weight))]:
            monitor.note(note)
        trainer = Trainer(config, learner, prepared.train, prepared.val, folder=folder, ks=prepared.ks)
    except WinnowError:  # of weights, images or patterns: what puts it right may be a setting, which a run would refuse
        if not resume and processes.is_first:
            folder.discard()
        raise
    if resume and folder.checkpoint_file.exists():  # a run killed before its first checkpoint starts at step 0
        trainer.restore()
    if config.train.tensorboard and processes.is_first:
        step = trainer.progress.step if resume else None
        monitor = Both(monitor, TensorBoard(folder.path / "tensorboard", step))
    trainer.monitor = monitor
    if trainer.progress.step:
        monitor.note(f"goes on from step {trainer.progress.step}")
    monitor.start(config.train.steps, trainer.progress.step)
    try:
        progress = yield from trainer.pieces()
    finally:
        monitor.close()
    started = time.perf_counter()
    metrics = {"val": progress.best_metrics()}
    test: RetrievalResult | None = None
    if (inputs := prepared.test) is not None:
        labels = torch.from_numpy(inputs.labels)

        def seen(embeddings: Tensor) -> None:
            if config.train.keep_embeddings and processes.is_first:
                folder.write_embeddings(embeddings, labels, [inputs.name(index) for index in range(len(labels))])

        test = yield from judging(
            learner.model, inputs, batch=config.train.eval_batch, ks=prepared.ks,
            normalise=learner.loss.normalise, autocast=trainer.fabric.autocast, processes=processes, seen=seen,
        )  # fmt: skip
        metrics["test"] = test.metrics()
    if processes.is_first:
        prepared.embedder.save_pretrained(folder.model_folder, metrics=metrics.get("test"))
    result = {
        **origin,
        "config": config.model_dump(mode="json"),
        "data": describe_data(splits, prepared.test),
        "metrics": metrics,
        "untrained": untrained,
        "left_out": {"test": test.left_out} if test is not None else {},
        "processes": processes.count,
        "steps": progress.step,
        "best_step": progress.best_step,
        "seconds": {"training": round(progress.seconds, 2), "testing": round(time.perf_counter() - started, 2)},
        "parameters": count_parameters(nn.ModuleList([prepared.embedder, learner])),
        "prototypes_ready": prepared.embedder.is_ready,
    }
    if trainer.problems is not None:
        result["problems"] = trainer.problems.records()
    if processes.is_first:
        folder.write_result(result)
    return result


def check_begun(config: Config, folder: RunFolder) -> None:
    """Refuse to train a run that was only begun with others than the settings its `config.yaml` tells of.

    Raises:
        ConfigError: naming the first setting that differs.
        ModelError: where there is no config, or a damaged one.
    """
    key = differing(config.model_dump(mode="json"), folder.read_config().model_dump(mode="json"))
    if key is not None:
        raise ConfigError(
            f"{folder.path} was begun with another {key}: resume it with its own, or remove it and train the run anew"
        )


def describe_data(splits: Splits, test: Inputs | None) -> dict[str, Any]:
    """Return how many images and classes each split has, what the set lacks, and the queries if there is a gallery.

    Kept test embeddings are those of the queries, then those of the gallery.
    """
    sets = {"train": splits.train, "val": splits.val, "test": splits.test, "gallery": splits.gallery}
    there = {name: images for name, images in sets.items() if images is not None}
    return {
        "images": {name: len(images) for name, images in there.items()},
        "classes": {name: len(images.class_names) for name, images in there.items()},
        "missing": {part: dict(one) for part, one in splits.missing.items()},
        **({"queries": test.count} if isinstance(test, QueryGallery) else {}),
    }


def evaluate_run(
    folder: RunFolder, data: str | None = None, monitor: Monitor | None = None,
    seen: Callable[[Tensor], None] = lambda embeddings: None,
    lacks: Callable[[Mapping[str, Mapping[str, Any]]], None] = lambda missing: None,
) -> RetrievalResult:  # fmt: skip
    """Judge a finished run's model on its own test classes, or a run's or a saved model on all images of other data.

    Args:
        folder: The run, or a saved model.
        data: Other images, as in the config.
        monitor: Told how it goes.
        seen: Given the embeddings (N, dim) as they are compared; of queries and a gallery the queries come first.
        lacks: Given what a benchmark set is known to lack, by part, as in a run's result.
    """
    if folder.config_file.is_file():
        folder.check_finished()
        config, model = folder.read_config(), folder.model_folder
    else:
        config, model = Config(), folder.path
        Embedder.read_config(model)  # refuses what is no model
        if data is None:
            raise ConfigError(f"{folder.path} is a saved model, which has no data of its own: name some with --data")
    images: ImageSet | None
    gallery: ImageSet | None = None
    ks, notes = KS, tuple[str, ...]()
    if data is None or data in DATASETS:
        splits = load_data(config) if data is None else DATASETS[data].load().splits(on_test=True)
        images, gallery, ks, notes = splits.test, splits.gallery, splits.ks, splits.notes
        lacks(splits.missing)
        if images is None:
            raise DataError(f"the run {folder.path} has no test classes: name other images with --data")
    else:
        images = load_emoji().test if data == "emoji" else load_images(data)
        notes = images.notes if isinstance(images, FileSet) else ()
    assert images is not None, "the embedded set has test classes"
    monitor = monitor or Monitor()
    for note in notes:
        monitor.note(note)
    fabric = make_fabric(config)
    embedder = Embedder.from_pretrained(model, device=fabric.device)
    crops, settings = embedder.crops, config.data

    def opened(some: ImageSet) -> CropInputs:
        store = ImageStore(some, resize=crops.resize, cache="none", device=fabric.device, on_error=settings.on_error)
        for name, reason in store.skipped:
            monitor.note(f"skipped {name}: {reason}")
        return CropInputs(store, crops)

    inputs: Inputs = opened(images) if gallery is None else QueryGallery(opened(images), opened(gallery))
    work = judging(
        embedder, inputs, batch=32, ks=ks, normalise=NORMALISE[embedder.config.normalise], autocast=fabric.autocast,
        progress=monitor.task("embedding"), seen=seen,
    )  # fmt: skip
    return finish(work)
