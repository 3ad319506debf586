"""CCP in two dimensions: embeddings and proxies through the problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from winnow.data import Labels
from winnow.evaluation import retrieval_metrics
from winnow.functional import NORMALIZERS, covering_radius, pairwise_distance
from winnow.models import Backbone, Embedder, Head
from winnow.studies.artifacts import StoredRun, require_run, solve_problems
from winnow.studies.scores import Scores, mean_rows
from winnow.studies.settings import NOTHING, RAW_PROXIES, component, pooling, train
from winnow.studies.spec import Claim, DataNeed, Evidence, Measurement, Row, Scale, Scales, Size, Study, StudyRequest
from winnow.studies.synthetic_images import GrayImages, load_gray_images
from winnow.training import Trainer, load_config
from winnow.training.build import resolve_config
from winnow.training.evaluation import embed as embed_inputs
from winnow.training.inputs import PixelInputs
from winnow.training.objective import build_objective
from winnow.training.overrides import Overrides

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from winnow.training.config import RunConfig

CLASSES, PER_CLASS, POOL = 10, 4, 16
IMAGES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "made": "synthetic images"}
"""Images by the name of their folder."""
SAMPLE = 2000  # training images whose covering radius is measured
VALIDATION = 1000  # training images held out

# --- Model and training -----------------------------------------------------------------------------------------------

BACKBONE = "resnetv2_20"
# Normalization and patience of [Thesis], chapter 3. The margin is wide and the learning rate high because the network
# is not pretrained: with the published margins, all classes stay together.
BASE = (
    pooling("gap") | component("loss", "c2", neg_margin=1.0) | Overrides({"dim": 2, "normalize": "ball"})
    | train(lr="3e-3", classes_per_batch=10, samples_per_class=4, eval_steps=50, patience=60, eval_batch_size=500)
    | train(average=0.0)
    | Overrides({"backbone": {"train": "full", "freeze_batch_norm": False}})
)  # fmt: skip
RESNET = Overrides({"backbone": {"name": BACKBONE, "weights": "random"}, "image": {"resize": 28, "crop": 28}})
CCP = component("references", "ccp", proxies_per_class=PER_CLASS, pool_size=POOL, **RAW_PROXIES)
SAMPLES = component("references", "batch")


class SmallNet(nn.Module):
    """Three strided convolutions, which two CPU cores train in a minute."""

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


def make_config(scale: Scale, settings: Overrides, seed: int) -> RunConfig:
    """Return the config of a run."""
    return resolve_config(load_config(None, [*(scale.base | settings).to_args(), f"seed={seed}"]))


def make_embedder(config: RunConfig) -> Embedder:
    """Return an embedder with random weights: with ResNetV2-20 if the config names it, else with a small network."""
    if config.backbone.name == BACKBONE:
        return Embedder.create(config, load_weights=False)
    network = SmallNet()
    backbone = Backbone(network, out_index=None, num_features=network.num_features, freeze_batch_norm=False)
    return Embedder(backbone, Head(backbone.num_features, config.dim, config.pooling, norm=config.head), config)


@dataclass(frozen=True)
class Solution:
    """Solution of a problem in the normalized plane."""

    points: Tensor  # (N, 2) embeddings of the sampled training images
    converged: Tensor | None  # (C, K, 2) proxies at the best validation; None without proxies
    next: Tensor | None  # (C, K, 2) first proxies of the next problem; None for the last
    test: float  # MAP@R of the test images


def solve(config: RunConfig, images: GrayImages) -> tuple[list[Solution], list[dict[str, Any]]]:
    """Train a run; return the solutions and the records of its problems, or of the run if it has none."""
    torch.manual_seed(config.seed)
    embedder = make_embedder(config)
    objective = build_objective(config, embedder, CLASSES)
    pixels, labels = torch.from_numpy(images.train.pixels.copy()), images.train.labels
    held_out = PixelInputs(pixels[-VALIDATION:], labels[-VALIDATION:], "validation image")
    fit = PixelInputs(pixels[:-VALIDATION], labels[:-VALIDATION], "training image")
    trainer = Trainer(config, objective, fit, held_out)
    normalize = NORMALIZERS[config.normalize]

    def embed(pixels: Tensor, labels: Labels) -> Tensor:
        return normalize(embed_inputs(embedder, PixelInputs(pixels, labels, ""), batch=500))

    def by_class(proxies: Tensor | None) -> Tensor | None:
        return None if proxies is None else normalize(proxies).view(CLASSES, PER_CLASS, -1)

    solutions = []
    problems = solve_problems(trainer)
    for number, problem in enumerate(problems):
        if not problem.weights:
            continue  # the run ended before the first validation of the problem
        objective.load_state_dict(problem.weights)
        test = embed(torch.from_numpy(images.test.pixels.copy()), images.test.labels)
        following = problems[number + 1].initial_proxies if number + 1 < len(problems) else None
        converged = by_class(problem.weights.get("references.proxies"))
        score = retrieval_metrics(test, images.test.labels)["MAP@R"]
        solutions.append(Solution(embed(pixels[:SAMPLE], labels[:SAMPLE]), converged, by_class(following), score))
    records = [] if trainer.ccp_solver is None else trainer.ccp_solver.records()
    return solutions, records or [{"steps": trainer.state.step, "best": trainer.state.best}]


def plane_scale(size: Size, *, steps: int, seeds: int, cost: str, settings: Overrides = NOTHING) -> Scale:
    """Return a size of a study with this network."""
    base, name = {"quick": (BASE, "three convolutions"), "full": (BASE | RESNET, "ResNetV2-20")}[size]
    missing = " (synthetic images if missing)" if size == "quick" else ""
    setting = (
        f"MNIST or Fashion-MNIST, {name}, not pretrained, at most {steps:,} steps; embeddings in two dimensions, C2, "
        f"{PER_CLASS} proxies of a class from pools of {POOL}. [Thesis]: MNIST, ResNetV2-20."
    )
    need = DataNeed(f"MNIST or Fashion-MNIST{missing}")
    return Scale(size, base | train(max_steps=steps) | settings, tuple(range(seeds)), need, cost, setting)


def sizes_of(scale: Scale, images: GrayImages) -> dict[str, Any]:
    """Return the settings that both studies record."""
    return {"data": images.name, "network": scale.pick(quick="three convolutions", full="ResNetV2-20"),
            "proxies": PER_CLASS, "pool": POOL, "tested": len(images.test), "seeds": len(scale.seeds)}  # fmt: skip


def title_of(study: Study, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the title with the name of the images, as a detail of the measurement."""
    name = str(settings["data"])
    return {"title": f"{study.title} ({IMAGES.get(name, name)})"}


