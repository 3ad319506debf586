"""The four protocols of the documents: how classes are cut, how long is trained, what is reported."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from winnow.errors import ConfigError, nearest
from winnow.protocols.sets import ProtocolSet

Report = Literal["ensembles", "best", "mean"]

SAMPLES = 4
"""Images of each class in a batch."""


@dataclass(frozen=True)
class Backbone:
    """A network of the documents' runs.

    Attributes:
        name: What it is called, also in the documents' tables as winnow keeps them.
        title: In tables.
        words: Its settings.
        batch: Classes of four images in a batch of the conventional protocol.
        weight_decay: Of the conventional protocol.
    """

    name: str
    title: str
    words: tuple[str, ...]
    batch: int
    weight_decay: float


BACKBONES = {
    "resnet50": Backbone(
        "resnet50", "ResNet-50",
        ("backbone=resnet50_v1", "backbone.weights=data/resnet50_v1_imagenet_fp16.pth"), 28, 4e-4,
    ),
    "bn_inception": Backbone(
        "bn_inception", "BN-Inception",
        ("backbone=bn_inception", "backbone.weights=data/bn_inception-52deb4733.pth"), 32, 1e-4,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Protocol:
    """A protocol.

    Attributes:
        name: What it is called.
        about: What it is, in a sentence.
        parts: Into how many the training classes are cut, one of which validates; 0: none is held back, and the test
            classes validate.
        models: How many of the parts get a model that is validated on them, counted from the last.
        runs: Runs of each model.
        dim: Size of the embedding.
        every: Steps between validations, on small and on large sets.
        patience: Validations without a gain, likewise.
        judged: Which split is reported.
        report: How runs become a row of the table.
        normalise: What is done to embeddings.
        chapter: Of the thesis; two have a fair and a conventional protocol.
    """

    name: str
    about: str
    parts: int
    models: int
    runs: int
    dim: int
    every: tuple[int, int]
    patience: tuple[int, int]
    judged: Literal["test", "val"]
    report: Report
    normalise: Literal["unit", "ball"] = "unit"
    chapter: Literal[3, 5] = 5

    @property
    def on_test(self) -> bool:
        """Whether weights are chosen on the test classes."""
        return self.parts == 0

    def epoch(self, target: ProtocolSet) -> int:
        """Return the steps between validations on a set, the documents' epoch."""
        return self.every[target.large]

    def words(self, target: ProtocolSet, backbone: Backbone) -> list[str]:
        """Return the settings that all methods share."""
        words = [
            *backbone.words, "backbone.train=full", "backbone.freeze_batch_norm=true",
            "image.resize=256", "image.crop=227", f"dim={self.dim}", f"normalize={self.normalise}",
            # Early stopping is what ends training.
            "train.max_steps=1000000", "train.projection_init=random", "train.optimizer=adam",
            f"train.samples_per_class={SAMPLES}",
            f"train.eval_steps={self.epoch(target)}", f"train.patience={self.patience[target.large]}",
        ]  # fmt: skip
        if self.on_test:
            # Cars196 by the text; the documents' code has 1e-5 there too.
            rate = 1e-5 if target.preset in ("cub", None) else 1e-4
            return [
                *words, f"train.lr={rate}", f"train.weight_decay={backbone.weight_decay}", "train.monitor=P@1",
                f"train.classes_per_batch={backbone.batch}", "plateau=0.5", "plateau.patience=4",
                "plateau.threshold=1e-3", "plateau.cooldown=2", "plateau.min_lr=1e-6",
            ]  # fmt: skip
        keep = ["train.save_embeddings=true" if self.report == "ensembles" else "train.run_test=false"]
        return [*words, "train.lr=1e-5", "train.weight_decay=1e-4", "train.classes_per_batch=8", *keep]


FAIR = Protocol(
    "fair", "four models, each validated on another quarter of the training classes, alone and joined",
    parts=4, models=4, runs=3, dim=128, every=(100, 1000), patience=(15, 10), judged="test", report="ensembles",
)  # fmt: skip
FAIR_3 = Protocol(
    "fair", "the fair protocol with the schedule and normalisation of the thesis' chapter 3",
    parts=4, models=4, runs=3, dim=128, every=(25, 250), patience=(60, 60), judged="test", report="ensembles",
    normalise="ball", chapter=3,
)  # fmt: skip
CONVENTIONAL = Protocol(
    "conventional", "one model on all training classes, its weights chosen on the test classes; the best of three",
    parts=0, models=1, runs=3, dim=512, every=(25, 250), patience=(15, 10), judged="test", report="best",
)  # fmt: skip
CONVENTIONAL_3 = replace(
    CONVENTIONAL, about="the conventional protocol with the normalisation of the thesis' chapter 3",
    normalise="ball", chapter=3,
)  # fmt: skip
TUNING = Protocol(
    "tuning", "one model on four fifths of the training classes, judged on the last fifth; the mean of three",
    parts=5, models=1, runs=3, dim=128, every=(100, 1000), patience=(10, 7), judged="val", report="mean",
)  # fmt: skip
ABLATION = Protocol(
    "ablation", "one model on two thirds of the training classes, judged on the last third; the mean of three",
    parts=3, models=1, runs=3, dim=128, every=(25, 250), patience=(40, 40), judged="val", report="mean",
    normalise="ball", chapter=3,
)  # fmt: skip

CHAPTER_3 = {protocol.name: protocol for protocol in (FAIR_3, CONVENTIONAL_3, ABLATION)}
PROTOCOLS = {protocol.name: protocol for protocol in (FAIR, CONVENTIONAL, TUNING, ABLATION)}


def is_other_chapter(protocol: Protocol) -> bool:
    """Whether a protocol is the one of that name which only `--chapter` asks for."""
    return protocol != PROTOCOLS[protocol.name]


def find_protocol(name: str, chapter: int = 5) -> Protocol:
    """Return a protocol by its name; the fair and the conventional one as chapter 5 or 3 of the thesis runs it.

    Raises:
        ConfigError: for an unknown name or a chapter without such a protocol.
    """
    if name not in PROTOCOLS:
        raise ConfigError(f"there is no protocol '{name}'{nearest(name, PROTOCOLS)}; known: {', '.join(PROTOCOLS)}")
    if chapter not in (3, 5):
        raise ConfigError(f"--chapter {chapter}: protocols are in chapters 3 and 5")
    if chapter == 3 and name not in CHAPTER_3:
        raise ConfigError(f"--chapter 3: the thesis' chapter 3 has no {name} protocol, but {', '.join(CHAPTER_3)}")
    return CHAPTER_3[name] if chapter == 3 else PROTOCOLS[name]


def find_backbone(name: str) -> Backbone:
    """Return a backbone by its name.

    Raises:
        ConfigError: for an unknown one.
    """
    if name not in BACKBONES:
        raise ConfigError(f"there is no backbone '{name}'{nearest(name, BACKBONES)}; known: {', '.join(BACKBONES)}")
    return BACKBONES[name]
