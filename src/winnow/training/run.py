"""One run from config to result: data, model, training, test, and the run folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from winnow.data import FileImages, ImageCache, ImageSet, Splits, load_images
from winnow.data.datasets import DATASETS
from winnow.data.emoji import load_emoji
from winnow.errors import ConfigError, DataError, TrainingError, WinnowError
from winnow.evaluation import RetrievalResult
from winnow.functional import NORMALIZERS, l2_normalize
from winnow.models import Embedder
from winnow.seeding import fork_rng
from winnow.training.baseline import MeanFeatureCache, MeanPoolBaseline
from winnow.training.build import build_setup, evaluate_baseline, init_objective, load_splits, resolve_config
from winnow.training.cache import RunCache, cached
from winnow.training.callbacks import Callback, CallbackList, TensorBoard, check_tensorboard
from winnow.training.config import AugmentConfig, RunConfig
from winnow.training.data_record import DataRecord
from winnow.training.engine.distributed import launched_processes, report_lost_processes
from winnow.training.engine.precision import make_fabric
from winnow.training.engine.stream import Steps, run_to_end
from winnow.training.evaluation import KS, evaluate_embeddings, iter_embed, iter_evaluate
from winnow.training.features import CPU_BATCH
from winnow.training.inputs import CropInputs, Inputs, QueryGallery
from winnow.training.objective import Objective, count_parameters
from winnow.training.results import (
    CCPProblem,
    DataSummary,
    Metrics,
    MissingPart,
    ParameterCount,
    RunResult,
    Seconds,
    collect_provenance,
)
from winnow.training.run_dir import RunDir
from winnow.training.trainer import Trainer


def train(
    config: RunConfig,
    run_dir: RunDir | str | PathLike[str],
    *,
    resume: bool = False,
    callback: Callback | None = None,
    cache: RunCache | None = None,
) -> RunResult:
    """Train, test, and record one run.

    All processes of torchrun train it together.

    Args:
        config: Config; for a resumed run the config of its folder.
        run_dir: Folder of the run. The first process writes it; all processes read it to resume.
        resume: Resume from the last checkpoint of the folder.
        callback: Handles messages, progress, steps, and validations.
        cache: Objects shared with other runs of this process.

    Returns:
        The result that `result.json` holds.

    Raises:
        ConfigError: If a setting is invalid, or the run was started with a different config.
        DataError: If images or labels cannot be used.
        ModelError: If a checkpoint was made with a different config, or a file is damaged.
        TrainingError: If training cannot continue.
    """
    if not isinstance(run_dir, RunDir):
        run_dir = RunDir(Path(run_dir))
    steps = iter_run(config, run_dir, resume=resume, callback=callback, cache=cache)
    try:
        with fork_rng(), report_lost_processes(launched_processes()), closing(steps):
            return run_to_end(steps)
    except torch.cuda.OutOfMemoryError:
        raise TrainingError(
            "CUDA out of memory. Set train.chunk_size or train.precision=bf16-mixed, or reduce image.crop."
        ) from None


def iter_run(
    config: RunConfig,
    run_dir: RunDir,
    *,
    resume: bool | None = False,
    callback: Callback | None = None,
    cache: RunCache | None = None,
) -> Steps[RunResult]:
    """Train, test, and record one run as a generator, so several runs can take turns.

    See `train`.

    All draws from global random generators before the first training step happen before the first yield. With
    `resume=None` a run that the folder contains is resumed, and a new one is started otherwise.
    """
    # Set-up
    provenance = collect_provenance()  # now: the commit may change while the run trains
    processes = launched_processes()
    callback = callback if callback is not None and processes.is_first else Callback()
    if config.train.tensorboard:
        check_tensorboard()

    # Data
    splits = load_splits(config, cache)
    if not config.train.run_test:
        splits = replace(splits, test=None, gallery=None)
    requested, config = config, resolve_config(config, splits.train)
    for text in _messages(requested, config, splits):
        callback.message(text)

    # Run folder
    if resume is None:  # asked now: another process may have started the run while the data were read
        resume = run_dir.config_file.is_file()
    record = _record_data(config, splits, cache) if processes.is_first else None
    data_digest = ""
    if resume and record is not None:
        # Before the config is compared, because some of its values follow from the data.
        data_digest, touched = run_dir.check_data(record)
        if touched and config.data.fingerprint == "ends":
            callback.message(
                f"{touched} images have another modification time, but equal sizes and equal first and last bytes, "
                "so they count as unchanged; data.fingerprint=contents compares all bytes"
            )
        if not data_digest:
            callback.message("this run recorded no images when it started (version 0.1.0): assumed to be unchanged")
    if resume and not run_dir.checkpoint_file.exists():  # otherwise the checkpoint's config is compared
        run_dir.check_resumable(config)
    if not resume and processes.is_first:
        run_dir.create(config)
    with run_dir.lock() if processes.is_first else nullcontext():
        if record is not None and not data_digest:
            data_digest = run_dir.write_data(record)

        # Model, inputs, and baseline
        try:
            setup = build_setup(config, splits, callback, cache)
            embedder = setup.embedder.to(make_fabric(config).device)
            untrained = evaluate_baseline(setup)
            objective = init_objective(setup)
            setup.mean_features = MeanFeatureCache()  # frees memory; a shared cache stays with the other runs
            for text in _objective_warnings(config, objective, setup.train):
                callback.message(text)
            curve = setup.test if config.train.test_curve else None
            trainer = Trainer(config, objective, setup.train, setup.val, test=curve, run_dir=run_dir, ks=setup.ks)
            trainer.data_digest = data_digest
        except WinnowError:  # the remedy may be another setting, which a started run would not accept
            if not resume and processes.is_first:
                run_dir.discard()
            raise

        # Training, from the last checkpoint if there is one
        if resume and run_dir.checkpoint_file.exists():
            trainer.restore()
        first_step = trainer.state.step
        if config.train.tensorboard and processes.is_first:
            scalars = TensorBoard(run_dir.path / "tensorboard", first_step if resume else None)
            callback = CallbackList(callback, scalars)
        trainer.callback = callback
        if first_step:
            callback.message(f"resuming at step {first_step}")
        callback.start(config.train.max_steps, first_step)
        try:
            state = yield from trainer.iter_fit()
        finally:
            callback.close()
        metrics = {"val": state.best_metrics()}

        # Test with the selected weights
        started = time.perf_counter()
        test: RetrievalResult | None = None
        if setup.test is not None:
            save = config.train.save_embeddings and processes.is_first
            test = yield from iter_evaluate(
                objective.model, setup.test, batch=config.train.eval_batch_size, ks=setup.ks,
                normalize=objective.loss.normalizer, autocast=trainer.fabric.autocast, processes=processes,
                on_embeddings=partial(_save_embeddings, run_dir, setup.test) if save else lambda embeddings: None,
            )  # fmt: skip
            metrics["test"] = test.metrics()
        testing = time.perf_counter() - started

        # Model and result
        if processes.is_first:
            embedder.save_pretrained(run_dir.model_folder, metrics=metrics.get("test"))
        ccp = {} if trainer.ccp_solver is None else {"problems": _records(trainer.ccp_solver.records())}
        result = RunResult(
            **dict(provenance),
            config=config.model_dump(mode="json"),
            data=summarize_data(splits, setup.test),
            metrics=metrics,
            untrained=untrained,
            left_out={} if test is None else {"test": test.num_without_relevant},
            processes=processes.count,
            steps=state.step,
            best_step=state.best_step,
            seconds=Seconds(training=round(state.seconds, 2), testing=round(testing, 2)),
            parameters=ParameterCount(**count_parameters(nn.ModuleList([embedder, objective]))),
            prototypes_ready=embedder.prototypes_ready,
            **ccp,
        )
        if processes.is_first:
            run_dir.write_result(result)
        return result


def _record_data(config: RunConfig, splits: Splits, cache: RunCache | None) -> DataRecord:
    """Record the images of all splits.

    Runs that share a cache and have equal splits share the record.
    """
    parts = (splits.train, splits.val, splits.test, splits.gallery)
    key = () if cache is None else tuple(None if one is None else cache.fingerprint(one) for one in parts)
    classes = tuple(one.class_names for one in parts if one is not None)
    compare = config.data.fingerprint
    return cached(cache, ("data record", compare, key, classes), lambda: DataRecord.of(splits, compare))


def _messages(requested: RunConfig, config: RunConfig, splits: Splits) -> list[str]:
    """Return notices about a resolved config and its data."""
    messages = list(splits.notes)
    counts = {"training": splits.train, "validation": splits.val, "test": splits.test}
    classes = ", ".join(f"{len(s.class_names)} {name}" for name, s in counts.items() if s is not None)
    images = sum(len(one) for one in (*counts.values(), splits.gallery) if one is not None)
    device = make_fabric(config).device.type.replace("cuda", "GPU").replace("cpu", "CPU")
    backbone = {"frozen": "frozen: only the head is trained", "full": "fine-tuned"}[config.backbone.train]
    messages.append(
        f"data {config.data.path}: {images:,} images, {classes} classes; {config.backbone.name} on a {device}, "
        f"{backbone}; pooling={config.pooling.name}, loss={config.loss.name}, dim={config.dim}; at most "
        f"{config.train.max_steps:,} steps"
    )
    if config.data.val_classes == "test":
        messages.append("data.val_classes=test: weights are selected on the test classes, so test metrics are too high")
    if config.train.test_curve and splits.test is None:
        messages.append("train.test_curve has no effect: the run evaluates no test classes")
    batch = config.train
    if batch.sampler == "random":
        if batch.images_per_batch < requested.train.images_per_batch:
            messages.append(f"a batch has {batch.images_per_batch} images: there are no more training images")
    elif batch.classes_per_batch < requested.train.classes_per_batch:
        messages.append(f"a batch has {batch.classes_per_batch} classes: there are no more training classes")
    if config.backbone.train == "frozen" and config.augment != AugmentConfig():
        messages.append("augment.* has no effect with a frozen backbone; backbone.train=full augments images")
    if (count := launched_processes().count) > 1:
        messages.append(f"{count} processes share the {batch.images_per_batch} images of a batch")
    return messages


def _objective_warnings(config: RunConfig, objective: Objective, train: Inputs) -> list[str]:
    """Return warnings about settings of the references and ZSR that have no effect."""
    sizes = np.unique(train.labels, return_counts=True)[1].tolist()
    warnings = list(objective.references.warnings(config.train.max_steps, sizes))
    if objective.zsr is not None:
        warnings.extend(objective.zsr.warnings(objective.zsr_weight))
    return warnings


def _save_embeddings(run_dir: RunDir, inputs: Inputs, embeddings: Tensor) -> None:
    labels = torch.from_numpy(inputs.labels)
    run_dir.write_embeddings(embeddings, labels, [inputs.name(index) for index in range(len(labels))])


def _records(values: list[dict[str, Any]]) -> list[CCPProblem]:
    return [CCPProblem.from_dict(one) for one in values]


def summarize_data(splits: Splits, test: Inputs | None) -> DataSummary:
    """Return the images, classes, queries, and missing images of each split."""
    sets = {"train": splits.train, "val": splits.val, "test": splits.test, "gallery": splits.gallery}
    present = {name: images for name, images in sets.items() if images is not None}
    queries = {"queries": test.count} if isinstance(test, QueryGallery) else {}
    archive = {"archive": list(splits.archive)} if splits.archive else {}
    return DataSummary(
        images={name: len(images) for name, images in present.items()},
        classes={name: len(images.class_names) for name, images in present.items()},
        missing={split: MissingPart.from_dict(one) for split, one in splits.missing.items()},
        **archive,
        **queries,
    )


def evaluate_run(
    run_dir: RunDir,
    data: str | None = None,
    callback: Callback | None = None,
    on_embeddings: Callable[[Tensor], None] = lambda embeddings: None,
    on_missing: Callable[[Mapping[str, Mapping[str, Any]]], None] = lambda missing: None,
) -> RetrievalResult:
    """Evaluate a finished run or a saved model.

    A run is evaluated on its test classes, or on all images of other data.

    Args:
        run_dir: Folder of a run or of a saved model.
        data: Other images, as in the config key `data`.
        callback: Handles messages and progress.
        on_embeddings: Called with the embeddings (N, dim) as they are compared; queries precede their gallery.
        on_missing: Called with the images a benchmark dataset lacks, by split, as in a result.

    Raises:
        ConfigError: If a saved model is evaluated without data.
        DataError: If the run has no test classes and no data are given.
        ModelError: If the run is not finished, or the folder contains no model.
    """
    callback = callback or Callback()
    opened = _open_evaluation(run_dir, data, callback, on_missing)
    steps = iter_evaluate(
        opened.embedder, opened.inputs, batch=32, ks=opened.ks,
        normalize=NORMALIZERS[opened.embedder.config.normalize], autocast=opened.autocast,
        progress=callback.progress("embedding"), on_embeddings=on_embeddings,
    )  # fmt: skip
    return run_to_end(steps)


def evaluate_pretrained(
    run_dir: RunDir, data: str | None = None, callback: Callback | None = None, *, default_map: bool = False
) -> Metrics:
    """Evaluate the pretrained backbone of a run or saved model with average pooling, without training.

    Args:
        run_dir: Folder of a run or of a saved model.
        data: Other images than the run's test classes, as in the config key `data`.
        callback: Handles progress.
        default_map: Whether to use the network's last map instead of that of `backbone.stride`.

    Raises:
        WinnowError: As `evaluate_run`; `ModelError` also if the pretrained weights are missing.
    """
    callback = callback or Callback()
    opened = _open_evaluation(run_dir, data, Callback(), lambda missing: None)
    config = opened.embedder.config.model_copy(deep=True)
    if default_map:
        config.backbone.stride = None
    backbone = Embedder.create(config).backbone.to(opened.embedder.device).freeze()
    model = MeanPoolBaseline(backbone, CPU_BATCH if opened.embedder.device.type == "cpu" else 128)
    steps = iter_embed(model, opened.inputs, batch=model.batch, progress=callback.progress("pretrained backbone"))
    return evaluate_embeddings(l2_normalize(run_to_end(steps)), opened.inputs, ks=opened.ks).metrics()


@dataclass(frozen=True)
class _Evaluation:
    """Model and inputs of an evaluation."""

    embedder: Embedder
    inputs: Inputs
    ks: tuple[int, ...]
    autocast: Callable[[], AbstractContextManager[Any]]


def _open_evaluation(
    run_dir: RunDir,
    data: str | None,
    callback: Callback,
    on_missing: Callable[[Mapping[str, Mapping[str, Any]]], None],
) -> _Evaluation:
    """Open the model and the images of an evaluation; see `evaluate_run`."""
    if run_dir.config_file.is_file():
        run_dir.check_finished()
        config, model = run_dir.read_config(), run_dir.model_folder
    else:
        config, model = RunConfig(), run_dir.path
        Embedder.read_config(model)  # raises an error if the folder contains no model
        if data is None:
            raise ConfigError(
                f"data: {run_dir.path} is a saved model without data. Name the images to evaluate.", hint="data"
            )
    images: ImageSet | None
    gallery: ImageSet | None = None
    ks, messages = KS, tuple[str, ...]()
    if data is None or data in DATASETS:
        splits = load_splits(config) if data is None else DATASETS[data].load().splits(on_test=True)
        images, gallery, ks, messages = splits.test, splits.gallery, splits.ks, splits.notes
        on_missing(splits.missing)
        if images is None:
            raise DataError(
                f"data: the run {run_dir.path} has no test classes. Name other images to evaluate.", hint="data"
            )
    else:
        images = load_emoji().test if data == "emoji" else load_images(data, on_missing=config.data.unreadable_images)
        messages = images.notes if isinstance(images, FileImages) else ()
    assert images is not None, "the bundled emoji dataset has test classes"
    for text in messages:
        callback.message(text)
    fabric = make_fabric(config)
    embedder = Embedder.from_pretrained(model, device=fabric.device)
    crops, on_error = embedder.crops, config.data.unreadable_images

    def open_images(images: ImageSet) -> CropInputs:
        store = ImageCache(images, resize=crops.resize, cache="none", device=fabric.device, on_error=on_error)
        for name, reason in store.skipped:
            callback.message(f"skipped {name}: {reason}")
        return CropInputs(store, crops)

    inputs: Inputs = open_images(images)
    if gallery is not None:
        inputs = QueryGallery(inputs, open_images(gallery))
    return _Evaluation(embedder, inputs, ks, fabric.autocast)
