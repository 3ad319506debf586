"""What average pooling does, on local features of a model in the plane and in the backbone's own space (chapter 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from winnow.data import ImageSet, MPerClassSampler, load_images
from winnow.data.emoji import load_emoji
from winnow.errors import ConfigError
from winnow.functional import AveragePooling, analyse_average_pooling, convex_hull
from winnow.losses import C2
from winnow.models import Embedder
from winnow.pooling.base import as_tokens
from winnow.report.style import INK, new_figure, styled
from winnow.studies.average_pooling_model import cifar_features, comparison
from winnow.studies.base import Findings, Row, Task, with_data, with_runs
from winnow.training import load_config
from winnow.training.features import frozen_inputs
from winnow.training.opening import make_crops
from winnow.training.prepare import resolve_config

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLASSES, PER_CLASS, PROTOTYPES = 10, 64, 48  # as in the documents
SOME = 16  # images of a class in small
INSIDE = "images in another class's hull, %"
COUNTS = (12, PROTOTYPES, 192)
WORDS = ["data=emoji", "backbone.train=frozen", "train.device=cpu", "dim=2", "pooling=gap"]


def pick_images(task: Task, per_class: int) -> ImageSet:
    """Return some images of the first classes: of the embedded set, or of the folder that was named."""
    whole = load_emoji(images_per_class=per_class).train if task.data is None else load_images(task.data)
    chosen = whole.of_classes(range(min(CLASSES, len(whole.class_names))))
    keep = [
        int(i) for label in range(len(chosen.class_names)) for i in np.flatnonzero(chosen.labels == label)[:per_class]
    ]
    return chosen.of_images(keep)


def local_features(images: ImageSet, words: Sequence[str]) -> Tensor:
    """Return a pretrained backbone's local features (N, n, C)."""
    config = resolve_config(load_config(None, list(words)))
    backbone = Embedder.create(config).backbone
    inputs, _ = frozen_inputs(backbone, images, make_crops(config), torch.device("cpu"))
    return as_tokens(inputs.whole())


def train_plane(features: Tensor, labels: Tensor, steps: int) -> Tensor:
    """Return local features (N, n, 2) in a plane in which average pooling with C2 tells the classes apart.

    The projection is linear, so that average pooling of what it makes is what it makes of the averages.
    """
    means = features.mean(dim=1)
    scale = means.std()
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(2, means.shape[1]) / means.shape[1] ** 0.5)
    optimizer = torch.optim.Adam([weight], lr=3e-3)
    loss = C2(positive_margin=0.0, negative_margin=0.5)
    loss.normalise = lambda vectors: vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1.0)
    own = labels.numpy()
    sampler = MPerClassSampler(own, min(CLASSES, int(own.max()) + 1), 4, seed=0)
    for step in range(steps):
        rows = torch.as_tensor(sampler.batch(step))
        value = loss(means[rows] / scale @ weight.mT, labels[rows])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return (features / scale) @ weight.detach().mT


@with_data(small=True, full=True)
@with_runs
def study(task: Task) -> Findings:
    """Average pooling as a convex combination of prototypes: the bound for every image, class hulls (Figs. 4.2-4.4).

    Cost: 1 minute; in full Cifar-10, 40 minutes on two cores, less on a GPU.
    """
    spaces, labels, where = small_features(task) if task.small else cifar_features(task, PER_CLASS)
    rows: list[dict[str, Any]] = []
    shown: AveragePooling | None = None
    for name, space in spaces.items():
        scaled = space / space.norm(dim=2).max()  # as in the documents: no feature is longer than one
        for count in COUNTS:
            task.note(f"{count} prototypes, {name}")
            found = analyse_average_pooling(scaled, labels, count)
            rows.append(row_of(name, scaled.shape[2], found))
            if (name, count) == ("plane", PROTOTYPES):
                shown = found
    assert shown is not None
    words = WORDS if task.small else list(comparison(task).words)
    settings = {"small": task.small, "classes": int(labels.max()) + 1, "images": len(labels), "words": words}
    return Findings("What average pooling does", told(rows, where), rows, draw(shown, labels), settings)


def small_features(task: Task) -> tuple[dict[str, Tensor], Tensor, str]:
    """Return local features (N, n, d) in a plane and in a pretrained backbone's own space, labels, and of what.

    Raises:
        ConfigError: for settings, since no run takes them here.
    """
    asked = [*task.words, *(["--methods"] if task.methods else []), *(["--seeds"] if task.seeds is not None else [])]
    if asked:
        raise ConfigError(f"{asked[0]}: settings are of the run that --full trains; leave them out")
    images = pick_images(task, SOME)
    task.note(f"local features of {len(images)} images")
    features, labels = local_features(images, WORDS), torch.from_numpy(images.labels)
    data = "The embedded set" if task.data is None else task.data.name
    where = f"{data} with a frozen pretrained backbone and a plane learned from its averages, {len(images)} images"
    return {"plane": train_plane(features, labels, 300), "backbone": features}, labels, where


