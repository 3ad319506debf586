"""One validated config: every setting of a run, with its default and meaning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

from pydantic import BeforeValidator, Field, NonNegativeFloat, SerializeAsAny, model_validator

from winnow.centres import CENTRES
from winnow.losses import LOSSES
from winnow.mining import MINING
from winnow.models.config import ModelConfig, Section, make_section, section_of
from winnow.pooling import POOLINGS
from winnow.references import REFERENCES
from winnow.registry import PartSettings, Registry

REGISTRIES: dict[str, Registry[Any]] = {
    "pooling": POOLINGS,
    "loss": LOSSES,
    "references": REFERENCES,
    "mining": MINING,
    "centres": CENTRES,
}


class DataConfig(Section):
    """Which images, and which classes to learn from."""

    shorthand: ClassVar[str | None] = "path"

    path: str = Field(
        "emoji",
        description="a folder of class folders or of MNIST's files, a CSV (path,label[,split]), 'emoji', or the name "
        "of a benchmark set (`winnow datasets list`)",
    )
    root: str | None = Field(None, description="folder of a benchmark set; default $WINNOW_DATA/NAME, or data/NAME")
    fold: int | None = Field(
        None,
        ge=1,
        description="which part of a benchmark set's training classes validates, 1 the last; default the set's own "
        "validation images, or 1",
    )
    folds: int = Field(4, ge=2, description="into how many parts a benchmark set's training classes are cut")
    train_classes: str | None = Field(None, description="classes to train on, by position: '1-75' or '1-50,60'")
    val_classes: str | None = Field(
        None, description="classes to validate on, likewise; 'test' for those of the test, as conventional protocols do"
    )
    test_classes: str | None = Field(None, description="classes to test on, likewise")
    val_share: float = Field(0.15, description="share of the classes for validation where none are named")
    test_share: float = Field(0.25, description="share of the classes for testing where none are named")
    on_error: Literal["raise", "skip"] = Field("raise", description="what to do with an unreadable image")
    cache: Literal["auto", "device", "ram", "none"] = Field("auto", description="where decoded images are kept")
    features: Literal["ram", "disk"] = Field(
        "ram", description="where a frozen backbone's feature maps are kept; on disk they serve later runs too"
    )


class AugmentConfig(Section):
    """Random crops in training; a frozen backbone sees the centre crop alone."""

    resize: int | None = Field(
        None, ge=1, description="short side of the images that crops are cut from, in pixels; null: image.resize"
    )
    area: tuple[float, float] = Field((0.16, 1.0), description="smallest and largest share of the image's area")
    aspect: tuple[float, float] = Field((0.75, 4 / 3), description="smallest and largest width / height")
    flip: bool = Field(True, description="mirror half of the crops")
    transform: str | None = Field(None, description="a transform of your own instead, as 'module:function'")


class ZSRConfig(Section):
    """Zero-shot regularisation; needs a pooling with attributes."""

    shorthand: ClassVar[str | None] = "weight"

    weight: float = Field(0.0, ge=0, lt=1, description="lambda in (1 - lambda) L + lambda ZSR; 0 leaves it out")
    ridge: float = Field(0.05, gt=0, description="penalty of its regression")
    scale: float = Field(9.5, gt=0, description="factor on its logits")


class PlateauConfig(Section):
    """Lowering the learning rate when `train.monitor` stalls."""

    shorthand: ClassVar[str | None] = "factor"

    factor: float = Field(1.0, gt=0, le=1, description="factor on the learning rate each time; 1 leaves it as it is")
    patience: int = Field(4, ge=1, description="validations without a gain before the rate is lowered")
    min_delta: float = Field(1e-3, ge=0, description="smallest difference that is a gain")
    cooldown: int = Field(2, ge=0, description="validations after that which do not count")
    min_lr: float = Field(1e-6, ge=0, description="rate below which it is not lowered")


class TrainConfig(Section):
    """The schedule."""

    shorthand: ClassVar[str | None] = "steps"

    steps: int = Field(10_000, ge=1, description="most steps to take; early stopping usually ends training sooner")
    classes_per_batch: int = Field(8, ge=2, description="classes in a batch")
    samples_per_class: int = Field(4, ge=1, description="images of each class in a batch")
    lr: float | None = Field(
        None, gt=0, description="learning rate; default 1e-5 fine-tuning, 1e-4 with a frozen backbone"
    )
    start: Literal["principal", "random"] = Field(
        "principal",
        description="where the projection starts: principal directions of the training images' features, or at random",
    )
    lr_multipliers: dict[str, NonNegativeFloat] = Field(
        {}, description="factors on the learning rate by parameter name pattern, such as {'*.prototypes': 10}"
    )
    optimizer: Literal["adam", "adamw"] = Field(
        "adam", description="adamw shrinks the weights themselves where adam adds an L2 penalty to the gradient"
    )
    warm_up: int = Field(
        0, ge=0, description="first steps in which the backbone does not learn, for parts that start at random"
    )
    weight_decay: float = Field(1e-4, ge=0, description="L2 penalty with adam, share of lr to shrink by with adamw")
    clip: float = Field(10.0, gt=0, description="largest norm of the whole gradient")
    eval_every: int | None = Field(
        None,
        ge=1,
        description="steps between validations, with a checkpoint at each; default a pass over the images, 10 to 100",
    )
    monitor: Literal["MAP@R", "P@1"] = Field(
        "MAP@R", description="the metric of the validation that decides on the best weights and on when to stop"
    )
    patience: int = Field(
        15,
        ge=1,
        description="validations after the first step without a better value of it that end training",
    )
    precision: Literal["32-true", "16-mixed", "bf16-mixed", "64-true"] = Field("32-true", description="arithmetic")
    graph: bool | None = Field(
        None, description="replay steps from a CUDA graph; default on a GPU, but not with 16-mixed"
    )
    compile: bool = Field(False, description="compile the backbone for training: minutes at the start, faster steps")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where to compute; auto takes a GPU if any")
    eval_batch: int = Field(128, ge=1, description="images embedded at a time in validation")
    test: bool = Field(True, description="judge the test classes at the end; a search for settings leaves them alone")
    keep_embeddings: bool = Field(
        False, description="keep the test images' embeddings in the run folder, to judge models together later"
    )
    tensorboard: bool = Field(False, description="write TensorBoard logs too (needs the tensorboard extra)")


class Config(ModelConfig):
    """Everything that decides a training run."""

    data: DataConfig = Field(default_factory=DataConfig)
    augment: AugmentConfig = Field(default_factory=AugmentConfig)
    loss: Annotated[SerializeAsAny[PartSettings], BeforeValidator(LOSSES.resolve)] = Field(
        default_factory=lambda: LOSSES.resolve({}),
        description="the metric-learning loss: a name, and that loss's settings",
    )
    references: Annotated[SerializeAsAny[PartSettings], BeforeValidator(REFERENCES.resolve)] = Field(
        default_factory=lambda: REFERENCES.resolve({}),
        description="what a batch is compared with: a name, and settings of that source; default the loss's choice",
    )
    centres: Annotated[SerializeAsAny[PartSettings], BeforeValidator(CENTRES.resolve)] = Field(
        default_factory=lambda: CENTRES.resolve({}),
        description="a term that pushes the centres of classes apart: a name, and that regulariser's settings",
    )
    mining: Annotated[SerializeAsAny[PartSettings], BeforeValidator(MINING.resolve)] = Field(
        default_factory=lambda: MINING.resolve({}),
        description="which of its pairs a batch is judged by: a name, and settings of that choice",
    )
    zsr: ZSRConfig = Field(default_factory=ZSRConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    plateau: PlateauConfig = Field(default_factory=PlateauConfig)
    seed: int = Field(0, ge=0, lt=2**63, description="fixes everything that is drawn at random")

    @model_validator(mode="before")
    @classmethod
    def _name_references(cls, tree: dict[str, Any]) -> dict[str, Any]:
        """Where no references are named, take those the loss is made for."""
        loss, references = tree.get("loss", {}), tree.get("references", {})
        if isinstance(loss, PartSettings):
            name: Any = loss.name
        else:
            name = loss.get("name", LOSSES.default) if isinstance(loss, Mapping) else loss
        if name in LOSSES and isinstance(references, Mapping) and "name" not in references:
            return {**tree, "references": {"name": LOSSES[name].made_for, **references}}
        return tree


def make_config(tree: Mapping[str, Any]) -> Config:
    """Build a config from nested mappings, with errors that name the key."""
    return make_section(Config, tree)


def describe() -> Iterator[tuple[str, Any, str]]:
    """Yield every key with its default and meaning; settings of losses and poolings follow their name."""
    yield from _describe(Config, "")


def _describe(section: type[Section], prefix: str) -> Iterator[tuple[str, Any, str]]:
    for name, field in section.model_fields.items():
        inner = section_of(field)
        if inner is not None:
            yield from _describe(inner, f"{prefix}{name}.")
        elif name in REGISTRIES and not prefix:
            registry = REGISTRIES[name]
            yield f"{name}.name", registry.default, f"{field.description}; one of {', '.join(registry)}"
            for part in registry:
                if presets := registry.presets(part):
                    yield f"{name}.preset", None, f"({name}={part}) the documents' settings for {', '.join(presets)}"
                for p in registry.parameters(part):
                    yield f"{name}.{p.name}", p.default, f"({name}={part}) {p.meaning}"
        else:
            choices = (
                f" (one of {', '.join(get_args(field.annotation))})" if get_origin(field.annotation) is Literal else ""
            )
            yield f"{prefix}{name}", field.get_default(call_default_factory=True), f"{field.description}{choices}"
