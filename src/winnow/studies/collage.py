"""Every pooling on Cifar Collage, where one cell of four gives the class (Fig. 5.5 and 5.12a)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from winnow.data.datasets import DATASETS, CIFARCollage
from winnow.data.datasets.cifar import CIFAR100_CLASSES
from winnow.studies.base import Findings, Task, with_data, with_runs
from winnow.studies.collage_pictures import draw, draw_heat_maps
from winnow.studies.collage_report import table, told
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import lacking, records
from winnow.studies.poolings import LARGE, LOSSES, every_pooling
from winnow.studies.pretraining import Recipe, pretrain, read_record
from winnow.studies.synthetic_images import write_cifar
from winnow.training.build import load_splits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The documents' settings: Adam 1e-3, batches of 16 x 4, no augmentation, batch norm that learns; GSP's m, mu and eps.
WORDS = [
    "backbone=resnet20", "backbone.freeze_batch_norm=false", "dim=128",
    "augment.scale=[1,1]", "augment.ratio=[1,1]", "augment.hflip=false",
    "train.classes_per_batch=16", "train.samples_per_class=4", "train.lr=1e-3", "train.eval_batch_size=1000",
    "plateau=0.5", "plateau.patience=5", "plateau.cooldown=0",
]  # fmt: skip
GSP = ["pooling.num_prototypes=64", "pooling.eps=10"]
ZSR = "zsr=0.5"

COLLAGES = ["data=cifar_collage", "image.resize=64", "image.crop=64"]
ALONE = ["data=cifar_collage_distilled", "image.resize=32", "image.crop=32"]
DISTILLED = "distilled (GAP)"
"""The upper bound: average pooling where the foreground image is all there is."""

TRAINING, ALL = "training classes", "all classes"
"""Which classes of Cifar-100 the backbone was taught to name: those that collages to train on are made of, or all."""

AT_ONCE = 6
"""Runs side by side on a GPU: what one core of the host can keep busy."""

# What is trained first, where there is no time for all.
FIRST = ("GAP", "GSP", "GSP + ZSR", DISTILLED, "NetVLAD 64x128", "NetVLAD 8x16", "ZSR alone (mu = 1)", "OTP 8x16",
         "DeLF", "GeMean", "GMP")  # fmt: skip

SHOWN = ("GAP", "GSP", "GSP + ZSR")
"""Poolings whose weights are drawn over collages."""


def _methods() -> dict[str, list[str]]:
    """Return the words of every pooling, and of the upper bound, the most important first."""
    words = every_pooling([*GSP, "pooling.mu=0.2"], background=[*GSP, "pooling.mu=0.8"]) | LARGE
    found = {name: [*COLLAGES, *its, *([ZSR] if "ZSR" in name else [])] for name, its in words.items()}
    found[DISTILLED] = [*ALONE, "pooling=gap"]
    return {name: found[name] for name in (*FIRST, *(other for other in found if other not in FIRST))}


METHODS = _methods()


@dataclass(frozen=True)
class Size:
    """How much is trained.

    Attributes:
        methods: Names in `METHODS`.
        seeds: Of every run.
        words: The schedule.
        recipe: Of the pretraining.
        made: Made-up training and test images of each class; None for Cifar-100 itself.
    """

    methods: Sequence[str]
    seeds: Sequence[int]
    words: Sequence[str]
    recipe: Recipe
    made: tuple[int, int] | None = None


# A pass over the collages to train on takes 300 steps. The rate is halved after 5 passes without a gain, so that runs
# must be given several times that.
FULL = Size(
    tuple(METHODS), (0, 1, 2),
    ["backbone.train=full", "train.max_steps=6000", "train.eval_steps=300", "train.patience=10"],
    Recipe(),
)  # fmt: skip
SMALL = Size(
    ("GAP", "GSP", "GSP + ZSR", DISTILLED), (0,),
    ["backbone.train=frozen", "train.max_steps=40", "train.eval_steps=20"],
    Recipe(epochs=4, batch=32, lr=0.05),
    made=(10, 2),
)  # fmt: skip


def weights_of(folder: Path) -> dict[str, Path]:
    """Return the files of pretrained weights."""
    return {name: folder / "pretrained" / f"{name.replace(' ', '-')}.safetensors" for name in (TRAINING, ALL)}


def comparison(size: Size, folder: Path, root: Path | None) -> Comparison:
    """Return the runs: both losses on the backbone that has seen no test class, then on the one that has seen all."""
    where = [] if root is None else [f"data.root={root}"]
    return Comparison(
        [
            Method(f"{name}, {loss}, {seen}", [*METHODS[name], *extra, f"backbone.weights={weights}"], group=loss)
            for seen, weights in weights_of(folder).items()
            for loss, extra in LOSSES.items()
            for name in size.methods
        ],
        size.seeds,
        words=[*WORDS, *size.words, *where],
    )


def pretrain_both(size: Size, folder: Path, root: Path | None, task: Task) -> None:
    """Make the weights that runs start from: of the training images of Cifar-100, judged on its test images."""
    cifar, collages = DATASETS["cifar100"].load(root), DATASETS["cifar_collage"]
    assert isinstance(collages, CIFARCollage)
    chosen = {TRAINING: collages.classes_of("train"), ALL: CIFAR100_CLASSES}
    for name, target in weights_of(folder).items():
        labels = [CIFAR100_CLASSES.index(one) for one in chosen[name]]
        pretrain(
            target, cifar.train.select_classes(labels), cifar.test.select_classes(labels), size.recipe, note=task.note
        )


@with_data(small=True, full=True)
@with_runs
def study(task: Task) -> Findings:
    """Every pooling on Cifar Collage with C2 and Proxy-NCA++, and what they look at (Fig. 5.5 and 5.12a).

    Cost: 1 minute, on made-up pictures; in full Cifar-100 and 288 runs of half a minute on an H200.
    """
    return run(task, SMALL if task.small else FULL)


def run(task: Task, size: Size) -> Findings:
    """Do the study in a size."""
    root = task.data
    if size.made is not None and root is None:
        root = task.runs / "cifar100"
        if not task.only_finished:
            write_cifar(root, train=size.made[0], test=size.made[1])
    if not task.only_finished:
        pretrain_both(size, task.runs, root, task)
    compared = comparison(size, task.runs, root)
    found = compared.train(task, at_once=AT_ONCE if torch.cuda.is_available() else None)
    records_of = {name: read_record(path) for name, path in weights_of(task.runs).items()}
    by_place = {(seen, loss): {name: found[f"{name}, {loss}, {seen}"] for name in size.methods}
                for seen in weights_of(task.runs) for loss in LOSSES}  # fmt: skip
    command = task.command("collage")
    made = size.made is not None and task.data is None
    return Findings(
        title="Poolings on collages of made-up pictures" if made else "Poolings on Cifar Collage",
        text=told(by_place, records_of, size.seeds, command, frozen="backbone.train=frozen" in size.words, made=made),
        rows=table(by_place, size.seeds),
        figure=draw(by_place, DISTILLED),
        settings={"small": task.small, "words": list(compared.words), "seeds": list(size.seeds)},
        details={
            "pretraining": records_of,
            "methods": compared.rows(found),
            "missing": {
                method.name: left for method in compared.methods if (left := lacking(size.seeds, found[method.name]))
            },
            "runs": records(found),
            "words": {method.name: list(method.words) for method in compared.methods},
        },
        pictures=_heat_maps(task, compared),
    )


def _heat_maps(task: Task, compared: Comparison) -> dict[str, Figure]:
    """Draw what models look at, where models and images are there."""
    models, config = {}, None
    for method in compared.methods:
        name = method.name.removesuffix(f", C2, {TRAINING}")
        if name in SHOWN:
            run = compared.plan(method, compared.seeds[0], task)
            if run.run_dir.is_finished and run.run_dir.model_folder.is_dir():
                models[name], config = run.run_dir.model_folder, run.config
    if config is None or not Path(config.data.root or DATASETS[config.data.path].default_root).is_dir():
        return {}
    splits = load_splits(config, task.shared)
    assert splits.test is not None, "the set has test classes"
    return {"heat_maps": draw_heat_maps(models, splits.train, splits.test)}