def row_of(name: str, dim: int, found: AveragePooling) -> dict[str, Any]:
    """Return the table's row of one analysis."""
    errors = found.errors
    within = float((errors <= found.radius).double().mean())
    return {
        "space": name, "dim": dim, "prototypes": len(found.prototypes), "covering radius": round(found.radius, 4),
        "mean |PCC - GAP|": round(float(errors.mean()), 4), "largest |PCC - GAP|": round(float(errors.max()), 4),
        "images within the radius, %": 100 * within, "prototypes of several classes, %": round(100 * found.shared, 1),
        INSIDE: round(100 * float(found.overlap.mean()), 1),
    }  # fmt: skip


def told(rows: Sequence[Row], where: str) -> str:
    """Set the outcome beside Proposition 4.2.1 and the overlapping hulls of Fig. 4.3; `where` says on what."""
    holds = all(row["images within the radius, %"] == 100 for row in rows)
    worst = max(row["largest |PCC - GAP|"] / row["covering radius"] for row in rows)
    plane = next(row for row in rows if row["space"] == "plane" and row["prototypes"] == PROTOTYPES)
    inside, several = plane[INSIDE], plane["prototypes of several classes, %"]
    high = [row for row in rows if row["space"] == "backbone"]
    return (
        f"{where} (the documents: ResNet-20 on Cifar-10, {PER_CLASS} images of a class). "
        "Proposition 4.2.1: the mean of an image's local features (GAP) is within the covering radius of the "
        "combination of prototypes by its histogram (PCC). It holds here for "
        f"{'every image' if holds else 'not every image'}, in the plane and in the backbone's {high[0]['dim']} "
        f"dimensions, with {rows[0]['prototypes']} to {rows[-1]['prototypes']} prototypes by greedy k-centre; the "
        f"bound is loose: the largest distance is {100 * worst:.0f} % of the radius. This "
        f"{'agrees' if holds else 'does not agree'} with the documents. They also see class hulls that overlap because "
        f"classes share prototypes: in the plane {several:.0f} % of {PROTOTYPES} prototypes serve several classes, and "
        f"{inside:.0f} % of the images lie in the hull of another class's prototypes, which "
        f"{'agrees' if inside > 5 and several > 5 else 'does not agree'}. Among the backbone's own features that share "
        f"is {high[1][INSIDE]:.0f} %."
    )


@styled
def draw(found: AveragePooling, labels: Tensor) -> Figure:
    """Draw the plane: prototypes and images, hulls of classes, and how far averages are from combinations."""
    import matplotlib

    colours = matplotlib.colormaps["tab10"]
    figure = new_figure(7.6, 5.6)
    cover, hulls, pairs, errors = (figure.add_subplot(2, 2, place) for place in (1, 2, 3, 4))
    weight = found.histograms.mean(dim=0)
    cover.scatter(*xy(found.prototypes), s=10 + 600 * weight, color=INK, alpha=0.5, linewidths=0)
    cover.scatter(*xy(found.averages), c=labels % 10, cmap="tab10", s=4, linewidths=0)
    cover.set_title(f"{len(found.prototypes)} prototypes by use, and images")
    for label, used in enumerate(found.active):
        points = found.prototypes[used]
        corners = points[convex_hull(points)]
        hulls.fill(*xy(corners), color=colours(label % 10), alpha=0.15, linewidth=0)
        hulls.scatter(*xy(found.averages[labels == label]), color=colours(label % 10), s=4, linewidths=0)
    hulls.set_title("hulls of classes' prototypes")
    for image in range(0, len(labels), max(1, len(labels) // 40)):
        ends = torch.stack([found.averages[image], found.combinations[image]])
        pairs.plot(*xy(ends), color=colours(int(labels[image]) % 10), linewidth=1)
        pairs.scatter(*xy(ends[1:]), color=colours(int(labels[image]) % 10), s=12, marker="x", linewidths=1)
    pairs.set_title("from GAP to PCC (cross), some images")
    for axes in (cover, hulls, pairs):
        axes.set_xticks([])
        axes.set_yticks([])
        axes.grid(False)
    errors.hist(found.errors.numpy(), bins=30, color=colours(0))
    errors.axvline(found.radius, color=INK, linestyle=(0, (3, 3)))
    errors.set_xlim(0, 1.1 * found.radius)
    errors.set_xlabel("distance")
    errors.set_ylabel("images")
    errors.set_title("|PCC - GAP|; dashed: covering radius")
    return figure


def xy(points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two coordinates of points (n, 2)."""
    return points[:, 0], points[:, 1]
