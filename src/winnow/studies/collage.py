"""Every pooling on CIFAR Collage, where one cell of four determines the class."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from winnow.data import ImageSet
from winnow.data.datasets import DATASETS, CIFARCollage
from winnow.data.datasets.cifar import CIFAR100_CLASSES
from winnow.models import Embedder
from winnow.report.heatmaps import overlay
from winnow.report.style import INK, method_colors, new_figure, styled
from winnow.studies.figures import percents
from winnow.studies.pretraining import Recipe, pretrain, read_record
from winnow.studies.runner import Runs, grid_measurement, plan_grid, train_grid
from winnow.studies.scores import Scores
from winnow.studies.settings import (
    C2,
    GSP_ZSR,
    LARGE_POOLINGS,
    component,
    every_pooling,
    pooling,
    scales,
    train,
    zero_shot,
)
from winnow.studies.spec import (
    Claim,
    DataNeed,
    Evidence,
    GridStudy,
    Measurement,
    Scale,
    Size,
    StudyRequest,
    Variant,
)
from winnow.studies.synthetic_images import write_cifar
from winnow.training.build import load_splits
from winnow.training.overrides import Overrides

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# --- Settings ---------------------------------------------------------------------------------------------------------

# As published: Adam with 1e-3, batches of 16 x 4, no augmentation, batch norm that learns; m, mu, and eps of GSP.
BASE = Overrides.parse(
    "backbone=resnet20", "backbone.freeze_batch_norm=false", "dim=128", "augment.scale=[1,1]", "augment.ratio=[1,1]",
    "augment.hflip=false", "train.classes_per_batch=16", "train.samples_per_class=4", "train.lr=1e-3",
    "train.eval_batch_size=1000", "plateau=0.5", "plateau.patience=5", "plateau.cooldown=0",
)  # fmt: skip
GSP = Overrides({"pooling": {"num_prototypes": 64, "eps": 10}})
ZSR = zero_shot(0.5)
COLLAGES = Overrides.parse("data=cifar_collage", "image.resize=64", "image.crop=64")
ALONE = Overrides.parse("data=cifar_collage_distilled", "image.resize=32", "image.crop=32")
LOSSES = {"C2": C2["quick"], "PNCA": component("loss", "proxy_nca")}  # of one batch composition and one learning rate
DISTILLED = "distilled (GAP)"
"""Upper bound: average pooling of the foreground images alone."""

TRAINING, ALL = "training classes", "all classes"
"""Classes of CIFAR-100 that the backbone was pretrained to classify: the training classes of the collages, or all."""

FIRST = ("GAP", "GSP", GSP_ZSR, DISTILLED, "NetVLAD 64x128", "NetVLAD 8x16", "ZSR alone (mu = 1)", "OTP 8x16", "DeLF",
         "GeMean", "GMP")  # fmt: skip
"""Poolings that are trained first, where there is no time for all."""
QUICK = FIRST[:4]
SHOWN = ("GAP", "GSP", GSP_ZSR)
"""Poolings whose weights are drawn over collages."""
SYNTHETIC = (10, 2)  # training and test images per class
RECIPES: Mapping[Size, Recipe] = {"quick": Recipe(epochs=4, batch=32, lr=0.05), "full": Recipe()}


def settings_of_poolings() -> dict[str, Overrides]:
    """Return the settings of every pooling and of the upper bound, the most important first."""
    mu = {which: GSP | Overrides({"pooling": {"mu": value}}) for which, value in (("in", 0.2), ("out", 0.8))}
    every = every_pooling(mu["in"], background=mu["out"]) | LARGE_POOLINGS
    found = {name: COLLAGES | its | (ZSR if "ZSR" in name else Overrides()) for name, its in every.items()}
    found[DISTILLED] = ALONE | pooling("gap")
    return {name: found[name] for name in dict.fromkeys((*FIRST, *found))}


def place(loss: str, classes: str) -> str:
    """Return the name of a loss on a backbone."""
    return f"{loss}, {classes}"


PLACES = [place(loss, classes) for classes in (TRAINING, ALL) for loss in LOSSES]


def _variants(scale: Scale) -> Iterator[Variant]:
    every = settings_of_poolings()
    for classes in (TRAINING, ALL):
        for loss, its in LOSSES.items():
            for name in scale.pick(quick=QUICK, full=tuple(every)):
                yield Variant(f"{name}, {place(loss, classes)}", every[name] | its, place(loss, classes))


# --- Claims -----------------------------------------------------------------------------------------------------------

GAIN = 17
"""Published gain of GSP over average pooling, in points."""
FIGURE = "[Thesis], Fig. 5.5"


def _gain(where: str) -> Claim:
    def check(s: Scores) -> Evidence:
        ours, gap = s[f"GSP, {where}"], s[f"GAP, {where}"]
        return Evidence(f"{ours:.2f}, GAP {gap:.2f}", ours - gap)

    return Claim(f"{where}: GSP improves on GAP by {GAIN} points", FIGURE, check, size=GAIN)


def _first(where: str) -> Claim:
    own = ("GAP", "GSP", "ZSR", DISTILLED)
    exempt = ("NetVLAD",) if where.startswith("C2") else ()

    def check(s: Scores) -> Evidence:
        scores = {name.removesuffix(f", {where}"): score for name, score in s.group(where).items()}
        others = [name for name in scores if name not in own and not any(one in name for one in ("GSP", "ZSR"))]
        others = [name for name in others if not name.startswith(exempt)] if exempt else others
        best = max(others, key=scores.__getitem__)
        return Evidence(f"{scores['GSP']:.2f}, best other {best} {scores[best]:.2f}", scores["GSP"] - scores[best])

    return Claim(f"{where}: GSP improves on all other poolings{' except NetVLAD' if exempt else ''}", FIGURE, check)


# --- Data and pretrained weights --------------------------------------------------------------------------------------


def root_of(request: StudyRequest) -> Path | None:
    """Return the folder of CIFAR-100; None for its default location."""
    return request.runs / "cifar100" if request.quick and request.data is None else request.data


def _prepare(request: StudyRequest) -> Overrides:
    """Write synthetic images for the quick size, unless a folder is requested."""
    root = root_of(request)
    if root is not None and request.data is None and request.train:
        write_cifar(root, train=SYNTHETIC[0], test=SYNTHETIC[1])
    return Overrides() if root is None else Overrides({"data": {"root": str(root)}})


def weights_of(runs: Path) -> dict[str, Path]:
    """Return the files of the pretrained weights."""
    return {name: runs / "pretrained" / f"{name.replace(' ', '-')}.safetensors" for name in (TRAINING, ALL)}


def pretrain_both(request: StudyRequest, recipe: Recipe) -> None:
    """Pretrain both backbones on training images of CIFAR-100, and measure their accuracy on its test images."""
    cifar, collages = DATASETS["cifar100"].load(root_of(request)), DATASETS["cifar_collage"]
    assert isinstance(collages, CIFARCollage)
    chosen = {TRAINING: collages.classes_of("train"), ALL: CIFAR100_CLASSES}
    for name, target in weights_of(request.runs).items():
        labels = [CIFAR100_CLASSES.index(one) for one in chosen[name]]
        images = cifar.train.select_classes(labels), cifar.test.select_classes(labels)
        pretrain(target, *images, recipe, note=request.note)


# --- Study ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExplainedCollages:
    """Models, and the collages that they are applied to."""

    models: Mapping[str, Path]  # name to folder
    train: ImageSet
    test: ImageSet


@dataclass(frozen=True, kw_only=True)
class CollageStudy(GridStudy):
    """Grid over poolings, losses, and two pretrained backbones."""

    def located(self, request: StudyRequest) -> CollageStudy:
        """Return the study with the files of the pretrained weights in its variants."""
        weights = weights_of(request.runs)

        def variants(scale: Scale) -> Iterator[Variant]:
            for one in self.variants(scale):
                file = next(path for classes, path in weights.items() if one.name.endswith(classes))
                yield replace(one, settings=one.settings | Overrides({"backbone": {"weights": str(file)}}))

        return replace(self, variants=variants)

    def measure(self, request: StudyRequest) -> Measurement:
        """Pretrain the backbones, train the missing runs, and return the table."""
        located = self.located(request)
        if request.train:
            _prepare(request)
            pretrain_both(request, RECIPES[request.scale.name])
        found = train_grid(located, request)
        measured = grid_measurement(located, request.scale, found)
        details = {"pretraining": {name: read_record(path) for name, path in weights_of(request.runs).items()}}
        explained = self.explained(located, request, found)
        return replace(
            measured,
            details={**measured.details, **details},
            artifacts={**measured.artifacts, **({"explained": explained} if explained is not None else {})},
        )

    def explained(self, located: CollageStudy, request: StudyRequest, found: Runs) -> ExplainedCollages | None:
        """Return the models of the first seed whose weights are drawn; None without models or images."""
        plan = {(variant.name, seed): run for variant, seed, run in plan_grid(located, request)}
        models, config = {}, None
        for pooling_name in SHOWN:
            name = f"{pooling_name}, {place('C2', TRAINING)}"
            run = plan.get((name, request.scale.seeds[0]))
            if run is not None and found[name] and run.run_dir.is_finished and run.run_dir.model_folder.is_dir():
                models[pooling_name], config = run.run_dir.model_folder, run.config
        if config is None or not Path(config.data.root or DATASETS[config.data.path].default_root).is_dir():
            return None
        splits = load_splits(config, request.cache)
        assert splits.test is not None, "the dataset has test classes"
        return ExplainedCollages(models, splits.train, splits.test)

    def figures(self, measured: Measurement) -> Mapping[str, Figure]:
        """Draw the bars of all poolings and, where models exist, their weights over collages."""
        explained = measured.artifacts.get("explained")
        heat_maps = {} if explained is None else {"heat_maps": draw_heat_maps(explained)}
        return {"": draw(measured.artifacts["runs"]), **heat_maps}


_DETAILS = (
    "ResNet-20 pretrained on the training classes or on all classes of CIFAR-100; GSP with mu 0.2, eps 10, 64 "
    "prototypes, and ZSR weight 0.5 as published, the others with the parameters of their papers"
)
COLLAGE = CollageStudy(
    name="collage", title="Poolings on CIFAR Collage", measures="all poolings, CIFAR Collage",
    source="[Thesis], Fig. 5.5", group="Generalized Sum Pooling",
    scales=scales(
        Scale("quick", BASE | train(max_steps=40, eval_steps=20) | Overrides({"backbone": {"train": "frozen"}}), (0,),
              DataNeed("CIFAR-100 (synthetic by default)", prepare=_prepare), "1 minute, 16 runs",
              f"Collages of synthetic images in the files of CIFAR-100, frozen backbone, 40 steps; {_DETAILS}.",
              trial=True),
        Scale("full", BASE | train(max_steps=6000, eval_steps=300, patience=10)
              | Overrides({"backbone": {"train": "full"}}), (0, 1, 2), DataNeed("CIFAR-100", prepare=_prepare),
              "288 runs on CIFAR-100, a GPU",
              f"CIFAR Collage (2 x 2 images of CIFAR-100, one of which determines the class; classes are disjoint "
              f"between splits), at most 6000 steps; {_DETAILS}. [Thesis]: backbone pretrained on all classes, numbers "
              "in figures only."),
    ),
    variants=_variants, claims=(*map(_gain, PLACES), *map(_first, PLACES)),
)  # fmt: skip


# --- Figures ----------------------------------------------------------------------------------------------------------

ZOOM, EXAMPLES = 4, 4


@styled
def draw(found: Runs) -> Figure:
    """Draw MAP@R of every pooling: a panel per backbone, a bar per loss, and dashed lines at the upper bounds."""
    where = {one: [name.removesuffix(f", {one}") for name in found if name.endswith(f", {one}")] for one in PLACES}
    trained = {one: [name for name in names if found[f"{name}, {one}"]] for one, names in where.items()}
    shown = [name for name in where[PLACES[0]] if name != DISTILLED and any(name in one for one in trained.values())]
    losses = list(LOSSES)
    # A backbone without any run has no panel, unless none has one.
    backbones = [one for one in (TRAINING, ALL) if any(trained[place(loss, one)] for loss in losses)]
    backbones = backbones or [TRAINING, ALL]
    colors = method_colors(losses)
    figure = new_figure(8.0, 1.3 + 0.36 * len(shown))
    panels = figure.subplots(1, len(backbones), sharey=True, squeeze=False)[0]
    height = 0.8 / len(losses)
    for axes, classes in zip(panels, backbones, strict=True):
        for number, loss in enumerate(losses):
            for position, name in enumerate(shown):
                values = percents(found, f"{name}, {place(loss, classes)}", "MAP@R")
                if values:
                    at = position + (number - (len(losses) - 1) / 2) * height
                    axes.barh(at, statistics.mean(values), color=colors[loss], alpha=0.75, height=height)
                    axes.plot(values, [at] * len(values), ".", color=INK, markersize=2.5)
            bound = percents(found, f"{DISTILLED}, {place(loss, classes)}", "MAP@R")
            if bound:
                axes.axvline(statistics.mean(bound), color=colors[loss], linestyle=(0, (4, 3)), linewidth=1)
        axes.set_title(f"pretrained on {classes}")
        axes.set_xlabel("MAP@R on test classes (%)")
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", visible=True)
    panels[0].set_yticks(range(len(shown)), shown)
    panels[0].invert_yaxis()
    handles = [panels[0].barh(0, 0, color=colors[loss]) for loss in losses]
    figure.legend(handles, [f"{loss} (dashed: distilled)" for loss in losses], loc="outside lower center", ncols=2)
    return figure


@styled
def draw_heat_maps(explained: ExplainedCollages) -> Figure:
    """Draw the pooling weights of some training and test collages: a row per collage, a column per model."""
    splits = {"train": explained.train, "test": explained.test}
    picked = [(split, images.read(int(index))) for split, images in splits.items()
              for index in np.linspace(0, len(images) - 1, EXAMPLES).astype(int)]  # fmt: skip
    collages = [image for _, image in picked]
    columns: dict[str, Sequence[Image.Image]] = {"": [enlarge(image) for image in collages]}
    for name, folder in explained.models.items():
        columns[name] = [
            enlarge(one.image) if one.weights is None else overlay(enlarge(one.image), one.weights)
            for one in Embedder.from_pretrained(folder).explain(collages)
        ]
    figure = new_figure(1.4 * len(columns), 1.35 * len(collages))
    grid: Any = figure.subplots(len(collages), len(columns), squeeze=False)
    for row, (split, _) in enumerate(picked):
        for column, (name, images) in enumerate(columns.items()):
            axes = grid[row, column]
            axes.imshow(np.asarray(images[row]))
            axes.set_xticks([])
            axes.set_yticks([])
            axes.grid(False)
            axes.set_title(name if row == 0 else "", loc="center")
            axes.set_ylabel(split if column == 0 else "")
    return figure


def enlarge(image: Image.Image) -> Image.Image:
    """Return an image whose pixels are large enough to see."""
    return image.resize((ZOOM * image.width, ZOOM * image.height), Image.Resampling.NEAREST)
