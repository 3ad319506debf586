"""CCP's proof of concept: embeddings in the plane and their proxies, through the problems."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from winnow.data import Labels, MnistSet, read_mnist
from winnow.evaluation import retrieval_metrics
from winnow.functional import NORMALISE, covering_radius
from winnow.models import Embedder, Head
from winnow.models.backbone import Backbone
from winnow.models.resnet_cifar import ResNetCifar
from winnow.references import CCP
from winnow.report.style import MUTED, method_colours, new_figure, styled
from winnow.studies.base import Findings, Task
from winnow.training import Trainer, load_config
from winnow.training.inputs import PixelInputs
from winnow.training.judge import collect
from winnow.training.learner import build_learner
from winnow.training.prepare import resolve_config

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from winnow.training.config import Config

FOLDER = Path("/usr/share/datasets/fashion-mnist")  # of Debian's package dataset-fashion-mnist
CLASSES, PER_CLASS, POOL = 10, 4, 16
VALIDATION, SAMPLE = 1000, 2000  # training images held out, and those whose covering radius is measured

METHODS = {
    "CCP": ["references=ccp"],
    "one problem": ["references=ccp", "references.patience=1000000"],
    "samples": ["references=batch"],
}
"""The same proxies re-seeded, left alone, and none: the batch's samples in their place."""


