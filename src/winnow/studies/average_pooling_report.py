"""What the study of average pooling tells: its table, its text and its picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from winnow.functional import AveragePooling, convex_hull
from winnow.report.style import INK, MUTED, new_figure, styled
from winnow.studies.base import Row, paragraphs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PER_CLASS, PROTOTYPES = 64, 48  # as in the documents
INSIDE = "images in another class's hull, %"
SHOWN = 4000  # local features that are drawn


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
    high = next(row["dim"] for row in rows if row["space"] == "backbone")
    stricter = (
        " which is stricter, as all radii are below 1," if all(row["covering radius"] < 1 for row in rows) else ""
    )
    claims = (
        "- Average pooling (GAP) is, within the covering radius, the combination of prototypes by an image's histogram "
        f"(PCC; Proposition 4.2.1): it holds for {'every image' if holds else 'not every image'}, in the plane and in "
        f"the backbone's {high} dimensions, with {rows[0]['prototypes']} to {rows[-1]['prototypes']} prototypes; the "
        f"largest distance is {100 * worst:.0f} % of the radius: {'agrees' if holds else 'does not agree'}.\n"
        f"- Class hulls overlap because classes share prototypes (Fig. 4.3): in the plane {several:.0f} % of "
        f"{PROTOTYPES} prototypes serve several classes, and {inside:.0f} % of the images lie in the hull of another "
        f"class's prototypes: {'agrees' if inside > 5 and several > 5 else 'does not agree'}."
    )
    how = (
        f"{where} (the documents: ResNet-20 on Cifar-10, {PER_CLASS} images of a class). Prototypes are picked by "
        "greedy k-centre among local features no longer than one. The Proposition bounds the square of the distance "
        f"by the radius; here the distance itself is held against it,{stricter} and follows from the triangle "
        f"inequality. Hulls are told of in the plane alone: in {high} dimensions the few prototypes that a class makes "
        "use of enclose next to no volume, so that no image is to be expected within."
    )
    return paragraphs(claims, how)


@styled
def draw(found: AveragePooling, features: Tensor, labels: Tensor, classes: Sequence[str]) -> Figure:
    """Draw the plane: local features by prototype, hulls of classes, and how far averages are from combinations.

    Args:
        found: What average pooling makes of the images.
        features: (N, n, 2) their local features.
        labels: (N,) their classes.
        classes: Names of these.
    """
    import matplotlib

    colours = matplotlib.colormaps["tab10"]
    figure = new_figure(7.6, 6.4)
    cover, hulls, pairs, errors = (figure.add_subplot(2, 2, place) for place in (1, 2, 3, 4))
    draw_partition(cover, features.flatten(0, 1), found.prototypes)
    for label, used in enumerate(found.active):
        points = found.prototypes[used]
        corners = points[convex_hull(points)]
        own = found.averages[labels == label]
        hulls.fill(*xy(corners), color=colours(label % 10), alpha=0.15, linewidth=0)
        hulls.scatter(*xy(own), color=colours(label % 10), s=4, linewidths=0, label=classes[label])
    hulls.set_title("images (GAP), hulls of classes' prototypes")
    hulls.legend(fontsize=6.5, markerscale=2.5, loc="center left", bbox_to_anchor=(1.0, 0.5), handletextpad=0.1)
    for image in range(0, len(labels), max(1, len(labels) // 40)):
        ends = torch.stack([found.averages[image], found.combinations[image]])
        pairs.plot(*xy(ends), color=colours(int(labels[image]) % 10), linewidth=1)
        pairs.scatter(*xy(ends[1:]), color=colours(int(labels[image]) % 10), s=12, marker="x", linewidths=1)
    pairs.set_title("from GAP to PCC (cross), some images")
    for axes in (cover, hulls, pairs):
        axes.set_aspect("equal", adjustable="datalim")
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


def draw_partition(axes: Axes, points: Tensor, prototypes: Tensor) -> None:
    """Draw some of the points (P, 2) in colours that change with the nearest prototype, and the prototypes."""
    some = points[:: max(1, len(points) // SHOWN)]
    nearest = torch.cdist(some, prototypes).argmin(dim=1)
    axes.scatter(*xy(some), c=nearest % 20, cmap="tab20", vmin=0, vmax=19, s=3, linewidths=0, rasterized=True)
    axes.scatter(*xy(prototypes), color=INK, s=9, linewidths=0, label="prototype")
    axes.scatter([], [], color=MUTED, s=9, linewidths=0, label="local feature, coloured by its nearest")
    axes.legend(fontsize=6.5, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2, handletextpad=0.1)
    axes.set_title(f"local features and {len(prototypes)} prototypes")


def xy(points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two coordinates of points (n, 2)."""
    return points[:, 0], points[:, 1]
