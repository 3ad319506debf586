"""Average pooling as a convex combination of prototypes, in a learned plane and in the space of the backbone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from winnow.data import ImageSet, MPerClassSampler, load_images
from winnow.data.emoji import load_emoji
from winnow.errors import ConfigError, DataError
from winnow.functional import AveragePooling, analyze_average_pooling, convex_hull
from winnow.losses import ContrastiveLoss
from winnow.models import Embedder
from winnow.pooling.base import as_tokens
from winnow.report.claims import exact
from winnow.report.style import INK, MUTED, new_figure, styled
from winnow.studies.artifacts import TrainedModel, open_trained
from winnow.studies.runner import StudyRun, plan_grid, train_grid
from winnow.studies.scores import Scores
from winnow.studies.settings import component, pooling, scales
from winnow.studies.spec import (
    Claim,
    DataNeed,
    Evidence,
    GridStudy,
    Measurement,
    Row,
    Scale,
    StudyRequest,
    Variant,
)
from winnow.studies.zero_shot import CIFAR10, locate_cifar10
from winnow.training import load_config
from winnow.training.build import load_splits, make_crops, resolve_config
from winnow.training.features import extract_features
from winnow.training.overrides import Overrides

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLASSES, PER_CLASS, PROTOTYPES = 10, 64, 48  # as published
COUNTS = (12, PROTOTYPES, 192)
QUICK_PER_CLASS, QUICK_STEPS = 16, 300
QUICK = Overrides.parse("data=emoji", "backbone.train=frozen", "train.device=cpu", "dim=2", "pooling=gap")
# The source states no loss and no margins. From random weights, all classes stay together with the margins for
# pretrained networks, hence the wide one. No vector is longer than one, as in the published figure.
PLANE = (
    pooling("gap")
    | component("loss", "c2", neg_margin=1.0)
    | Overrides({"backbone": {"weights": "random"}, "dim": 2, "normalize": "ball"})
)

# --- Local features ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LocalFeatures:
    """Local features of some images in two spaces."""

    spaces: Mapping[str, Tensor]  # name to features (N, n, d)
    labels: Tensor  # (N,)
    classes: Sequence[str]


def pick_images(request: StudyRequest, per_class: int) -> ImageSet:
    """Return some images of the first classes: of the bundled emoji, or of the requested folder."""
    everything = load_emoji(images_per_class=per_class).train if request.data is None else load_images(request.data)
    chosen = everything.select_classes(range(min(CLASSES, len(everything.class_names))))
    indices = [
        int(i) for label in range(len(chosen.class_names)) for i in np.flatnonzero(chosen.labels == label)[:per_class]
    ]
    return chosen.select(indices)


def backbone_features(images: ImageSet, settings: Overrides) -> Tensor:
    """Return the local features (N, n, C) of a pretrained backbone."""
    config = resolve_config(load_config(None, settings.to_args()))
    backbone = Embedder.create(config).backbone
    inputs, _ = extract_features(backbone, images, make_crops(config), torch.device("cpu"))
    return as_tokens(inputs.whole())


def train_plane(features: Tensor, labels: Tensor, steps: int) -> Tensor:
    """Return local features (N, n, 2) in a plane where average pooling with C2 separates the classes.

    The projection is linear, and therefore commutes with averaging.
    """
    means = features.mean(dim=1)
    scale = means.std()
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(2, means.shape[1]) / means.shape[1] ** 0.5)
    optimizer = torch.optim.Adam([weight], lr=3e-3)
    loss = ContrastiveLoss(pos_margin=0.0, neg_margin=0.5)
    loss.normalizer = lambda vectors: vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1.0)
    own = labels.numpy()
    sampler = MPerClassSampler(own, min(CLASSES, int(own.max()) + 1), 4, seed=0)
    for step in range(steps):
        rows = torch.as_tensor(sampler.batch(step))
        value = loss(means[rows] / scale @ weight.mT, labels[rows])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return (features / scale) @ weight.detach().mT


def quick_features(request: StudyRequest) -> LocalFeatures:
    """Return local features of a pretrained backbone, and their projections into a plane."""
    images = pick_images(request, QUICK_PER_CLASS)
    request.note(f"local features of {len(images)} images")
    features, labels = backbone_features(images, QUICK), torch.from_numpy(images.labels)
    spaces = {"plane": train_plane(features, labels, QUICK_STEPS), "backbone": features}
    return LocalFeatures(spaces, labels, images.class_names)


@torch.no_grad()
def trained_features(trained: TrainedModel, per_class: int) -> tuple[dict[str, Tensor], Tensor]:
    """Return local features of some test images of each class in both spaces, and the labels of the images."""
    labels = trained.inputs.labels
    chosen = [int(index) for label in np.unique(labels) for index in np.flatnonzero(labels == label)[:per_class]]
    maps = torch.cat([trained.features(chosen[start : start + 500]) for start in range(0, len(chosen), 500)])
    spaces = {"plane": trained.embedder.head.project(maps).cpu(), "backbone": as_tokens(maps).cpu()}
    return spaces, torch.from_numpy(labels[chosen])


# --- Analysis and claims ----------------------------------------------------------------------------------------------

RADIUS, LARGEST = "covering radius", "largest |PCC - GAP|"
SEVERAL, INSIDE = "prototypes of several classes, %", "images in another class's hull, %"
OVERLAP = 5  # percent of prototypes, and of images, that count as shared


def row_of(space: str, dim: int, found: AveragePooling) -> dict[str, Any]:
    """Return the row of one analysis; PCC is the combination of prototypes by the histogram of an image."""
    errors = found.errors
    within = float((errors <= found.radius).double().mean())
    return {
        "space": space, "dim": dim, "prototypes": len(found.prototypes), RADIUS: round(found.radius, 4),
        "mean |PCC - GAP|": round(float(errors.mean()), 4), LARGEST: round(float(errors.max()), 4),
        "images within the radius, %": 100 * within, SEVERAL: round(100 * found.shared, 1),
        INSIDE: round(100 * float(found.overlap.mean()), 1),
    }  # fmt: skip


def name_of(space: str, prototypes: int) -> str:
    """Return the name of a row for claims."""
    return f"{space}, {prototypes} prototypes"


def named(rows: Sequence[Row]) -> list[Row]:
    """Return rows under the names that claims use."""
    return [{"row": name_of(row["space"], row["prototypes"]), **row} for row in rows]


def _bounded(s: Scores) -> Evidence:
    names = [name_of(space, count) for space in ("plane", "backbone") for count in COUNTS]
    farthest = max(s.cell(name, LARGEST) / s.cell(name, RADIUS) for name in names)
    margin = 100 * (1 - farthest)  # nothing is random: the bound holds for every image
    return Evidence(f"at most {100 * farthest:.0f}% of the radius; below it by", margin, "percent", exact(margin))


def _overlap(s: Scores) -> Evidence:
    several, inside = (s.cell(name_of("plane", PROTOTYPES), column) for column in (SEVERAL, INSIDE))
    ours = f"{several:.0f}% of the prototypes, {inside:.0f}% of the images; the lower above {OVERLAP}% by"
    return Evidence(ours, min(several, inside) - OVERLAP, "percent")


# --- Study ------------------------------------------------------------------------------------------------------------

MODEL = Variant("GAP", Overrides())


@dataclass(frozen=True, kw_only=True)
class AveragePoolingStudy(GridStudy):
    """Analysis of the local features of one model: trained at the full size, pretrained at the quick one."""

    def measure(self, request: StudyRequest) -> Measurement:
        """Analyze average pooling in both spaces with several numbers of prototypes.

        Raises:
            ConfigError: If settings of runs are requested at the quick size.
            DataError: If the model is neither trained nor to be trained.
        """
        runs: list[StudyRun] = []
        if request.quick:
            _reject_settings(request)
            local, settings = quick_features(request), QUICK
        else:
            runs = train_grid(self, request)[MODEL.name]
            local, settings = self.open_model(request, runs), request.scale.base
        rows: list[dict[str, Any]] = []
        artifacts: dict[str, Any] = {}
        for space, features in local.spaces.items():
            scaled = features / features.norm(dim=2).max()  # as published: no feature is longer than one
            for count in COUNTS:
                request.note(f"{count} prototypes, {space}")
                found = analyze_average_pooling(scaled, local.labels, count)
                rows.append(row_of(space, scaled.shape[2], found))
                if (space, count) == ("plane", PROTOTYPES):
                    artifacts["plane"] = (found, scaled, local.labels, local.classes)
        count = int(local.labels.max()) + 1
        sizes = {"classes": count, "images": len(local.labels), "words": settings.to_args()}
        return Measurement(
            rows=rows, exact=named(rows), by_seed={0: named(rows)}, runs=[run.record() for run in runs],
            settings=sizes, artifacts=artifacts,
        )  # fmt: skip

    def open_model(self, request: StudyRequest, runs: Sequence[StudyRun]) -> LocalFeatures:
        """Return local features of the test images by the trained model."""
        if not runs:
            raise DataError(f"{request.runs}: no trained model. Train it first.")
        ((_, _, run),) = plan_grid(self, request)
        splits = load_splits(run.config, request.cache)
        assert splits.test is not None, "the dataset has test images"
        return LocalFeatures(
            *trained_features(open_trained(run, splits, request.cache), PER_CLASS), splits.test.class_names
        )

    def restore(self, content: Mapping[str, Any]) -> Measurement:
        """Return the measurement that a result file holds; artifacts are missing."""
        rows = named(content["rows"])
        return Measurement(
            rows=content["rows"], exact=rows, by_seed={0: rows}, runs=content.get("runs", ()),
            settings=content["settings"],
        )  # fmt: skip

    def figures(self, measured: Measurement) -> Mapping[str, Figure]:
        """Draw the plane; nothing where the features are missing."""
        return {"": draw(*measured.artifacts["plane"])} if measured.artifacts else {}


def _reject_settings(request: StudyRequest) -> None:
    """Check that nothing is requested of runs, of which the quick size has none."""
    seeds = [f"seed {seed}" for seed in request.seeds or ()]
    requested = [*request.overrides.to_args(), *request.variants, *seeds, *map(str, request.imports)]
    if requested:
        raise ConfigError(f"{requested[0]}: the quick size trains no runs. Leave it out, or choose the full size.")


_DETAILS = "prototypes are a greedy k-center selection of the local features, whose norms are at most 1"
AVERAGE_POOLING = AveragePoolingStudy(
    name="average-pooling", title="Average pooling as a combination of prototypes",
    measures="GAP as a mixture of prototypes", source="[Thesis], Fig. 4.2", group="Other",
    scales=scales(
        Scale("quick", QUICK, (0,), DataNeed("bundled emoji, or a folder of images"), "1 minute",
              f"Bundled emoji collages, frozen EfficientNet-Lite0 and a linear projection of its averages into the "
              f"plane, {QUICK_PER_CLASS} images of each of {CLASSES} classes; {_DETAILS}."),
        Scale("full", CIFAR10 | PLANE, (0,), DataNeed("CIFAR-10", prepare=locate_cifar10),
              "CIFAR-10, 40 minutes on two cores",
              "CIFAR-10 with a ResNet-20 that embeds in the plane by average pooling (C2, not pretrained), "
              f"{PER_CLASS} test images of each class; {_DETAILS}. [Thesis]: loss and margins are not stated."),
    ),
    variants=lambda scale: scale.pick(quick=(), full=(MODEL,)),
    claims=(
        Claim("Averages and combinations of prototypes differ by at most the covering radius",
              "[Thesis], Proposition 4.2.1", _bounded),
        Claim("Classes share prototypes, and their hulls overlap", "[Thesis], Fig. 4.3", _overlap),
    ),
)  # fmt: skip


# --- Figure -----------------------------------------------------------------------------------------------------------

DRAWN = 4000  # local features


@styled
def draw(found: AveragePooling, features: Tensor, labels: Tensor, classes: Sequence[str]) -> Figure:
    """Draw local features by prototype, hulls of classes, and the distances between averages and combinations.

    Args:
        found: Analysis of the images.
        features: (N, n, 2) local features.
        labels: (N,) classes of the images.
        classes: Names of the classes.
    """
    import matplotlib

    colors = matplotlib.colormaps["tab10"]
    figure = new_figure(7.6, 6.4)
    cover, hulls, pairs, errors = (figure.add_subplot(2, 2, number) for number in (1, 2, 3, 4))
    draw_cells(cover, features.flatten(0, 1), found.prototypes)
    for label, used in enumerate(found.active):
        points = found.prototypes[used]
        hulls.fill(*xy(points[convex_hull(points)]), color=colors(label % 10), alpha=0.15, linewidth=0)
        hulls.scatter(*xy(found.averages[labels == label]), color=colors(label % 10), s=4, linewidths=0,
                      label=classes[label])  # fmt: skip
    hulls.set_title("images (GAP), hulls of classes' prototypes")
    hulls.legend(fontsize=6.5, markerscale=2.5, loc="center left", bbox_to_anchor=(1.0, 0.5), handletextpad=0.1)
    for image in range(0, len(labels), max(1, len(labels) // 40)):
        line = torch.stack([found.averages[image], found.combinations[image]])
        pairs.plot(*xy(line), color=colors(int(labels[image]) % 10), linewidth=1)
        pairs.scatter(*xy(line[1:]), color=colors(int(labels[image]) % 10), s=12, marker="x", linewidths=1)
    pairs.set_title("from GAP to PCC (cross), some images")
    for axes in (cover, hulls, pairs):
        axes.set_aspect("equal", adjustable="datalim")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.grid(False)
    errors.hist(found.errors.numpy(), bins=30, color=colors(0))
    errors.axvline(found.radius, color=INK, linestyle=(0, (3, 3)))
    errors.set_xlim(0, 1.1 * found.radius)
    errors.set_xlabel("distance")
    errors.set_ylabel("images")
    errors.set_title("|PCC - GAP|; dashed: covering radius")
    return figure


def draw_cells(axes: Axes, points: Tensor, prototypes: Tensor) -> None:
    """Draw some of the points (P, 2) in colors of their nearest prototypes, and the prototypes."""
    some = points[:: max(1, len(points) // DRAWN)]
    nearest = torch.cdist(some, prototypes).argmin(dim=1)
    axes.scatter(*xy(some), c=nearest % 20, cmap="tab20", vmin=0, vmax=19, s=3, linewidths=0, rasterized=True)
    axes.scatter(*xy(prototypes), color=INK, s=9, linewidths=0, label="prototype")
    axes.scatter([], [], color=MUTED, s=9, linewidths=0, label="local feature, in the color of its nearest")
    axes.legend(fontsize=6.5, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2, handletextpad=0.1)
    axes.set_title(f"local features and {len(prototypes)} prototypes")


def xy(points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two coordinates of points (n, 2)."""
    return points[:, 0], points[:, 1]