class SmallNet(nn.Module):
    """Three strided convolutions: what two CPU cores train in a minute."""

    num_features, num_prefix_tokens = 64, 0

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the map (B, 64, 4, 4) of images (B, 3, 28, 28)."""
        features: Tensor = self.layers(images)
        return features


@dataclass(frozen=True)
class Solution:
    """What a problem came to, in the normalised plane.

    Attributes:
        points: (N, 2) embeddings of the sampled training images.
        converged: (C, K, 2) proxies at the problem's best validation; None without proxies.
        next: (C, K, 2) proxies that the next problem starts with; None for the last.
        test: MAP@R of the test images.
    """

    points: Tensor
    converged: Tensor | None
    next: Tensor | None
    test: float


def study(task: Task) -> Findings:
    """CCP on Fashion-MNIST or MNIST in two dimensions: embedding, proxies and covering radius through the problems."""
    folder = task.data or FOLDER
    train, test = read_mnist(folder, ["train"]), read_mnist(folder, ["t10k"])
    steps = 2000 if task.small else 6000
    rows: list[dict[str, Any]] = []
    solutions: dict[str, list[Solution]] = {}
    for method, words in METHODS.items():
        task.note(f"{method}: {steps} steps at most")
        config = make_config(words, steps)
        solutions[method], records = solve(config, train, test, small=task.small)
        rows += table(method, train.labels[:SAMPLE], solutions[method], records)
    settings = {
        "data": folder.name, "network": "small" if task.small else "resnet20", "proxies": PER_CLASS, "pool": POOL,
        "config": make_config(METHODS["CCP"], steps).model_dump(mode="json", exclude={"data", "image", "augment"}),
        "small": task.small,
    }  # fmt: skip
    title = f"CCP in two dimensions ({folder.name})"
    return Findings(title, told(rows), rows, draw(train.labels[:SAMPLE], solutions["CCP"], rows), settings)


def make_config(words: list[str], steps: int) -> Config:
    """Return a run's config: chapter 3's validations and normalisation, and C2 with room for ten classes."""
    ccp = [f"references.per_class={PER_CLASS}", f"references.pool={POOL}"] if words[0] == "references=ccp" else []
    base = [
        "pooling=gap", "dim=2", "normalise=ball", "loss=c2", "loss.negative_margin=0.5", "train.lr=1e-3",
        "train.classes_per_batch=10", "train.samples_per_class=8", "train.eval_every=25", "train.patience=60",
        f"train.steps={steps}", "train.eval_batch=500", "backbone.train=full", "backbone.freeze_batch_norm=false",
    ]  # fmt: skip
    return resolve_config(load_config(None, [*base, *words, *ccp]))


def solve(
    config: Config, train: MnistSet, test: MnistSet, *, small: bool
) -> tuple[list[Solution], list[dict[str, Any]]]:
    """Train a run; return what its problems came to and their records; without problems, what the run came to."""
    torch.manual_seed(config.seed)
    network = SmallNet() if small else ResNetCifar()
    backbone = Backbone(network, level=None, width=network.num_features, freeze_batch_norm=False)
    embedder = Embedder(backbone, Head(backbone.width, config.dim, config.pooling), config)
    learner = build_learner(config, embedder, CLASSES)
    pixels, labels = torch.from_numpy(train.pixels.copy()), train.labels
    fit = PixelInputs(pixels[:-VALIDATION], labels[:-VALIDATION], "training image")
    trainer = Trainer(config, learner, fit, PixelInputs(pixels[-VALIDATION:], labels[-VALIDATION:], "validation image"))
    normalise = NORMALISE[config.normalise]

    def embed(pixels: Tensor, labels: Labels) -> Tensor:
        return normalise(collect(embedder, PixelInputs(pixels, labels, ""), batch=500))

    def proxies() -> Tensor | None:
        references = learner.references
        if not isinstance(references, CCP):
            return None
        return normalise(references.proxies.detach().clone()).view(CLASSES, references.per_class, -1)

    best: list[dict[str, Tensor]] = []  # of each problem
    started: list[Tensor | None] = []
    seen: tuple[int, int] | None = None
    for _ in trainer.pieces():
        # A problem's best weights are in place when they have just become so, new proxies when a problem has begun.
        if trainer.problems is None or not trainer.problems.history:
            continue
        number, problem = len(trainer.problems.history), trainer.problems.history[-1]
        if number > len(started):
            started.append(proxies())
            best.append({})
        if problem.best_step and (number, problem.best_step) != seen:
            seen = (number, problem.best_step)
            best[-1] = {key: value.clone() for key, value in learner.state_dict().items()}
    solutions = []
    for number, state in enumerate(best or [trainer.best_state]):
        if not state:
            continue  # a problem that the run's end cut off before its first validation
        learner.load_state_dict(state)
        test_map = retrieval_metrics(embed(torch.from_numpy(test.pixels.copy()), test.labels), test.labels)["MAP@R"]
        following = started[number + 1] if number + 1 < len(started) else None
        solutions.append(Solution(embed(pixels[:SAMPLE], labels[:SAMPLE]), proxies(), following, test_map))
    records = [] if trainer.problems is None else trainer.problems.records()
    return solutions, records or [{"steps": trainer.progress.step, "best": trainer.progress.best}]


def table(
    method: str,
    labels: Labels,
    solutions: list[Solution],
    records: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return a row for each problem."""
    rows = []
    for number, (solution, record) in enumerate(zip(solutions, records, strict=False), 1):
        spread = None
        if solution.converged is not None:
            centre = solution.converged.mean(dim=1, keepdim=True)
            spread = float((solution.converged - centre).norm(dim=2).mean())
        rows.append({
            "method": method, "problem": number if len(solutions) > 1 else None, "steps": record["steps"],
            "validation MAP@R": record["best"], "test MAP@R": solution.test,
            "radius, converged": mean_radius(labels, solution.points, solution.converged),
            "radius, next": mean_radius(labels, solution.points, solution.next), "proxy spread": spread,
        })  # fmt: skip
    return rows


def mean_radius(labels: Labels, points: Tensor, proxies: Tensor | None) -> float | None:
    """Return the classes' mean covering radius of the sampled training images around their proxies."""
    if proxies is None:
        return None
    members = [points[torch.from_numpy(labels == label)] for label in range(CLASSES)]
    radii = [covering_radius(own, proxies[label]) for label, own in enumerate(members)]
    return float(torch.stack(radii).mean())