def identity(config: RunConfig, images: GrayImages) -> dict[str, Any]:
    """Return all that the result of a run depends on."""
    sizes = [len(images.train), len(images.test)]
    shown = config.model_dump(mode="json", exclude={"data", "image", "augment"})
    return {"data": images.name, "images": sizes, "config": shown}


# --- ccp-mnist: Fig. 3.2 ----------------------------------------------------------------------------------------------

METHODS = {"CCP": CCP, "one problem": CCP | Overrides({"references": {"max_problems": 1}}), "samples": SAMPLES}
COLLAPSED = 1  # percent of the radius of the unit ball: distance of proxies from their mean that counts as none


def cover(labels: Labels, points: Tensor, proxies: Tensor | None) -> tuple[float, float] | tuple[None, None]:
    """Return the largest (covering radius) and the mean distance of images to their nearest proxy, over classes."""
    if proxies is None:
        return None, None
    members = [points[torch.from_numpy(labels == label)] for label in range(CLASSES)]
    radii = [covering_radius(own, proxies[label]) for label, own in enumerate(members)]
    means = [pairwise_distance(own, proxies[label]).amin(dim=1).mean() for label, own in enumerate(members)]
    return float(torch.stack(radii).mean()), float(torch.stack(means).mean())


def problem_rows(
    method: str, seed: int, labels: Labels, solutions: Sequence[Solution], records: Sequence[Row]
) -> Iterator[dict[str, Any]]:
    """Yield the row of each problem of a run."""
    for number, (one, record) in enumerate(zip(solutions, records, strict=False), 1):
        spread = None
        if one.converged is not None:
            spread = float((one.converged - one.converged.mean(dim=1, keepdim=True)).norm(dim=2).mean())
        radius, distance = cover(labels, one.points, one.converged)
        next_radius, next_distance = cover(labels, one.points, one.next)
        yield {
            "method": method, "seed": seed, "problem": number if len(solutions) > 1 else None, "steps": record["steps"],
            "validation MAP@R": record["best"], "test MAP@R": one.test, "radius, converged": radius,
            "radius, next": next_radius, "distance, converged": distance, "distance, next": next_distance,
            "proxy spread": spread,
        }  # fmt: skip


