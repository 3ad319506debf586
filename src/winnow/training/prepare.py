"""Before training: settle the config, load the data, build the model and what it is fed."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from winnow.data import ImageSet, Splits, load_images, split_by_class
from winnow.data.emoji import load_emoji
from winnow.data.sets import DATASETS
from winnow.data.splits import ON_TEST
from winnow.errors import ConfigError
from winnow.functional import unit_norm
from winnow.models import Embedder
from winnow.models.head import principal_directions
from winnow.models.image_size import settle_image
from winnow.training.arithmetic import make_fabric
from winnow.training.config import Config
from winnow.training.distributed import launched
from winnow.training.features import CPU_BATCH
from winnow.training.inputs import Inputs
from winnow.training.judge import KS, compare
from winnow.training.learner import Learner, build_learner, check_objective, check_parts
from winnow.training.monitor import Monitor
from winnow.training.opening import open_splits
from winnow.training.shared import Shared, once
from winnow.training.untrained import AverageOfFeatures, Averages, identity

FROZEN_LR, FULL_LR = 1e-4, 1e-5


@dataclass
class Prepared:
    """A run's data and model, before training.

    Attributes:
        frozen: Whether the inputs are feature maps of a frozen backbone.
        ks: The ranks of R@k that validation and test are reported at.
        shared: What the run has in common with others beside it.
        averages: The untrained backbone's features of images, averaged; of its own, or those of all runs with its
            weights and crop.
    """

    config: Config
    embedder: Embedder
    train: Inputs
    val: Inputs
    test: Inputs | None
    num_classes: int
    frozen: bool
    shared: Shared | None = None
    ks: tuple[int, ...] = KS
    averages: Averages = field(default_factory=Averages)

    @property
    def untrained(self) -> AverageOfFeatures:
        """The backbone with average pooling, nothing learned: what training has to beat."""
        batch = self.config.train.eval_batch
        if self.embedder.device.type == "cpu":
            batch = min(batch, CPU_BATCH)
        return AverageOfFeatures(None if self.frozen else self.embedder.backbone, batch)

    def untrained_features(self, inputs: Inputs) -> Tensor:
        """Return what that makes of inputs (N, C), in RAM; of each image once for all runs that share it."""
        return self.averages.of(self.untrained, inputs, launched())


def resolve_config(config: Config, train: ImageSet | None = None) -> Config:
    """Settle what depends on the machine and the data: frozen or not, learning rate, batches, time of validations."""
    check_objective(config)
    check_parts(config)
    resolved = config.model_copy(deep=True)
    resolved.image = settle_image(config).image
    if config.data.path == "emoji":
        # The embedded pictures have 128 pixels and small things in them: a finer map of the picture as it is.
        for section, key, value in ((resolved.image, "resize", 128), (resolved.image, "crop", 128),
                                    (resolved.backbone, "stride", 16)):  # fmt: skip
            if key not in section.model_fields_set and resolved.backbone.name == "tf_efficientnet_lite0":
                setattr(section, key, value)
    gpu = make_fabric(config).device.type == "cuda"
    if resolved.backbone.train == "auto":
        resolved.backbone.train = "full" if gpu else "frozen"
    if resolved.train.lr is None:
        resolved.train.lr = FROZEN_LR if resolved.backbone.train == "frozen" else FULL_LR
    schedule = resolved.train
    if train is not None:
        schedule.classes_per_batch = min(schedule.classes_per_batch, len(train.class_names))
    if schedule.eval_every is None:
        # Few images are learned by heart in a few passes: the best moment must not fall between two validations.
        batch = schedule.classes_per_batch * schedule.samples_per_class
        schedule.eval_every = 100 if train is None else max(10, min(100, len(train) // batch))
    return resolved


def load_data(config: Config, shared: Shared | None = None) -> Splits:
    """Load the splits a config names."""
    data = config.data
    named = [key for key in ("train_classes", "val_classes", "test_classes") if getattr(data, key) is not None]
    if data.path in DATASETS:
        on_test = data.val_classes == ON_TEST
        if named and not (on_test and named == ["val_classes"]):
            raise ConfigError(f"data.{named[0]}: {data.path} has its own splits; leave it out, or choose a data.fold")
        benchmark = once(
            shared, lambda: ("benchmark", data.path, data.root), lambda: DATASETS[data.path].load(data.root)
        )
        return benchmark.splits(data.fold, data.folds, on_test=on_test)
    for key in ("root", "fold"):
        if getattr(data, key) is not None:
            raise ConfigError(
                f"data.{key} is for benchmark sets ({', '.join(DATASETS)}), and data={data.path} is none; leave it out"
            )
    if data.path == "emoji":
        if named:
            raise ConfigError(f"data.{named[0]}: the embedded set has its own splits; leave it out")
        return once(shared, lambda: "emoji", load_emoji)
    return split_by_class(
        once(shared, lambda: ("images", data.path), lambda: load_images(data.path)),
        train_classes=data.train_classes,
        val_classes=data.val_classes,
        test_classes=data.test_classes,
        val_share=data.val_share,
        test_share=data.test_share,
        seed=config.seed,
    )


def prepare(config: Config, splits: Splits, monitor: Monitor, shared: Shared | None = None) -> Prepared:
    """Build the model and the inputs of each split; `config` must be resolved."""
    torch.manual_seed(config.seed)
    embedder = Embedder.create(config)
    frozen = config.backbone.train == "frozen"
    device = make_fabric(config).device
    image = config.image
    origin = "" if shared is None else f"{embedder.backbone.fingerprint()}-{image.resize}-{image.crop}"
    averages = once(shared, lambda: ("averages", origin, config.train.eval_batch, device), Averages)

    train, val, test = open_splits(config, splits, embedder.backbone, device, monitor, shared, origin)
    if frozen:
        embedder.backbone.freeze()
    classes = len(splits.train.class_names)
    return Prepared(config, embedder, train, val, test, classes, frozen, shared, splits.ks, averages)


def judge_untrained(prepared: Prepared) -> dict[str, dict[str, float]]:
    """Judge the backbone with average pooling, nothing learned, on validation and test."""

    def judged(inputs: Inputs) -> dict[str, float]:
        def retrieved() -> dict[str, float]:
            embeddings = unit_norm(prepared.untrained_features(inputs).to(prepared.embedder.device))
            return compare(embeddings, inputs, ks=prepared.ks, processes=launched()).metrics()

        return once(prepared.shared, lambda: ("untrained", prepared.averages, identity(inputs), prepared.ks), retrieved)

    found = {"val": judged(prepared.val)}
    if prepared.test is not None:
        found["test"] = judged(prepared.test)
    return found


def make_learner(prepared: Prepared) -> Learner:
    """Put the trainable part of the model and its objective together."""
    embedder = prepared.embedder
    if prepared.config.train.start == "principal":
        directions = once(
            prepared.shared,
            lambda: ("directions", prepared.averages, identity(prepared.train)),
            lambda: principal_directions(prepared.untrained_features(prepared.train)),
        )
        embedder.head.start_along(directions)
    return build_learner(prepared.config, embedder.head if prepared.frozen else embedder, prepared.num_classes)
