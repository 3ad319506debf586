"""Evaluation protocols, their datasets and backbones, and the settings that a protocol leaves to its user."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, cast, get_args

from pydantic import Field

from winnow.data import load_images
from winnow.data.datasets import DATASETS as IMAGE_DATASETS
from winnow.data.datasets import fold_range
from winnow.errors import ConfigError, did_you_mean
from winnow.training.evaluation import KS
from winnow.training.overrides import Overrides
from winnow.training.results import Record

SAMPLES_PER_CLASS = 4
"""Images of each class in a batch."""


# Datasets


@dataclass(frozen=True)
class DatasetSpec:
    """A dataset, as protocols use it."""

    name: str
    title: str  # in tables
    preset: str | None = None  # name of the published settings of losses and references; None for a folder
    large: bool = False  # SOP and In-shop, which have longer intervals between validations
    memory: tuple[int, int] = (3, 25)  # batches of a small and of a large cross-batch memory
    path: str | None = None  # folder of class folders; None for a benchmark dataset

    def settings(self, protocol: ProtocolSpec, fold: int, root: str | None) -> Overrides:
        """Return the settings that select the classes of one fold.

        Args:
            protocol: Protocol whose `parts` divide the training classes.
            fold: Fold, from 1; fold f validates on the f-th part from the end.
            root: Folder of a benchmark dataset; None for the default.

        Raises:
            ConfigError: If a folder has too few classes.
        """
        if self.path is not None:
            return _folder_settings(self.path, protocol.parts, fold)
        split = (
            [f"data.fold={fold}", f"data.num_folds={protocol.parts}"] if protocol.parts else ["data.val_classes=test"]
        )
        return Overrides.parse(f"data={self.name}", *split, *([] if root is None else [f"data.root={root}"]))

    @property
    def ks(self) -> tuple[int, ...]:
        """Ranks k of the reported R@k."""
        return IMAGE_DATASETS[self.name].ks if self.path is None else KS


DATASETS = {
    "cub200": DatasetSpec("cub200", "CUB-200-2011", "cub"),
    "cars196": DatasetSpec("cars196", "Cars196", "cars"),
    "sop": DatasetSpec("sop", "Stanford Online Products", "sop", large=True, memory=(400, 1400)),
    "inshop": DatasetSpec("inshop", "In-shop", "inshop", large=True, memory=(100, 400)),
}
_SHORT_NAMES = {"cub": "cub200", "cars": "cars196"}


def find_dataset(name: str) -> DatasetSpec:
    """Return a benchmark dataset by its name, or a folder of class folders by its path.

    Raises:
        ConfigError: If it is neither.
    """
    known = DATASETS.get(_SHORT_NAMES.get(name, name))
    if known is not None:
        return known
    if Path(name).exists():
        title = Path(name).name or "data"
        return DatasetSpec(name=title, title=title, path=_normalized_path(name))
    hint = did_you_mean(name, [*DATASETS, *_SHORT_NAMES])
    raise ConfigError(f"dataset: unknown name '{name}'{hint} Available: {', '.join(DATASETS)}, or a folder.")


def _normalized_path(path: str) -> str:
    """Return one spelling of a path, so a rerun finds its runs: relative if it is below the working folder."""
    here = os.getcwd()
    return os.path.relpath(path, here) if Path(path).is_relative_to(here) else os.path.normpath(path)


def _folder_settings(path: str, parts: int, fold: int) -> Overrides:
    """Split a folder as the benchmark datasets are: the first half of its classes trains, the second half tests."""
    count = len(load_images(path).class_names)
    half = count // 2
    fewest = max(4, 4 * parts)
    if half < fewest // 2:
        raise ConfigError(f"{path}: expected at least {fewest} classes for this protocol, got {count}. Add classes.")
    test = f"data.test_classes={half + 1}-{count}"
    if parts == 0:
        return Overrides.parse(f"data.path={path}", f"data.train_classes=1-{half}", "data.val_classes=test", test)
    val = fold_range(half, fold, parts)
    around = [(1, val.start), (val.stop + 1, half)]
    train = ",".join(f"{first}-{last}" for first, last in around if first <= last)
    return Overrides.parse(
        f"data.path={path}", f"data.train_classes={train}", f"data.val_classes={val.start + 1}-{val.stop}", test
    )


# Backbones


@dataclass(frozen=True)
class BackboneSpec:
    """A backbone of the published tables."""

    name: str
    title: str  # in tables
    settings: Overrides
    classes_per_batch: int  # in the conventional protocol
    weight_decay: float  # in the conventional protocol


BACKBONES = {
    "resnet50": BackboneSpec(
        "resnet50", "ResNet-50",
        Overrides.parse("backbone=resnet50_v1", "backbone.weights=data/resnet50_v1_imagenet_fp16.pth"), 28, 4e-4,
    ),
    "bn_inception": BackboneSpec(
        "bn_inception", "BN-Inception",
        Overrides.parse("backbone=bn_inception", "backbone.weights=data/bn_inception-52deb4733.pth"), 32, 1e-4,
    ),
}  # fmt: skip


def find_backbone(name: str) -> BackboneSpec:
    """Return a backbone by its name.

    Raises:
        ConfigError: If the name is unknown.
    """
    if name not in BACKBONES:
        hint = did_you_mean(name, BACKBONES)
        raise ConfigError(f"backbone: unknown name '{name}'{hint} Available: {', '.join(BACKBONES)}.")
    return BACKBONES[name]


# Protocols


class BySize(NamedTuple):
    """A number for small and for large datasets."""

    small: int
    large: int

    def of(self, dataset: DatasetSpec) -> int:
        """Return the number for a dataset."""
        return self.large if dataset.large else self.small


class ProtocolSpec(Record):
    """A protocol: how classes are split, how long runs train, and what is reported."""

    name: str
    about: str  # in a sentence
    parts: int  # equal parts of the training classes, one of which validates; 0: the test classes validate
    folds: int = Field(alias="models")  # number of parts that validate a model, counted from the last
    runs: int  # of each fold
    dim: int  # of the embedding
    eval_steps: BySize = Field(alias="every")
    patience: BySize  # validations without a gain
    split: Literal["test", "val"] = Field(alias="judged")  # the reported one
    report: Literal["ensembles", "best", "mean"]  # how runs become a row of the table
    normalize: Literal["unit", "ball"] = Field("unit", alias="normalise")
    chapter: Literal[3, 5] = 5  # of [Thesis]: two chapters have a fair and a conventional protocol

    @property
    def selects_on_test(self) -> bool:
        """Whether the best weights are selected on the test classes."""
        return self.parts == 0

    def recipe_settings(self, backbone: BackboneSpec) -> Overrides:
        """Return the settings that replace those of a recipe: the network, the embedding size, and what is tested."""
        return backbone.settings | Overrides.parse(f"dim={self.dim}", *self._tested())

    def _tested(self) -> list[str]:
        """Return the settings of validation and test that all methods and recipes share."""
        if self.selects_on_test:
            return ["train.monitor=P@1"]
        if self.report == "ensembles":
            return ["train.save_embeddings=true", "train.test_curve=true"]
        return ["train.run_test=false"]

    def settings(self, dataset: DatasetSpec, backbone: BackboneSpec) -> Overrides:
        """Return the settings of all methods."""
        shared = [
            "backbone.train=full", "backbone.freeze_batch_norm=true", "image.resize=256", "image.crop=227",
            f"dim={self.dim}", f"normalize={self.normalize}",
            # Early stopping ends training. The published numbers are of weights, not of their average.
            "train.max_steps=1000000", "train.projection_init=random", "train.optimizer=adam", "train.average=0",
            f"train.samples_per_class={SAMPLES_PER_CLASS}",
            f"train.eval_steps={self.eval_steps.of(dataset)}", f"train.patience={self.patience.of(dataset)}",
        ]  # fmt: skip
        if self.selects_on_test:
            # Cars196 as the text of [Thesis]; the authors' code has 1e-5 there too.
            lr = 1e-5 if dataset.preset in ("cub", None) else 1e-4
            shared += [
                f"train.lr={lr}", f"train.weight_decay={backbone.weight_decay}", *self._tested(),
                f"train.classes_per_batch={backbone.classes_per_batch}", "plateau=0.5", "plateau.patience=4",
                "plateau.threshold=1e-3", "plateau.cooldown=2", "plateau.min_lr=1e-6",
            ]  # fmt: skip
        else:
            shared += ["train.lr=1e-5", "train.weight_decay=1e-4", "train.classes_per_batch=8", *self._tested()]
        return backbone.settings | Overrides.parse(*shared)


FAIR = ProtocolSpec(
    name="fair",
    about="four models, each validated on another quarter of the training classes, alone and concatenated",
    parts=4, folds=4, runs=3, dim=128, eval_steps=BySize(100, 1000), patience=BySize(15, 10), split="test",
    report="ensembles", normalize="unit", chapter=5,
)  # fmt: skip
FAIR_3 = FAIR.model_copy(
    update={
        "about": "the fair protocol with the schedule and normalization of [Thesis], chapter 3",
        "eval_steps": BySize(25, 250), "patience": BySize(60, 60), "normalize": "ball", "chapter": 3,
    }
)  # fmt: skip
CONVENTIONAL = ProtocolSpec(
    name="conventional",
    about="one model on all training classes, selected on the test classes; the best of three",
    parts=0, folds=1, runs=3, dim=512, eval_steps=BySize(25, 250), patience=BySize(15, 10), split="test",
    report="best", normalize="unit", chapter=5,
)  # fmt: skip
CONVENTIONAL_3 = CONVENTIONAL.model_copy(
    update={
        "about": "the conventional protocol with the normalization of [Thesis], chapter 3",
        "normalize": "ball", "chapter": 3,
    }
)  # fmt: skip
TUNING = ProtocolSpec(
    name="tuning",
    about="one model on four fifths of the training classes, evaluated on the last fifth; mean of three",
    parts=5, folds=1, runs=3, dim=128, eval_steps=BySize(100, 1000), patience=BySize(10, 7), split="val",
    report="mean", normalize="unit", chapter=5,
)  # fmt: skip
ABLATION = ProtocolSpec(
    name="ablation",
    about="one model on two thirds of the training classes, evaluated on the other third; mean of three",
    parts=3, folds=1, runs=3, dim=128, eval_steps=BySize(25, 250), patience=BySize(40, 40), split="val",
    report="mean", normalize="ball", chapter=3,
)  # fmt: skip

CHAPTER_3 = {protocol.name: protocol for protocol in (FAIR_3, CONVENTIONAL_3, ABLATION)}
PROTOCOLS = {protocol.name: protocol for protocol in (FAIR, CONVENTIONAL, TUNING, ABLATION)}


def find_protocol(name: str, chapter: int = 5) -> ProtocolSpec:
    """Return a protocol by its name and by the chapter of [Thesis] that runs it: 5 for GSP, 3 for CCP.

    Raises:
        ConfigError: If the name is unknown, or the chapter has no such protocol.
    """
    if name not in PROTOCOLS:
        raise ConfigError(
            f"protocol: unknown name '{name}'{did_you_mean(name, PROTOCOLS)} Available: {', '.join(PROTOCOLS)}."
        )
    if chapter not in (3, 5):
        raise ConfigError(f"chapter: expected 3 or 5, got {chapter}. Choose one of them.")
    if chapter == 3 and name not in CHAPTER_3:
        raise ConfigError(f"chapter: chapter 3 has no {name} protocol. Choose chapter 5, or: {', '.join(CHAPTER_3)}.")
    return CHAPTER_3[name] if chapter == 3 else PROTOCOLS[name]


def has_second_version(protocol: ProtocolSpec) -> bool:
    """Return whether a protocol is the version of chapter 3 of a protocol that chapter 5 has too."""
    return protocol.chapter != PROTOCOLS[protocol.name].chapter


# Budgets

Budget = Literal["early-stop", "fixed"]
"""How long runs train: to the early stop, whose best weights are reported, or a fixed number of steps."""
FIXED_STEPS = BySize(3_000, 30_000)
"""Steps of a fixed budget: about what fine-tuned runs take to their early stop."""
AVERAGE = 0.998
"""Decay of averaged weights in a fixed budget and in the control of CCP."""


def find_budget(name: str) -> Budget:
    """Return a budget by its name.

    Raises:
        ConfigError: If the name is unknown.
    """
    for budget in get_args(Budget):
        if budget == name:
            return cast(Budget, budget)
    known = get_args(Budget)
    raise ConfigError(f"--budget {name}: expected {' or '.join(known)}{did_you_mean(name, known)}")


def budget_settings(budget: Budget, dataset: DatasetSpec) -> Overrides:
    """Return the settings of a budget, which follow the protocol's.

    A fixed budget decays the learning rate to zero and takes the last weights, which are averaged.
    """
    if budget == "early-stop":
        return Overrides.parse("train.average=0")
    return Overrides.parse(
        "train.select_weights=last", f"train.max_steps={FIXED_STEPS.of(dataset)}", "train.schedule=cosine",
        "plateau.factor=1", f"train.average={AVERAGE}",
    )  # fmt: skip


# Settings that are left to the user

FIXED_KEYS = (
    "seed", "train.run_test", "train.save_embeddings", "data", "data.path", "data.root", "data.fold", "data.num_folds",
    "data.train_classes", "data.val_classes", "data.test_classes", "data.val_fraction", "data.test_fraction",
)  # fmt: skip
"""Config keys that define a protocol: which classes train, validate, and test, and what distinguishes its runs."""
METHOD_KEYS = tuple(f"{section}{end}" for section in ("loss", "pooling", "references") for end in ("", ".name"))
"""Config keys that define a method."""
RECIPE_KEY = "recipe"
"""Config key that starts a method which is a recipe, as in `recipe=proxy-anchor`."""


def check_overrides(overrides: Sequence[str], *, of_recipe: bool = False) -> None:
    """Check that no override sets what the protocol or the method's name sets.

    Args:
        overrides: Settings KEY=VALUE.
        of_recipe: Whether they belong to a recipe, whose components may be replaced, as in `recipe=common,loss=ms`.

    Raises:
        ConfigError: Naming the first that does.
    """
    for override in overrides:
        key = override.partition("=")[0]
        if key in FIXED_KEYS:
            raise ConfigError(f"{override}: the protocol sets {key} for every run. Remove the override.")
        if key in METHOD_KEYS and not of_recipe:
            raise ConfigError(f"{override}: the override changes the method. Name another method instead.")
        if any(fixed.startswith(f"{key}.") for fixed in FIXED_KEYS):  # a mapping, which may contain a fixed key
            raise ConfigError(f"{override}: expected single settings. Set each as {key}.NAME=VALUE.")


def backbone_of(overrides: Sequence[str]) -> str | None:
    """Return the backbone that overrides name instead of the protocol's; None without one."""
    named = [text.partition("=")[2] for text in overrides if text.startswith(("backbone=", "backbone.name="))]
    return named[-1] if named else None