def summarize(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of one seed that claims read: the first and the last problem, and the best validation."""
    found: list[Row] = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        best = max(own, key=lambda row: row["validation MAP@R"])
        for moment, row in (("first", own[0]), ("last", own[-1]), ("best", best)):
            found.append({"row": f"{method}, {moment}", **row})
    return found


def _collapse(s: Scores) -> Evidence:
    spread = 100 * s.cell("one problem, best", "proxy spread")
    return Evidence(
        f"{spread:.2f}% of the radius from their mean; below {COLLAPSED}% by", COLLAPSED - spread, "percent"
    )


def _differ(
    one: tuple[str, str], other: tuple[str, str], column: str, unit: str = "percent"
) -> Callable[[Scores], Evidence]:
    """Return a check that the first of two rows has the larger value, in hundredths."""

    def check(s: Scores) -> Evidence:
        first, second = (100 * s.cell(row, column) for _, row in (one, other))
        return Evidence(f"{first:.1f} ({one[0]}), {second:.1f} ({other[0]})", first - second, unit)

    return check


_FIRST, _LAST = ("first", "CCP, first"), ("last", "CCP, last")
_BEST, _ONE = ("CCP", "CCP, best"), ("one problem", "one problem, best")
FIGURE = "[Thesis], Fig. 3.2"


@dataclass(frozen=True, kw_only=True)
class CCPPlane(Study):
    """Problems of CCP in the plane; a run with one problem and one with samples for comparison."""

    def measure(self, request: StudyRequest) -> Measurement:
        """Train the missing runs, and measure every problem."""
        images = load_gray_images(request.data, quick=request.quick)
        labels = images.train.labels[:SAMPLE]
        rows: list[dict[str, Any]] = []
        solutions: dict[tuple[str, int], list[Solution]] = {}
        for seed in request.scale.seeds:
            for method, settings in METHODS.items():
                config = make_config(request.scale, settings, seed)
                solutions[method, seed], records = self.solved(request, method, config, images)
                rows += problem_rows(method, seed, labels, solutions[method, seed], records)
        hidden = {"data", "image", "augment", "backbone"}
        shown = make_config(request.scale, CCP, 0).model_dump(mode="json", exclude=hidden)
        settings_of = {**sizes_of(request.scale, images), "config": shown}
        return self.measurement(rows, settings_of, {"labels": labels, "solutions": solutions["CCP", 0]})

    def measurement(
        self, rows: Sequence[Row], settings: Mapping[str, Any], artifacts: Mapping[str, Any]
    ) -> Measurement:
        """Return the measurement with the rows that claims read."""
        seeds = dict.fromkeys(row["seed"] for row in rows)
        by_seed = {seed: summarize([row for row in rows if row["seed"] == seed]) for seed in seeds}
        return Measurement(
            rows=rows, exact=mean_rows(list(by_seed.values())), by_seed=by_seed, settings=settings,
            details=title_of(self, settings), artifacts=artifacts,
        )  # fmt: skip

    def restore(self, content: Mapping[str, Any]) -> Measurement:
        """Return the measurement that a result file holds; artifacts are missing."""
        return self.measurement(content["rows"], content["settings"], {})

    def solved(
        self, request: StudyRequest, method: str, config: RunConfig, images: GrayImages
    ) -> tuple[list[Solution], list[dict[str, Any]]]:
        """Train a run that is not stored, and return its solutions and records.

        Raises:
            ConfigError: If the stored run has other settings.
            DataError: If it is missing and nothing is to be trained.
        """

        def make() -> StoredRun:
            request.note(f"{method}, seed {config.seed}: at most {config.train.max_steps} steps")
            solutions, records = solve(config, images)
            tensors = {
                f"{number}.{name}": tensor for number, one in enumerate(solutions)
                for name in ("points", "converged", "next") if (tensor := getattr(one, name)) is not None
            }  # fmt: skip
            return StoredRun({"tests": [one.test for one in solutions], "records": records}, tensors)

        settings = identity(config, images) | {"small": request.quick}
        stored = require_run(request, f"{method.replace(' ', '-')}-seed{config.seed}", settings, make)
        solutions = [
            Solution(stored.tensors[f"{number}.points"], stored.tensors.get(f"{number}.converged"),
                     stored.tensors.get(f"{number}.next"), test)
            for number, test in enumerate(stored.numbers["tests"])
        ]  # fmt: skip
        return solutions, stored.numbers["records"]

    def figures(self, measured: Measurement) -> Mapping[str, Figure]:
        """Draw the plane after some problems; nothing where the embeddings are missing."""
        from winnow.studies.ccp_plane_figures import draw_plane

        if not measured.artifacts:
            return {}
        rows = [row for row in measured.rows if row["seed"] == 0]
        return {"": draw_plane(measured.artifacts["labels"], measured.artifacts["solutions"], rows)}


CCP_PLANE = CCPPlane(
    name="ccp-mnist", title="CCP in two dimensions", measures="2-D embeddings on Fashion-MNIST", source=FIGURE,
    group="Chance-constrained proxies",
    scales=Scales(
        plane_scale("quick", steps=4000, seeds=3, cost="5 minutes, 9 runs"),
        plane_scale("full", steps=10_000, seeds=3, cost="9 runs, hours on two cores, less on a GPU"),
    ),
    claims=(
        Claim("With one problem, the proxies of a class collapse", FIGURE, _collapse),
        Claim("New proxies stay diverse", FIGURE, _differ(_BEST, _ONE, "proxy spread")),
        Claim("The covering radius decreases through the problems", FIGURE,
              _differ(_FIRST, _LAST, "radius, converged")),
        Claim("The mean distance to the nearest proxy decreases through the problems", FIGURE,
              _differ(_FIRST, _LAST, "distance, converged")),
        Claim("Retrieval improves through the problems", FIGURE, _differ(_LAST, _FIRST, "test MAP@R", "points")),
        Claim("CCP improves on one problem", FIGURE, _differ(_BEST, _ONE, "test MAP@R", "points")),
    ),
)  # fmt: skip