def told(rows: list[dict[str, Any]]) -> str:
    """Return the paragraph: what was done, and what came of the documents' claims."""
    ccp = [row for row in rows if row["method"] == "CCP"]
    one = next(row for row in rows if row["method"] == "one problem")
    samples = next(row for row in rows if row["method"] == "samples")
    final = max(ccp, key=lambda row: row["validation MAP@R"])
    first, last = ccp[0], ccp[-1]
    verb = "fell" if last["radius, converged"] < first["radius, converged"] else "did not fall"
    return (
        f"Two-dimensional embeddings, {PER_CLASS} proxies per class, pools of {POOL}, C2, chapter 3's normalisation. "
        f"CCP went through {len(ccp)} problems. The mean covering radius of {SAMPLE} training images around the "
        f"converged proxies {verb}: {first['radius, converged']:.3f} after the first problem, "
        f"{last['radius, converged']:.3f} after the last. Test MAP@R is {100 * first['test MAP@R']:.2f} % after "
        f"the first problem and {100 * final['test MAP@R']:.2f} % at the best validation; one problem trained on "
        f"without new proxies reaches {100 * one['test MAP@R']:.2f} % (radius {one['radius, converged']:.3f}, proxies "
        f"spread by {one['proxy spread']:.3f} around their class's mean, against {final['proxy spread']:.3f}), samples "
        f"of the batch in the place of proxies {100 * samples['test MAP@R']:.2f} %. One seed: differences of a point "
        "may be chance."
    )


@styled
def draw(labels: Labels, solutions: list[Solution], rows: list[dict[str, Any]]) -> Figure:
    """Draw the plane after some problems, and below it radii and MAP@R over all of them."""
    count = len(solutions)
    shown = sorted({0, min(1, count - 1), min(2, count - 1), count - 1})
    figure = new_figure(2.3 * len(shown) + 0.4, 4.9)
    grid = figure.add_gridspec(2, 2 * len(shown), height_ratios=[1.25, 1])
    for place, number in enumerate(shown):
        axes = figure.add_subplot(grid[0, 2 * place : 2 * place + 2])
        scatter(axes, labels, solutions[number])
        axes.set_title(f"after problem {number + 1}")
    ccp = [row for row in rows if row["method"] == "CCP"]
    left = figure.add_subplot(grid[1, : len(shown)])
    right = figure.add_subplot(grid[1, len(shown) :])
    slate, orange, blue = method_colours("123").values()
    problems = list(range(1, len(ccp) + 1))
    left.plot(problems, [row["radius, converged"] for row in ccp], "s-", color=orange, markersize=4, label="converged")
    left.plot(problems[:-1], [row["radius, next"] for row in ccp[:-1]], "o-", color=MUTED, markersize=4, label="next")
    left.set_title("Mean covering radius around proxies")
    left.set_ylim(bottom=0)
    for row, colour in ((row, slate) for row in rows if row["method"] == "one problem"):
        left.axhline(row["radius, converged"], color=colour, linestyle=(0, (3, 3)), label="one problem")
        right.axhline(100 * row["test MAP@R"], color=colour, linestyle=(0, (3, 3)), label="one problem")
    right.plot(problems, [100 * row["test MAP@R"] for row in ccp], "o-", color=blue, markersize=4, label="CCP")
    right.set_title("Test MAP@R, %")
    for axes in (left, right):
        axes.set_xlabel("problem")
        axes.legend(fontsize=7.5)
    return figure


def scatter(axes: Axes, labels: Labels, solution: Solution) -> None:
    """Draw a solution: dots are images, squares converged proxies, rings the next ones."""
    axes.scatter(*xy(solution.points), c=labels, cmap="tab10", s=2, alpha=0.35, linewidths=0, rasterized=True)
    own = np.repeat(np.arange(CLASSES), PER_CLASS)
    if solution.next is not None:
        axes.scatter(*xy(solution.next), c=own, cmap="tab10", s=16, marker="o", edgecolors="black", lw=0.6)
    if solution.converged is not None:
        axes.scatter(*xy(solution.converged), c=own, cmap="tab10", s=26, marker="s", edgecolors="white", lw=0.8)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)


def xy(points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two coordinates of points (..., 2)."""
    return points[..., 0].flatten(), points[..., 1].flatten()
