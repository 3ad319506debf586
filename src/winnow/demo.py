"""Demo: four poolings compared on bundled emoji collages."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from winnow.data import ImageSet, Splits
from winnow.data.emoji import load_emoji
from winnow.evaluation import RetrievalResult
from winnow.files import make_folder
from winnow.functional import clip_norm, pairwise_distance
from winnow.integrity import write_checked_text
from winnow.models import Embedder, Head
from winnow.pooling import GSP
from winnow.report.comparison import (
    Comparison,
    HeatMap,
    Method,
    MethodRun,
    Neighbor,
    NextStep,
    Prototype,
    Query,
    comparison_table,
    markdown_report,
)
from winnow.report.heatmaps import Weights
from winnow.report.pages import write_comparison
from winnow.training import RunConfig, make_config
from winnow.training.build import TrainingSetup, build_setup, init_objective, resolve_config
from winnow.training.callbacks import Callback
from winnow.training.evaluation import evaluate
from winnow.training.inputs import Inputs
from winnow.training.results import collect_provenance
from winnow.training.trainer import Trainer

# Settings of all methods: an 8 x 8 grid of local features from a frozen backbone, a linear projection to 128-D, and C2.
SHARED: dict[str, Any] = {
    "data": {"path": "emoji"},
    "image": {"resize": 128, "crop": 128},
    "backbone": {"name": "tf_efficientnet_lite0", "stride": 16, "train": "frozen"},
    "dim": 128,
    "loss": {"name": "c2", "pos_margin": 0.2, "neg_margin": 0.9},
    "train": {"classes_per_batch": 16, "samples_per_class": 4, "lr": 1e-3, "eval_steps": 100, "device": "cpu"},
}
GSP_SETTINGS = {"name": "gsp", "num_prototypes": 64, "mu": 0.05, "eps": 20.0}


@dataclass(frozen=True)
class DemoMethod:
    """Method of the demo: what differs from `SHARED`."""

    name: str
    description: str
    settings: Mapping[str, Any]

    def config(self, *, seed: int, steps: int) -> RunConfig:
        """Return the config of one run."""
        train = {**SHARED["train"], "max_steps": steps}
        return make_config({**SHARED, **self.settings, "train": train, "seed": seed})


METHODS = (
    DemoMethod("GAP", "Average pooling: all locations have the same weight.", {"pooling": {"name": "gap"}}),
    DemoMethod(
        "GMP (projected)",
        "Max pooling of the projected map: the largest value of each channel.",
        {"pooling": {"name": "gmp_projected"}},
    ),
    DemoMethod("GSP", "Generalized Sum Pooling: keeps locations near learned prototypes.", {"pooling": GSP_SETTINGS}),
    DemoMethod("GSP + ZSR", "GSP with zero-shot regularization.", {"pooling": GSP_SETTINGS, "zsr": {"weight": 0.1}}),
)

SUMMARY = (
    "Each 2×2 collage contains one target emoji and three distractors (flags or symbols). Task: retrieve collages with "
    "the same target. Test emoji and test distractors do not occur in training.\n\n"
    "Targets are animals, food, objects, activities, and places. Distractors are of other categories, so a model can "
    "learn to ignore distractors that it has not seen. Other datasets with less background leave less to gain."
)
TUNING = (
    "Tuning: settings were selected by validation MAP@R among about 30 configurations with one seed, most of them for "
    "GSP; test results were printed next to it. In this report each run is tested once, with its best validation "
    "checkpoint."
)

QUERIES, HEAT_MAPS, PROTOTYPES, PATCHES, NEIGHBORS = 6, 8, 12, 8, 5
"""Numbers of pictures in the report."""


@dataclass(frozen=True)
class DemoResult:
    """Files and numbers of a demo."""

    report: Path
    model: Path
    table: list[dict[str, float | str | None]]  # rows of `comparison_table`


@dataclass(frozen=True)
class TrainedMethod:
    """Trained model with its test result."""

    embedder: Embedder
    result: RetrievalResult


def run_demo(folder: Path, *, seeds: int, steps: int, callback: Callback, splits: Splits | None = None) -> DemoResult:
    """Train all methods, and write report, results, and a model into a folder.

    Args:
        folder: Output folder, created if missing.
        seeds: Runs of each method.
        steps: Training steps of each run.
        callback: Handles messages and progress.
        splits: Emoji collages. None takes the bundled dataset.

    Raises:
        OutputError: If the folder cannot be written.
    """
    make_folder(folder)  # an invalid folder fails before training
    started = time.perf_counter()
    splits = splits or load_emoji()
    assert splits.test is not None, "the bundled dataset has test classes"
    # Features of the frozen backbone are computed once and shared by all runs.
    setup = build_setup(resolve_config(METHODS[0].config(seed=0, steps=steps)), splits, callback)
    assert setup.test is not None
    feature_seconds = time.perf_counter() - started
    pretrained = evaluate(setup.baseline, setup.test).metrics()

    methods: list[Method] = []
    first_seed: dict[str, TrainedMethod] = {}
    progress = callback.progress("training")
    for number, method in enumerate(METHODS):
        runs = []
        for seed in range(seeds):
            trained, run = train_method(setup, method.config(seed=seed, steps=steps))
            runs.append(run)
            first_seed.setdefault(method.name, trained)
            progress(number * seeds + seed + 1, len(METHODS) * seeds)
        methods.append(Method(method.name, method.description, runs))
        mean = sum(run.metrics["MAP@R"] for run in runs) / len(runs)
        callback.message(f"{method.name}: test MAP@R {100 * mean:.2f}%")

    provenance = collect_provenance().to_dict()
    provenance["seconds"] = {
        "features": round(feature_seconds, 1), "all": round(time.perf_counter() - started, 1),
    }  # fmt: skip
    best = first_seed["GSP + ZSR"]
    comparison = Comparison(
        title="Four poolings on emoji collages",
        summary=SUMMARY,
        tuning=TUNING,
        methods=methods,
        baseline=("pretrained, no training", pretrained),
        queries=select_queries(splits.test, first_seed),
        heatmaps=draw_heat_maps(splits.test, {name: one.embedder for name, one in first_seed.items()}),
        prototypes=find_prototypes(splits.test, setup.test, best.embedder),
        next_steps=next_steps(folder),
        settings={"shared": SHARED, "methods": {one.name: one.settings for one in METHODS}, "steps": steps},
        provenance=provenance,
    )
    write_comparison(folder / "report.html", comparison)
    best.embedder.save_pretrained(folder / "model", metrics=best.result.metrics())
    write_checked_text(folder / "results.json", json.dumps(_results(comparison, pretrained), indent=2) + "\n")
    write_checked_text(folder / "results.md", markdown_report(comparison))
    return DemoResult(folder / "report.html", folder / "model", comparison_table(comparison))


def train_method(setup: TrainingSetup, config: RunConfig) -> tuple[TrainedMethod, MethodRun]:
    """Train the head of one run on the features of the setup, and test it."""
    config = resolve_config(config)
    torch.manual_seed(config.seed)
    backbone = setup.embedder.backbone
    embedder = Embedder(backbone, Head(backbone.num_features, config.dim, config.pooling, norm=config.head), config)
    own = TrainingSetup(config, embedder, setup.train, setup.val, setup.test, setup.num_classes, frozen=True)
    objective = init_objective(own)
    state = Trainer(config, objective, own.train, own.val).fit()
    assert own.test is not None
    result = evaluate(objective.model, own.test, keep=NEIGHBORS)
    history = [entry.to_dict() for entry in state.history]
    return TrainedMethod(embedder, result), MethodRun(config.seed, result.metrics(), history, state.seconds)


def _results(comparison: Comparison, pretrained: Mapping[str, float]) -> dict[str, Any]:
    """Return the content of `results.json`."""
    return {
        **comparison.provenance,
        "config": comparison.settings,
        "table": comparison_table(comparison),
        "untrained": pretrained,
        "runs": [
            {"method": method.name, "seed": run.seed, "seconds": round(run.seconds, 2), **run.metrics}
            for method in comparison.methods
            for run in method.runs
        ],
    }


def select_evenly(count: int, wanted: int) -> list[int]:
    """Return at most `wanted` indices at even distances, so none is hand-picked."""
    wanted = min(count, wanted)
    return [int((i + 0.5) * count / wanted) for i in range(wanted)]


def select_queries(images: ImageSet, methods: Mapping[str, TrainedMethod]) -> list[Query]:
    """Return queries at even distances with the nearest neighbors of each method, and the pooling weights of all."""
    queries = []
    for index in select_evenly(len(images), QUERIES):
        found: dict[str, list[Neighbor]] = {}
        weights: dict[str, Weights] = {}
        for name, method in methods.items():
            numbers, distances = (
                values[index].tolist() for values in (method.result.neighbors, method.result.distances)
            )
            maps = [one.weights for one in method.embedder.explain([images.read(i) for i in (index, *numbers)])]
            found[name] = [
                Neighbor(images.read(i), bool(images.labels[i] == images.labels[index]), d, _class_name(images, i), own)
                for i, d, own in zip(numbers, distances, maps[1:], strict=True)
            ]
            if maps[0] is not None:
                weights[name] = maps[0]
        queries.append(Query(images.read(index), _class_name(images, index), found, weights))
    return queries


def next_steps(folder: Path) -> list[NextStep]:
    """Return commands that continue from the demo in its folder."""
    model = shlex.quote(str(folder / "model"))
    return [
        NextStep(f"winnow explain {model} cat.jpg", "Draw the pooling weights of this model on an image of your own:"),
        NextStep("winnow train data=photos --out runs/first", "Train on your images, one folder per class:"),
        NextStep("winnow index runs/first photos -o photos.index", "Embed your images for search:"),
        NextStep("winnow serve photos.index", "Search them in a browser:"),
    ]


def draw_heat_maps(images: ImageSet, embedders: Mapping[str, Embedder]) -> list[HeatMap]:
    """Return the pooling weights of each method on evenly spaced images.

    None of the images is a query.
    """
    chosen = [index + 1 for index in select_evenly(len(images) - 1, HEAT_MAPS)]
    pictures = [images.read(i) for i in chosen]
    maps = {name: embedder.explain(pictures) for name, embedder in embedders.items()}
    drawn = []
    for position, index in enumerate(chosen):
        weights = {name: grid for name, each in maps.items() if (grid := each[position].weights) is not None}
        image = next(iter(maps.values()))[position].image
        drawn.append(HeatMap(image, _class_name(images, index), weights))
    return drawn


@torch.no_grad()
def find_prototypes(images: ImageSet, inputs: Inputs, embedder: Embedder) -> list[Prototype]:
    """Return the prototypes with the most pooled weight, and their nearest patches.

    Args:
        images: Test images.
        inputs: Features of the same images.
        embedder: Model whose prototypes are shown; without ready prototypes there are none.
    """
    pooling = embedder.head.pooling
    if not isinstance(pooling, GSP) or not pooling.prototypes_ready:
        return []
    nearest: list[torch.Tensor] = []
    locations: list[torch.Tensor] = []
    attributes = torch.zeros(len(pooling.prototypes))
    count = len(inputs.labels)
    embedder.eval()
    for start in range(0, count, 256):
        maps = inputs.test(range(start, min(start + 256, count)))
        local = embedder.head.projection(maps.flatten(2).mT)
        attributes += pooling(local, return_details=True).attributes.sum(dim=0)
        distance = pairwise_distance(clip_norm(local), clip_norm(pooling.prototypes))  # (B, n, m)
        found = distance.min(dim=1)  # one location per image, so patches differ
        nearest.append(found.values)
        locations.append(found.indices)
    distances, places = torch.cat(nearest), torch.cat(locations)  # (images, m)
    rows, columns = maps.shape[2:]
    prototypes = []
    for index in attributes.argsort(descending=True)[:PROTOTYPES].tolist():
        order = distances[:, index].argsort()[:PATCHES].tolist()
        patches = [crop_location(images.read(i), int(places[i, index]), rows, columns) for i in order]
        prototypes.append(Prototype(index, float(attributes[index]) / count, patches))
    return prototypes


def crop_location(image: Image.Image, location: int, rows: int, columns: int, reach: float = 1.75) -> Image.Image:
    """Return the part of an image around one location of its feature map.

    Args:
        image: Image.
        location: Index in the flattened grid.
        rows: Rows of the grid.
        columns: Columns of the grid.
        reach: Half the side of the crop in cells, about the receptive field of a local feature.
    """
    height, width = image.height / rows, image.width / columns
    y, x = (location // columns + 0.5) * height, (location % columns + 0.5) * width
    left = min(max(0.0, x - reach * width), image.width - 2 * reach * width)
    top = min(max(0.0, y - reach * height), image.height - 2 * reach * height)
    return image.crop((round(left), round(top), round(left + 2 * reach * width), round(top + 2 * reach * height)))


def _class_name(images: ImageSet, index: int) -> str:
    return images.class_names[int(images.labels[index])]
