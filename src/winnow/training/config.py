"""Settings of a training run: every config key with its default and meaning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

from pydantic import BeforeValidator, Field, NonNegativeFloat, SerializeAsAny, model_validator

from winnow.errors import ConfigError
from winnow.losses import LOSSES, IntraBatchRegularizer, ZeroShotRegularizer
from winnow.miners import MINERS
from winnow.models.config import ModelConfig, Section, make_section, present_names, section_of
from winnow.pooling import POOLINGS
from winnow.references import REFERENCES
from winnow.registry import ComponentSettings, Registry, rename_keys
from winnow.regularizers import REGULARIZERS

PLATEAU_FACTOR = 0.5
"""Factor of `train.schedule=plateau` without `plateau.factor`, as in the conventional protocols."""

REGISTRIES: dict[str, Registry[Any]] = {
    "pooling": POOLINGS,
    "loss": LOSSES,
    "references": REFERENCES,
    "miner": MINERS,
    "regularizer": REGULARIZERS,
}

KEY_SYNONYMS = {
    key: target
    for target, keys in {
        "augment.color_jitter": "jitter",
        "augment.hflip": "horizontal_flip",
        "augment.rand_augment": "aa auto_augment randaugment",
        "augment.random_erasing": "cutout erasing reprob",
        "augment.scale": "augmentation random_resized_crop",
        "backbone": "architecture arch encoder model model_name network timm",
        "backbone.train": "finetune fine_tune freeze freeze_backbone frozen unfreeze",
        "backbone.weights": "checkpoint ckpt pretrained",
        "data": "data_dir dataset folder images path train_dir",
        "data.test_fraction": "test_ratio test_size test_split",
        "data.val_fraction": "val_ratio val_size val_split validation_fraction validation_split",
        "dim": "embed_dim embedding_dim embedding_size embeddings out_dim output_dim",
        "image.crop": "crop_size image_size imgsz img_size input_size resolution",
        "loss": "criterion objective",
        "loss.margin": "margin",
        "miner": "miners triplet_mining",
        "pooling": "gap_pooling global_pool pool",
        "pooling.eps": "eps",
        "pooling.mu": "mu",
        "pooling.num_prototypes": "num_prototypes prototypes",
        "train.chunk_size": "accumulate_grad_batches grad_accumulation gradient_accumulation_steps grad_cache",
        "train.classes_per_batch": "batch batch_size bs",
        "train.device": "accelerator cuda device gpu",
        "train.eval_batch_size": "test_batch_size val_batch_size",
        "train.eval_steps": "eval_interval val_interval",
        "train.lr": "base_lr eta learning_rate lr",
        "train.max_grad_norm": "clip clip_grad clip_grad_norm grad_clip gradient_clip_val gradient_clipping max_norm",
        "train.max_steps": "iterations iters max_iter max_iters max_steps num_steps steps",
        "train.max_steps=N train.unit=epochs": "epoch epochs max_epochs n_epochs num_epochs",
        "train.optimizer": "optim",
        "train.patience": "early_stop early_stopping early_stopping_patience",
        "train.precision": "amp bf16 dtype fp16 mixed_precision",
        "train.samples_per_class": "images_per_class instances num_instances samples",
        "train.schedule": "lr_schedule lr_scheduler scheduler",
        "train.warmup_steps": "warmup warmup_iters",
        "train.weight_decay": "decay wd",
        "seed": "random_seed random_state",
    }.items()
    for key in keys.split()
}
"""Names that other tools use for config keys, and the keys that they mean."""


class DataConfig(Section):
    """Images, and the classes of each split."""

    shorthand: ClassVar[str | None] = "path"
    aliases: ClassVar[Mapping[str, str]] = {
        "val_share": "val_fraction",
        "test_share": "test_fraction",
        "folds": "num_folds",
        "features": "feature_cache",
        "cache": "image_cache",
        "on_error": "unreadable_images",
    }

    path: str = Field(
        "emoji",
        description="a folder of class folders or of MNIST's files, a CSV file (path,label[,split]), 'emoji', or the "
        "name of a benchmark dataset",
    )
    root: str | None = Field(None, description="folder of a benchmark dataset; default $WINNOW_DATA/NAME, or data/NAME")
    fold: int | None = Field(
        None,
        ge=1,
        description="fold of a benchmark dataset's training classes used for validation, 1 is the last; default the "
        "validation images of the dataset, or 1",
    )
    num_folds: int = Field(4, ge=2, description="number of folds of a benchmark dataset's training classes")
    train_classes: str | None = Field(None, description="training classes by position: '1-75' or '1-50,60'")
    val_classes: str | None = Field(
        None,
        description="validation classes by position; 'test' for the test classes, as in conventional protocols",
    )
    test_classes: str | None = Field(None, description="test classes by position")
    val_fraction: float = Field(0.15, description="fraction of the classes for validation if none are named")
    test_fraction: float = Field(0.25, description="fraction of the classes for testing if none are named")
    unreadable_images: Literal["raise", "skip"] = Field(
        "raise", description="action on an image that is missing or cannot be read"
    )
    image_cache: Literal["auto", "device", "ram", "none"] = Field("auto", description="storage of decoded images")
    fingerprint: Literal["ends", "contents"] = Field(
        "ends",
        description="what must be equal on resuming: 'ends' compares the size and both ends of each file, 'contents' "
        "all bytes",
    )
    feature_cache: Literal["auto", "ram", "disk"] = Field(
        "auto",
        description="storage of a frozen backbone's feature maps; later runs reuse those on disk; auto: disk for image "
        "files whose features take at most half of the cache",
    )


class AugmentConfig(Section):
    """Random crops for training; a frozen backbone sees only the center crop."""

    aliases: ClassVar[Mapping[str, str]] = {"area": "scale", "aspect": "ratio", "flip": "hflip"}

    resize: Annotated[int, Field(ge=1)] | Literal["original"] | None = Field(
        None,
        description="short side of the images that crops are cut from, in pixels; 'original': the size of the files, "
        "up to 1024; null: image.resize",
    )
    scale: tuple[float, float] = Field((0.16, 1.0), description="smallest and largest fraction of the image area")
    ratio: tuple[float, float] = Field((0.75, 4 / 3), description="smallest and largest width / height")
    hflip: bool = Field(True, description="flip half of the crops horizontally")
    rand_augment: int = Field(
        0, ge=0, le=30, description="magnitude of RandAugment, two operations on each crop; 0 for none, 9 is common"
    )
    color_jitter: float = Field(
        0.0, ge=0, le=1, description="largest relative change of brightness, contrast, and saturation; 0 for none"
    )
    random_erasing: float = Field(0.0, ge=0, le=1, description="probability that a box of the crop is erased")
    transform: str | None = Field(None, description="your own transform instead, as 'module:function'")


class ZSRConfig(Section):
    """Zero-shot regularization; requires a pooling with attributes."""

    shorthand: ClassVar[str | None] = "weight"
    aliases: ClassVar[Mapping[str, str]] = {"ridge": "ridge_alpha", "scale": "logit_scale"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = ZeroShotRegularizer.presets

    weight: float = Field(0.0, ge=0, lt=1, description="lambda in (1 - lambda) L + lambda ZSR; 0 disables the term")
    ridge_alpha: float = Field(0.05, gt=0, description="penalty of the ridge regression")
    logit_scale: float = Field(1.0, gt=0, description="factor on the logits")
    lr_multiplier: float = Field(1.0, ge=0, description="factor on the learning rate of the class embeddings")
    class_embeddings: Literal["own", "proxies"] = Field(
        "own", description="class embeddings: parameters of their own, or the proxies of the references"
    )


class LIBCConfig(Section):
    """Intra-batch connections: classification of embeddings after message passing."""

    shorthand: ClassVar[str | None] = "weight"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = IntraBatchRegularizer.presets

    weight: float = Field(0.0, ge=0, description="weight of the term next to the loss; 0 disables it")
    num_layers: int = Field(1, ge=1, description="layers of message passing")
    num_heads: int = Field(2, ge=1, description="heads of the attention; they divide dim")
    temperature: float = Field(0.2, gt=0, description="temperature of the classifier")
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="probability that a label spreads over all classes")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout in the layers")


class DistillConfig(Section):
    """Self-distillation: keep the similarities that averaged weights find within a batch."""

    shorthand: ClassVar[str | None] = "weight"

    weight: float = Field(0.0, ge=0, description="weight of the term next to the loss; 0 disables it")
    temperature: float = Field(0.1, gt=0, description="temperature of the similarities within a batch")
    decay: float = Field(0.999, ge=0, lt=1, description="decay of the averaged weights, which are the teacher")


class PlateauConfig(Section):
    """Reduction of the learning rate when `train.monitor` stops improving.

    Used with `train.schedule=plateau`.
    """

    shorthand: ClassVar[str | None] = "factor"
    aliases: ClassVar[Mapping[str, str]] = {"min_delta": "threshold"}

    factor: float = Field(1.0, gt=0, le=1, description="factor on the learning rate at each reduction; 1 keeps it")
    patience: int = Field(4, ge=1, description="validations without an improvement before a reduction")
    threshold: float = Field(1e-3, ge=0, description="smallest change that is an improvement")
    cooldown: int = Field(2, ge=0, description="validations after a reduction that are not counted")
    min_lr: float = Field(1e-6, ge=0, description="lower bound of the learning rate")


class TrainConfig(Section):
    """Optimization, validation, and device."""

    shorthand: ClassVar[str | None] = "max_steps"
    aliases: ClassVar[Mapping[str, str]] = {
        "steps": "max_steps",
        "eval_every": "eval_steps",
        "eval_batch": "eval_batch_size",
        "clip": "max_grad_norm",
        "start": "projection_init",
        "warm_up": "freeze_backbone_steps",
        "graph": "cuda_graph",
        "test": "run_test",
        "keep_embeddings": "save_embeddings",
    }
    value_aliases: ClassVar[Mapping[str, Mapping[str, str]]] = {"projection_init": {"principal": "pca"}}

    max_steps: int = Field(
        10_000, ge=1, description="upper limit of training steps; early stopping usually ends sooner"
    )
    sampler: Literal["classes", "random"] = Field(
        "classes",
        description="batches of classes_per_batch classes with samples_per_class images each, or of batch_size random "
        "images",
    )
    classes_per_batch: int = Field(8, ge=2, description="classes in a batch")
    samples_per_class: int = Field(4, ge=1, description="images of each class in a batch")
    batch_size: int | None = Field(
        None, ge=1, description="(sampler=random) images in a batch; default classes_per_batch * samples_per_class"
    )
    chunk_size: int | None = Field(
        None,
        ge=1,
        description="images embedded at a time; larger batches take two passes with the memory of one chunk and the "
        "same gradient; default the whole batch",
    )
    lr: float | None = Field(
        None, gt=0, description="learning rate; default 1e-5 for fine-tuning, 1e-4 with a frozen backbone"
    )
    projection_init: Literal["pca", "random"] = Field(
        "pca",
        description="initial projection: principal components of the training images' features, or random",
    )
    lr_multipliers: dict[str, NonNegativeFloat] = Field(
        {}, description="factors on the learning rate by parameter name pattern, such as {'*.prototypes': 10}"
    )
    schedule: Literal["constant", "plateau", "step", "cosine"] = Field(
        "constant",
        description="learning rate over the run: 'plateau' lowers it when validation stalls (plateau.*), 'step' at "
        "train.milestones, 'cosine' to 0 at train.max_steps",
    )
    warmup_steps: int = Field(0, ge=0, description="first steps, in which the learning rate rises linearly")
    milestones: int | list[int] = Field(
        [],
        description="(schedule=step) steps at which train.step_factor multiplies the learning rate; one number n: "
        "every n steps",
    )
    step_factor: float = Field(0.5, gt=0, le=1, description="(schedule=step) factor on the learning rate")
    unit: Literal["steps", "epochs"] = Field(
        "steps",
        description="unit of max_steps, freeze_backbone_steps, warmup_steps, and milestones; epochs are converted to "
        "steps when a run starts",
    )
    optimizer: Literal["adam", "adamw"] = Field(
        "adam", description="adamw decays the weights; adam adds an L2 penalty to the gradient"
    )
    freeze_backbone_steps: int = Field(
        0, ge=0, description="first steps with a frozen backbone, for components that start at random"
    )
    weight_decay: float = Field(1e-4, ge=0, description="L2 penalty with adam, decay as a fraction of lr with adamw")
    max_grad_norm: float = Field(10.0, gt=0, description="upper limit of the gradient norm over all parameters")
    average: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="decay of the average of all weights that is validated and saved in place of the weights; 0 for "
        "none; default 0.998 for fine-tuning, 0 with a frozen backbone",
    )
    eval_steps: int | None = Field(
        None,
        ge=1,
        description="steps between validations, each with a checkpoint; default one epoch, at least 10 and, unless "
        "train.unit=epochs, at most 100",
    )
    monitor: Literal["MAP@R", "P@1"] = Field(
        "MAP@R", description="validation metric that selects the best weights and stops training"
    )
    select_weights: Literal["best", "last"] = Field(
        "best",
        description="weights that are tested and saved: of the best validation, or of train.max_steps, which training "
        "then reaches without early stopping",
    )
    patience: int = Field(
        15, ge=1, description="validations without an improvement that stop training; the one before the first step "
        "does not count",
    )  # fmt: skip
    precision: Literal["32-true", "16-mixed", "bf16-mixed", "64-true"] = Field(
        "32-true", description="floating-point precision"
    )
    cuda_graph: bool | None = Field(
        None, description="replay steps from a CUDA graph; default on a GPU, except with 16-mixed"
    )
    compile: bool = Field(False, description="compile the backbone for training: minutes at the start, faster steps")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="device; auto uses a GPU if there is one")
    eval_batch_size: int = Field(128, ge=1, description="images embedded at a time in validation")
    run_test: bool = Field(
        True, description="evaluate the test classes at the end; a search for settings does not use them"
    )
    test_curve: bool = Field(
        False,
        description="also evaluate the test classes at every validation, for curves in research; selection and "
        "training never use them",
    )
    save_embeddings: bool = Field(
        False, description="save the embeddings of the test images in the run folder, to evaluate ensembles later"
    )
    tensorboard: bool = Field(False, description="write TensorBoard logs (requires the tensorboard extra)")

    @property
    def images_per_batch(self) -> int:
        """Number of images in a batch."""
        return self.batch_size or self.classes_per_batch * self.samples_per_class

    def takes_two_passes(self, processes: int) -> bool:
        """Return whether the slice of a batch of any process is larger than `chunk_size`."""
        return self.chunk_size is not None and self.chunk_size < -(-self.images_per_batch // processes)

    @model_validator(mode="after")
    def _match_sampler(self) -> TrainConfig:
        if self.batch_size is not None and self.sampler == "classes":
            raise ConfigError(
                "train.batch_size: no effect with train.sampler=classes. Set train.sampler=random, or "
                "train.classes_per_batch and train.samples_per_class."
            )
        return self


class RunConfig(ModelConfig):
    """All settings of a training run."""

    aliases: ClassVar[Mapping[str, str]] = {**ModelConfig.aliases, "centres": "regularizer", "mining": "miner"}
    synonyms: ClassVar[Mapping[str, str]] = KEY_SYNONYMS

    @classmethod
    def suggest(cls, key: str, known: Iterable[str]) -> str:
        """Return the key or component, such as `pooling=gem`, to suggest."""
        for kind, registry in REGISTRIES.items():
            if key in registry:
                return f"; did you mean '{kind}={key}'?"
        return super().suggest(key, known)

    recipe: str | None = Field(None, description="named settings that precede all others; `winnow recipes` lists them")
    data: DataConfig = Field(default_factory=DataConfig)
    augment: AugmentConfig = Field(default_factory=AugmentConfig)
    loss: Annotated[SerializeAsAny[ComponentSettings], BeforeValidator(LOSSES.resolve)] = Field(
        default_factory=lambda: LOSSES.resolve({}), description="metric learning loss: a name, and its settings"
    )
    references: Annotated[SerializeAsAny[ComponentSettings], BeforeValidator(REFERENCES.resolve)] = Field(
        default_factory=lambda: REFERENCES.resolve({}),
        description="embeddings that a batch is compared with: a name, and settings; default depends on the loss",
    )
    regularizer: Annotated[SerializeAsAny[ComponentSettings], BeforeValidator(REGULARIZERS.resolve)] = Field(
        default_factory=lambda: REGULARIZERS.resolve({}),
        description="penalty that pushes class centers apart: a name, and its settings",
    )
    miner: Annotated[SerializeAsAny[ComponentSettings], BeforeValidator(MINERS.resolve)] = Field(
        default_factory=lambda: MINERS.resolve({}),
        description="selection of the pairs that enter the loss: a name, and its settings",
    )
    zsr: ZSRConfig = Field(default_factory=ZSRConfig)
    libc: LIBCConfig = Field(default_factory=LIBCConfig)
    distill: DistillConfig = Field(default_factory=DistillConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    plateau: PlateauConfig = Field(default_factory=PlateauConfig)
    seed: int = Field(0, ge=0, lt=2**63, description="seed of splits, batches, and initialization")

    @model_validator(mode="before")
    @classmethod
    def _default_references(cls, tree: dict[str, Any]) -> dict[str, Any]:
        """Use the default references of the loss if none are named."""
        loss, references = tree.get("loss", {}), tree.get("references", {})
        if isinstance(loss, ComponentSettings):
            name: Any = loss.name
        else:
            name = loss.get("name", LOSSES.default) if isinstance(loss, Mapping) else loss
        if name in LOSSES and isinstance(references, Mapping) and "name" not in references:
            return {**tree, "references": {"name": LOSSES[name].default_references, **references}}
        return tree

    @model_validator(mode="after")
    def _match_schedule(self) -> RunConfig:
        """Let `plateau.factor` below 1 mean `train.schedule=plateau`.

        It did before other schedules existed.
        """
        train, plateau = self.train, self.plateau
        if train.schedule == "plateau" and plateau.factor == 1:
            if "factor" in plateau.model_fields_set:
                raise ConfigError(
                    "plateau.factor: 1 keeps the learning rate, expected less than 1 with train.schedule=plateau. "
                    "Lower it."
                )
            plateau.factor = PLATEAU_FACTOR
        elif train.schedule != "plateau" and plateau.factor < 1:
            if "schedule" in train.model_fields_set:
                raise ConfigError(
                    f"plateau.factor: {plateau.factor} has no effect with train.schedule={train.schedule}. Remove one "
                    "of both settings."
                )
            train.schedule = "plateau"
        return self


def make_config(tree: Mapping[str, Any]) -> RunConfig:
    """Build a config from nested mappings.

    Raises:
        ConfigError: If a key is unknown or a value has the wrong type.
    """
    return make_section(RunConfig, tree)


EARLIER_VALUES: Mapping[str, Mapping[str, Any]] = {
    "train": {"average": 0.0},
    "references=ccp": {"normalize_proxies": False, "lr_multiplier": 1.0},
}
"""Behavior before a setting existed, by section or component, where the default is another now."""


def read_recorded(tree: Mapping[str, Any]) -> RunConfig:
    """Build the config of a run from its record, which has the settings of the version that made it.

    A setting that is newer than the record has the value of `EARLIER_VALUES`, or else its default.

    Raises:
        ConfigError: If the run has a setting, or a value of one, that winnow no longer has.
    """
    known = present_names(RunConfig, tree)
    for place, values in EARLIER_VALUES.items():
        section, _, component = place.partition("=")
        recorded = known.get(section)
        if isinstance(recorded, Mapping) and component in ("", recorded.get("name")):
            present = rename_keys(recorded, REGISTRIES[section][component], f"{section}.") if component else recorded
            known[section] = {**values, **present}
    return make_config(known)


@dataclass(frozen=True)
class ConfigKey:
    """Config key with its default and meaning.

    Settings of a component exist only for this component.
    """

    name: str  # with its sections, such as "train.lr"
    default: Any
    meaning: str
    component: str = ""  # such as "pooling=gsp"


def config_keys() -> Iterator[ConfigKey]:
    """Yield every config key.

    Settings of components follow the key that names the component.
    """
    yield from _section_keys(RunConfig, "")


def _section_keys(section: type[Section], prefix: str) -> Iterator[ConfigKey]:
    if section.presets:
        yield ConfigKey(f"{prefix}preset", None, f"published settings for {', '.join(section.presets)}")
    for name, field in section.model_fields.items():
        inner = section_of(field)
        if inner is not None:
            yield from _section_keys(inner, f"{prefix}{name}.")
        elif name in REGISTRIES and not prefix:
            registry = REGISTRIES[name]
            yield ConfigKey(f"{name}.name", registry.default, f"{field.description}; one of {', '.join(registry)}")
            for component in registry:
                yield from _component_keys(name, component)
        else:
            choices = (
                f" (one of {', '.join(get_args(field.annotation))})" if get_origin(field.annotation) is Literal else ""
            )
            default = field.get_default(call_default_factory=True)
            yield ConfigKey(f"{prefix}{name}", default, f"{field.description}{choices}")


def _component_keys(kind: str, name: str) -> Iterator[ConfigKey]:
    registry = REGISTRIES[kind]
    if presets := registry.presets(name):
        yield ConfigKey(f"{kind}.preset", None, f"published settings for {', '.join(presets)}", f"{kind}={name}")
    for one in registry.parameters(name):
        yield ConfigKey(f"{kind}.{one.name}", one.default, one.meaning, f"{kind}={name}")


STORAGE_KEYS = ("data.feature_cache", "train.test_curve")
"""Keys that may differ between the sessions of a run, because its weights and result do not depend on them."""


def first_difference(requested: Mapping[str, Any], recorded: Mapping[str, Any]) -> str | None:
    """Return the first dotted key in which a recorded run differs, or None.

    The recorded settings are read through the present config, see `read_recorded`.

    Args:
        requested: Settings as nested mappings; a section may leave out keys that can have any value.
        recorded: All settings of the run.

    Returns:
        The key; None if all settings are equal.

    Raises:
        ConfigError: If the run has a setting, or a value of one, that winnow no longer has.
    """
    present = present_names(RunConfig, requested)
    for key, registry in REGISTRIES.items():
        section = present.get(key)
        if isinstance(section, Mapping) and section.get("name") in registry:
            present[key] = rename_keys(section, registry[section["name"]], f"{key}.")
    return _first_difference(RunConfig, present, read_recorded(recorded).model_dump(mode="json"), "")


def _first_difference(section: type[Section] | None, requested: Any, recorded: Any, key: str) -> str | None:
    if not (isinstance(requested, Mapping) and isinstance(recorded, Mapping)):
        return None if requested == recorded else key
    if section is not None and section.shorthand == "weight" and requested.get("weight") == recorded.get("weight") == 0:
        return None  # the other settings of a term without weight change no number
    # The settings of a component, and multipliers by pattern, are compared as a whole: an extra one is a difference.
    for name in requested if section is not None else {**requested, **recorded}:
        inner = section_of(section.model_fields[name]) if section is not None else None
        here = f"{key}.{name}" if key else str(name)
        if here in STORAGE_KEYS:
            continue
        found = _first_difference(inner, requested.get(name), recorded.get(name), here)
        if found is not None:
            return found
    return None
