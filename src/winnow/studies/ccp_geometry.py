"""The geometry of unseen classes with the plain loss and through the problems of CCP (Fig. 3.3)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from winnow.functional import greedy_k_centre, pairwise_distance
from winnow.report.style import method_colours, new_figure, styled
from winnow.studies.base import Findings, Task, with_data, with_runs
from winnow.studies.ccp_sweeps import LOSSES, WHERE, ccp, compare, train
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import findings, verdict
from winnow.studies.tsne import tsne

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 20  # classes in the pictures
PLAIN, ONE, MANY = "C2", "C2, one problem", "C2 + CCP"
FEW = {ONE: 1, "C2, two problems": 2, "C2, three problems": 3}
RADIUS, APART = "covering radius", "inter-class distance"
Kept = Mapping[str, list[tuple[Tensor, Tensor]]]


def comparison(task: Task) -> Comparison:
    """Return C2 in the batch, with few problems and with CCP, which keep their test images' embeddings."""
    own = [*LOSSES[task.small]["C2"], "train.keep_embeddings=true"]
    words = {PLAIN: [], **{name: ccp(problems=count) for name, count in FEW.items()}, MANY: ccp()}
    return compare([Method(name, [*own, *extra], name) for name, extra in words.items()], task)


@with_data(small=False, full=True)
@with_runs
def study(task: Task) -> Findings:
    """Unseen classes in the plane (t-SNE), their covering radii and distances: C2, few problems, CCP (Fig. 3.3).

    Cost: 1 minute (10 runs); in full 15 runs on CUB-200-2011 and a GPU.
    """
    compared = comparison(task)
    found = train(compared, task)
    kept: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for method in compared.methods:
        folders = [compared.plan(method, seed, task).folder for seed in compared.seeds]
        kept[method.name] = [one.read_embeddings() for one in folders if one.is_finished]
    rows = compared.rows(found)
    for row in rows:
        each = [geometry(*one) for one in kept[row["method"]]]
        for key in (RADIUS, APART):
            row[key] = round(statistics.mean(one[key] for one in each), 4) if each else None
            row[f"{key} sd"] = round(statistics.stdev(one[key] for one in each), 4) if len(each) > 1 else None
        row["radius / distance"] = round(row[RADIUS] / row[APART], 4) if each else None
    where = f"{WHERE[task.small]}, C2; unit vectors of the test classes (the documents: of the validation classes)"
    text = f"{where}. {told({row['method']: row for row in rows})}"
    return findings(task, "ccp-geometry", "The geometry of unseen classes", text, compared, found, draw(kept), rows)


def geometry(embeddings: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the mean covering radius of the classes and the mean distance of images of different classes."""
    embeddings = embeddings.double()
    members = [embeddings[labels == label] for label in torch.unique(labels)]
    within = sum(pairwise_distance(own, own).sum() for own in members)
    between = pairwise_distance(embeddings, embeddings).sum() - within
    pairs = len(labels) ** 2 - sum(len(own) ** 2 for own in members)
    radius = torch.stack([radii(own).mean() for own in members]).mean()
    return {RADIUS: float(radius), APART: float(between / max(pairs, 1))}


def radii(points: Tensor) -> Tensor:
    r"""Return the covering radii of n points by 1, 2, ..., n of them: $\delta_k = \max_i \min_{c \le k} |x_i - x_c|$.

    The first is the one whose farthest point is nearest, the others follow by greedy k-centre.
    """
    distances = pairwise_distance(points, points)
    distances.fill_diagonal_(0.0)
    first = distances.amax(dim=1).argmin()[None]
    if len(points) == 1:
        return distances[0]
    order = torch.cat([first, greedy_k_centre(points, len(points) - 1, points[first])])
    return distances[order].cummin(dim=0).values.amax(dim=1)


def told(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Check: alternating problems, the more the better, reduce the radius and increase the distances."""
    if any(row[RADIUS] is None for row in rows.values()):
        return "Runs are missing, so that the claim cannot be checked yet."
    parts = [
        "The covering radius of a class is the mean over k of its radius around k of its n images, k = 1 to n, as in "
        "the documents, which say that alternating problems reduce it and increase the distances between classes, "
        f"where one problem generalises poorly. With CCP MAP@R is {rows[MANY]['MAP@R']:.2f}, the radius "
        f"{rows[MANY][RADIUS]:.3f} and the distance {rows[MANY][APART]:.3f}."
    ]
    deviate = {key: max(row[f"{key} sd"] or 0.0 for row in rows.values()) for key in (RADIUS, APART)}
    if any(deviate.values()):
        parts.append(f"Seeds deviate by up to {deviate[RADIUS]:.3f} and {deviate[APART]:.3f}.")
    for other, title in ((ONE, "one problem"), (PLAIN, "C2 alone")):
        row = rows[other]
        smaller, farther = row[RADIUS] - rows[MANY][RADIUS], rows[MANY][APART] - row[APART]
        better = rows[MANY]["radius / distance"] < row["radius / distance"]
        parts.append(
            f"With {title} they are {row['MAP@R']:.2f}, {row[RADIUS]:.3f} and {row[APART]:.3f}: that CCP's radius is "
            f"smaller {verdict(smaller, deviate[RADIUS])}, that its distances are larger "
            f"{verdict(farther, deviate[APART])}; beside the distance its radius is "
            f"{'smaller' if better else 'no smaller'} ({rows[MANY]['radius / distance']:.3f} after "
            f"{row['radius / distance']:.3f})."
        )
    first, *_, last = few = [rows[name] for name in FEW]
    radius, apart = (", ".join(f"{row[key]:.3f}" for row in few) for key in (RADIUS, APART))
    parts.append(
        "Their picture goes through three problems: after one, two and three, the last of them trained to the end, the "
        f"radius is {radius} and the distance {apart}; from the first to the third, that the radius falls "
        f"{verdict(first[RADIUS] - last[RADIUS], deviate[RADIUS])}, that the distance grows "
        f"{verdict(last[APART] - first[APART], deviate[APART])}."
    )
    return " ".join(parts)


@styled
def draw(kept: Kept) -> Figure:
    """Draw some classes of each method in the plane, and the classes' mean radius around k images."""
    shown = {name: runs[0] for name, runs in kept.items() if runs}
    across = min(len(shown) + 1, 3)
    down = -(-(len(shown) + 1) // across)
    figure = new_figure(2.9 * across, 2.9 * down)
    panels = figure.subplots(down, across, squeeze=False).ravel()
    *planes, curves = panels[: len(shown) + 1]
    for empty in panels[len(shown) + 1 :]:
        empty.set_axis_off()
    for axes, (name, (embeddings, labels)) in zip(planes, shown.items(), strict=True):
        some = labels < SHOWN
        axes.scatter(*tsne(embeddings[some]).T, c=labels[some], cmap="tab20", s=4, linewidths=0)
        axes.set_title(name)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.grid(False)
    for name, colour in method_colours(shown).items():
        embeddings, labels = shown[name]
        each = [radii(embeddings[labels == label].double()) for label in torch.unique(labels)]
        most = min(map(len, each))
        mean = torch.stack([one[:most] for one in each]).mean(dim=0)
        curves.plot(range(1, most + 1), mean, color=colour, label=name)
    curves.set_title("Mean covering radius")
    curves.set_xlabel("images that cover a class")
    if shown:
        curves.legend(fontsize=8)
    return figure
