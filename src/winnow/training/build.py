"""Image splits, model, and inputs of a run, built from its config."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from winnow.data import CropTransform, ImageCache, ImageSet, Splits, load_images, split_by_class
from winnow.data.augmentation import Augmentation
from winnow.data.datasets import DATASETS
from winnow.data.emoji import load_emoji
from winnow.data.splits import ON_TEST
from winnow.errors import ConfigError
from winnow.functional import l2_normalize
from winnow.models import Backbone, Embedder, principal_directions, resolve_image_size
from winnow.models.factory import check_network
from winnow.training.baseline import MeanFeatureCache, MeanPoolBaseline, inputs_key
from winnow.training.cache import RunCache, cached
from winnow.training.callbacks import Callback
from winnow.training.config import RunConfig
from winnow.training.duration import measure_duration
from winnow.training.engine.distributed import launched_processes
from winnow.training.engine.precision import make_fabric
from winnow.training.evaluation import KS, evaluate_embeddings
from winnow.training.features import CPU_BATCH, extract_features, feature_storage
from winnow.training.inputs import CropInputs, Inputs, QueryGallery
from winnow.training.objective import Objective, build_objective, check_components, check_objective
from winnow.training.results import Metrics
from winnow.training.schedules import epochs_to_steps, make_schedule

FROZEN_LR, FULL_LR = 1e-4, 1e-5
"""Default learning rates with a frozen backbone and for fine-tuning."""
FROZEN_PROXIES, FULL_PROXIES = 10.0, 100.0
"""Default factors on the learning rate of normalized CCP proxies, with a frozen backbone and for fine-tuning."""
FULL_AVERAGE = 0.998
"""Default decay of averaged weights for fine-tuning; heads on a frozen backbone do not gain from an average."""


@dataclass
class TrainingSetup:
    """Data and model of a run before training."""

    config: RunConfig
    embedder: Embedder
    train: Inputs
    val: Inputs
    test: Inputs | None
    num_classes: int
    frozen: bool  # whether the inputs are feature maps of a frozen backbone
    cache: RunCache | None = None
    ks: tuple[int, ...] = KS  # ranks k of R@k
    mean_features: MeanFeatureCache = field(default_factory=MeanFeatureCache)

    @property
    def baseline(self) -> MeanPoolBaseline:
        """Pretrained backbone with average pooling, without training."""
        batch = self.config.train.eval_batch_size
        if self.embedder.device.type == "cpu":
            batch = min(batch, CPU_BATCH)
        return MeanPoolBaseline(None if self.frozen else self.embedder.backbone, batch)

    def baseline_features(self, inputs: Inputs) -> Tensor:
        """Return the baseline's features (N, C) of inputs, in RAM.

        They are computed once for all runs that share a cache.
        """
        return self.mean_features.get(self.baseline, inputs, launched_processes())


def resolve_config(config: RunConfig, train: ImageSet | None = None) -> RunConfig:
    """Set values that depend on the machine and the data.

    These are `backbone.train`, the learning rates, the average, the batch size, and the validation interval.

    Raises:
        ConfigError: If a setting is out of range, or components do not fit together.
    """
    check_objective(config)
    check_components(config)
    check_network(config.backbone.name)
    resolved = config.model_copy(deep=True)
    resolved.image = resolve_image_size(config).image
    if config.data.path == "emoji":
        # Emoji collages have 128 pixels and small objects: use the whole image and a finer feature map.
        for section, key, value in ((resolved.image, "resize", 128), (resolved.image, "crop", 128),
                                    (resolved.backbone, "stride", 16)):  # fmt: skip
            if key not in section.model_fields_set and resolved.backbone.name == "tf_efficientnet_lite0":
                setattr(section, key, value)
    gpu = make_fabric(config).device.type == "cuda"
    if resolved.backbone.train == "auto":
        resolved.backbone.train = "full" if gpu else "frozen"
    frozen = resolved.backbone.train == "frozen"
    if resolved.train.lr is None:
        resolved.train.lr = FROZEN_LR if frozen else FULL_LR
    if resolved.train.average is None:
        resolved.train.average = 0.0 if frozen else FULL_AVERAGE
    references: Any = resolved.references
    if getattr(references, "lr_multiplier", 1.0) is None:
        references.lr_multiplier = (FROZEN_PROXIES if frozen else FULL_PROXIES) if references.normalize_proxies else 1.0
    if train is not None:
        resolved.train.classes_per_batch = min(resolved.train.classes_per_batch, len(train.class_names))
        if resolved.train.sampler == "random":
            resolved.train.batch_size = min(config.train.images_per_batch, len(train))
    batch, most = resolved.train.images_per_batch, None if resolved.train.unit == "epochs" else 100
    if train is not None:
        epochs_to_steps(resolved.train, max(1, len(train) // batch))
    if resolved.train.eval_steps is None:
        # Small datasets overfit in a few epochs. The best step must not fall between two validations.
        epoch = 100 if train is None else len(train) // batch
        resolved.train.eval_steps = max(10, epoch if most is None else min(most, epoch))
    if resolved.train.unit == "steps":
        make_schedule(resolved.train)  # raises for numbers out of range, before a file is written
    return resolved


def load_splits(config: RunConfig, cache: RunCache | None = None) -> Splits:
    """Load the image splits of a config.

    Raises:
        ConfigError: If classes or folds are set for data that has its own splits, or none.
        DataError: If images or labels cannot be read.
    """
    data = config.data
    named = [key for key in ("train_classes", "val_classes", "test_classes") if getattr(data, key) is not None]
    if data.path in DATASETS:
        on_test = data.val_classes == ON_TEST
        if named and not (on_test and named == ["val_classes"]):
            raise ConfigError(f"data.{named[0]}: {data.path} has its own splits. Remove the key or set data.fold.")
        dataset = cached(cache, ("benchmark", data.path, data.root), lambda: DATASETS[data.path].load(data.root))
        return dataset.splits(data.fold, data.num_folds, on_test=on_test)
    for key in ("root", "fold"):
        if getattr(data, key) is not None:
            raise ConfigError(
                f"data.{key}: requires a benchmark dataset ({', '.join(DATASETS)}), got data={data.path}. Remove the "
                "key."
            )
    if data.path == "emoji":
        if named:
            raise ConfigError(f"data.{named[0]}: the bundled emoji dataset has its own splits. Remove the key.")
        return cached(cache, "emoji", load_emoji)
    return split_by_class(
        cached(
            cache,
            ("images", data.path, data.unreadable_images),
            lambda: load_images(data.path, on_missing=data.unreadable_images),
        ),
        train_classes=data.train_classes,
        val_classes=data.val_classes,
        test_classes=data.test_classes,
        val_fraction=data.val_fraction,
        test_fraction=data.test_fraction,
        seed=config.seed,
    )


def build_setup(config: RunConfig, splits: Splits, callback: Callback, cache: RunCache | None = None) -> TrainingSetup:
    """Build the model and the inputs of each split; the config must be resolved."""
    torch.manual_seed(config.seed)
    embedder = Embedder.create(config)
    if launched_processes().count == 1:  # of runs that share a cache the first one, before the others start
        cached(cache, "duration", lambda: callback.estimate(lambda: measure_duration(embedder, config, splits)))
    frozen = config.backbone.train == "frozen"
    device = make_fabric(config).device
    image = config.image
    origin = "" if cache is None else f"{embedder.backbone.fingerprint()}-{image.resize}-{image.crop}"
    mean_features = cached(cache, ("averages", origin, config.train.eval_batch_size, device), MeanFeatureCache)

    train, val, test = build_inputs(config, splits, embedder.backbone, device, callback, cache, origin)
    if frozen:
        embedder.backbone.freeze()
    classes = len(splits.train.class_names)
    return TrainingSetup(config, embedder, train, val, test, classes, frozen, cache, splits.ks, mean_features)


def build_inputs(
    config: RunConfig,
    splits: Splits,
    backbone: Backbone,
    device: torch.device,
    callback: Callback,
    cache: RunCache | None = None,
    origin: str = "",
) -> tuple[Inputs, Inputs, Inputs | None]:
    """Return the inputs of training, validation, and test.

    Inputs are crops, or features of a frozen backbone.

    Args:
        config: Resolved config.
        splits: Images.
        backbone: Computes the features if it is frozen.
        device: Device of the batches.
        callback: Shows progress and lists skipped images.
        cache: Objects shared with other runs.
        origin: Cache key of the backbone's weights and the crop.
    """
    crops, data = make_crops(config), config.data
    frozen = config.backbone.train == "frozen"
    storage = feature_storage(config)
    open_store = partial(
        ImageCache if cache is None else cache.store,
        cache=data.image_cache,
        device=device,
        on_error=data.unreadable_images,
    )

    def build(images: ImageSet, title: str) -> Inputs:
        inputs: Inputs
        if frozen:
            key = None if cache is None else cache.fingerprint(images)
            inputs, skipped = cached(
                cache,
                ("features", origin, key, storage, data.unreadable_images, device),
                lambda: extract_features(
                    backbone, images, crops, device,
                    cache=storage, on_error=data.unreadable_images,
                    progress=callback.progress(f"{title} features"),
                ),
            )  # fmt: skip
        else:
            store = open_store(images, resize=crops.resize, progress=callback.progress(f"{title} images"))
            skipped, larger = store.skipped, None
            if images is splits.train and crops.train_resize is not None and crops.train_resize != crops.resize:
                progress = callback.progress(f"{title} images, larger")
                larger = open_store(images, resize=crops.train_resize, progress=progress)
            inputs = CropInputs(store, crops, larger)
        for name, reason in skipped:
            callback.message(f"skipped {name}: {reason}")
        return inputs

    train, val = build(splits.train, "training"), build(splits.val, "validation")
    test = val if splits.test is splits.val else None
    if splits.test is not None and test is None:
        test = build(splits.test, "test")
    if test is not None and splits.gallery is not None:
        test = QueryGallery(test, build(splits.gallery, "gallery"))
        val = test if splits.val is splits.test else val
    return train, val, test


def make_crops(config: RunConfig) -> CropTransform:
    """Return the crop transform of a config."""
    augment = config.augment
    transform = _import_function(augment.transform) if augment.transform else None
    return CropTransform(
        resize=config.image.resize, train_resize=augment.resize, size=config.image.crop,
        scale=augment.scale, ratio=augment.ratio, hflip=augment.hflip, transform=transform,
        augmentation=Augmentation(augment.rand_augment, augment.color_jitter, augment.random_erasing),
    )  # fmt: skip


def evaluate_baseline(setup: TrainingSetup) -> dict[str, Metrics]:
    """Return the baseline's metrics on validation and test."""

    def evaluate(inputs: Inputs) -> Metrics:
        embeddings = l2_normalize(setup.baseline_features(inputs).to(setup.embedder.device))
        return evaluate_embeddings(embeddings, inputs, ks=setup.ks, processes=launched_processes()).metrics()

    splits = {"val": setup.val, "test": setup.test}
    return {
        name: cached(
            setup.cache, ("untrained", setup.mean_features, inputs_key(inputs), setup.ks), partial(evaluate, inputs)
        )
        for name, inputs in splits.items()
        if inputs is not None
    }


def init_objective(setup: TrainingSetup) -> Objective:
    """Initialize the projection and build the objective of a run."""
    embedder = setup.embedder
    if setup.config.train.projection_init != "random":
        directions = cached(
            setup.cache,
            ("directions", setup.mean_features, inputs_key(setup.train)),
            lambda: principal_directions(setup.baseline_features(setup.train)),
        )
        embedder.head.init_projection(directions=directions)
    return build_objective(setup.config, embedder.head if setup.frozen else embedder, setup.num_classes)


def _import_function(path: str) -> Callable[..., Any]:
    """Import 'module:function'."""
    module, _, name = path.partition(":")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # an installed command does not search the working folder
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"augment.transform: cannot import '{path}' ({error}). Write 'module:function'.") from None
    if not callable(found):
        raise ConfigError(f"augment.transform: '{path}' is not callable. Name a function.")
    return found  # type: ignore[no-any-return]
