"""CCP's proof of concept: embeddings in the plane and their proxies, through the problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from winnow.data import ArrayImages, Labels
from winnow.evaluation import retrieval_metrics
from winnow.functional import NORMALIZERS
from winnow.models import Backbone, Embedder, Head
from winnow.studies.artifacts import StoredRun, require_run, solve_problems
from winnow.studies.base import Findings, Task, paragraphs, with_data
from winnow.studies.ccp_mnist_report import CLASSES, PER_CLASS, POOL, SAMPLE, Solution, draw, how, table, told
from winnow.studies.synthetic_images import load_gray_images
from winnow.training import Trainer, load_config
from winnow.training.build import resolve_config
from winnow.training.evaluation import embed as embed_inputs
from winnow.training.inputs import PixelInputs
from winnow.training.objective import build_objective

if TYPE_CHECKING:
    from winnow.training.config import RunConfig

VALIDATION = 1000  # training images held out
SEEDS = 3

METHODS = {
    "CCP": ["references=ccp"],
    "one problem": ["references=ccp", "references.max_problems=1"],
    "samples": ["references=batch"],
}
"""The same proxies re-seeded, left alone, and none: the batch's samples in their place."""


BACKBONE = "resnetv2_20"
NETWORK: Mapping[bool, Sequence[str]] = {
    True: [],
    False: [f"backbone={BACKBONE}", "backbone.weights=random", "image.resize=28", "image.crop=28"],
}
"""Settings of the network, by whether the size is small: two cores would train the documents' for hours."""
NAMES = {True: "three convolutions (the documents: ResNetV2-20)", False: "ResNetV2-20"}


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


@with_data(small=True, full=True)
def study(task: Task) -> Findings:
    """CCP on Fashion-MNIST or MNIST in the plane: embedding, proxies, covering radius through the problems (Fig. 3.2).

    Cost: 5 minutes, on made images where neither set is there; in full hours, less on a GPU.
    """
    name, train, test = load_gray_images(task.data, quick=task.small)
    steps = 4000 if task.small else 10000
    rows: list[dict[str, Any]] = []
    solutions: dict[tuple[str, int], list[Solution]] = {}
    for seed in range(SEEDS):
        for method, words in METHODS.items():
            config = make_config([*words, *NETWORK[task.small], f"seed={seed}"], steps)
            solutions[method, seed], records = solved(task, method, config, name, train, test)
            rows += table(method, seed, train.labels[:SAMPLE], solutions[method, seed], records)
    settings = {
        "data": name, "network": NAMES[task.small], "proxies": PER_CLASS, "pool": POOL,
        "tested": len(test), "seeds": SEEDS, "small": task.small,
        "config": make_config(METHODS["CCP"], steps).model_dump(
            mode="json", exclude={"data", "image", "augment", "backbone"}
        ),
    }  # fmt: skip
    figure = draw(train.labels[:SAMPLE], solutions["CCP", 0], [row for row in rows if row["seed"] == 0])
    where = f"{name} (the documents: MNIST) with {NAMES[task.small]}, {steps:,} steps at most"
    text = paragraphs(told(rows), how(where))
    return Findings(f"CCP in two dimensions ({name})", text, rows, figure, settings)


def solved(
    task: Task, method: str, config: RunConfig, name: str, train: ArrayImages, test: ArrayImages
) -> tuple[list[Solution], list[dict[str, Any]]]:
    """Train a run that the task has not kept yet; return what [`solve`][winnow.studies.ccp_mnist.solve] does.

    Raises:
        ConfigError: for one that was made with other settings.
        DataError: where nothing more is to be trained.
    """

    def make() -> StoredRun:
        task.note(f"{method}, seed {config.seed}: {config.train.max_steps} steps at most")
        solutions, records = solve(config, train, test)
        tensors = {
            f"{number}.{part}": tensor for number, solution in enumerate(solutions)
            for part in ("points", "converged", "next") if (tensor := getattr(solution, part)) is not None
        }  # fmt: skip
        return StoredRun({"tests": [solution.test for solution in solutions], "records": records}, tensors)

    asked = {"data": name, "images": [len(train), len(test)], "small": task.small,
             "config": config.model_dump(mode="json", exclude={"data", "image", "augment"})}  # fmt: skip
    kept = require_run(task, f"{method.replace(' ', '-')}-seed{config.seed}", asked, make)
    solutions = [
        Solution(kept.tensors[f"{number}.points"], kept.tensors.get(f"{number}.converged"),
                 kept.tensors.get(f"{number}.next"), test_map)
        for number, test_map in enumerate(kept.numbers["tests"])
    ]  # fmt: skip
    return solutions, kept.numbers["records"]


def make_config(words: list[str], steps: int) -> RunConfig:
    """Return a run's config.

    Chapter 3's normalisation and patience. C2's margin is wide and the steps large because the network starts from
    nothing: with the documents' margins, meant for networks that know ImageNet, all classes stay in one place.
    """
    ccp = (
        [f"references.proxies_per_class={PER_CLASS}", f"references.pool_size={POOL}"]
        if words[0] == "references=ccp"
        else []
    )
    base = [
        "pooling=gap", "dim=2", "normalize=ball", "loss=c2", "loss.neg_margin=1.0", "train.lr=3e-3",
        "train.classes_per_batch=10", "train.samples_per_class=4", "train.eval_steps=50", "train.patience=60",
        f"train.max_steps={steps}", "train.eval_batch_size=500", "backbone.train=full",
        "backbone.freeze_batch_norm=false",
    ]  # fmt: skip
    return resolve_config(load_config(None, [*base, *words, *ccp]))


def make_embedder(config: RunConfig) -> Embedder:
    """Return an embedder with random weights: of the network that a config of the full size names, or a small one."""
    if config.backbone.name == BACKBONE:
        return Embedder.create(config, load_weights=False)
    network = SmallNet()
    backbone = Backbone(network, out_index=None, num_features=network.num_features, freeze_batch_norm=False)
    return Embedder(backbone, Head(backbone.num_features, config.dim, config.pooling), config)


def solve(config: RunConfig, train: ArrayImages, test: ArrayImages) -> tuple[list[Solution], list[dict[str, Any]]]:
    """Train a run; return what its problems came to and their records; without problems, what the run came to."""
    torch.manual_seed(config.seed)
    embedder = make_embedder(config)
    learner = build_objective(config, embedder, CLASSES)
    pixels, labels = torch.from_numpy(train.pixels.copy()), train.labels
    fit = PixelInputs(pixels[:-VALIDATION], labels[:-VALIDATION], "training image")
    trainer = Trainer(config, learner, fit, PixelInputs(pixels[-VALIDATION:], labels[-VALIDATION:], "validation image"))
    normalize = NORMALIZERS[config.normalize]

    def embed(pixels: Tensor, labels: Labels) -> Tensor:
        return normalize(embed_inputs(embedder, PixelInputs(pixels, labels, ""), batch=500))

    def shaped(proxies: Tensor | None) -> Tensor | None:
        return None if proxies is None else normalize(proxies).view(CLASSES, PER_CLASS, -1)

    solutions = []
    problems = solve_problems(trainer)
    for number, problem in enumerate(problems):
        if not problem.weights:
            continue  # the run's end cut it off before its first validation
        learner.load_state_dict(problem.weights)
        test_map = retrieval_metrics(embed(torch.from_numpy(test.pixels.copy()), test.labels), test.labels)["MAP@R"]
        following = problems[number + 1].initial_proxies if number + 1 < len(problems) else None
        converged = shaped(problem.weights.get("references.proxies"))
        solutions.append(Solution(embed(pixels[:SAMPLE], labels[:SAMPLE]), converged, shaped(following), test_map))
    records = [] if trainer.ccp_solver is None else trainer.ccp_solver.records()
    return solutions, records or [{"steps": trainer.state.step, "best": trainer.state.best}]
