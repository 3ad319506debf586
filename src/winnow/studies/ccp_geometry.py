"""The geometry of unseen classes with the plain loss and through the problems of CCP (Fig. 3.3)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from winnow.errors import DataError
from winnow.evaluation import retrieval_metrics
from winnow.functional import greedy_k_center, pairwise_distance
from winnow.studies.artifacts import StoredRun, keep_run, solve_problems
from winnow.studies.base import Findings, Task, paragraphs, with_data
from winnow.studies.ccp_geometry_report import APART, MANY, PLAIN, RADIUS, SHOWN, Picture, draw, how, told
from winnow.studies.ccp_sweeps import LOSSES, ccp, compare, make_images
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import finished
from winnow.training import Callback, RunConfig, Trainer
from winnow.training.build import build_setup, init_objective, load_splits, resolve_config
from winnow.training.engine.precision import make_fabric
from winnow.training.evaluation import embed


def comparison(task: Task) -> Comparison:
    """Return C2 in the batch and with CCP."""
    own = LOSSES[task.small]["C2"]
    return compare([Method(PLAIN, own), Method(MANY, [*own, *ccp()])], task)


@with_data(small=False, full=True)
def study(task: Task) -> Findings:
    """Unseen classes in the plane (t-SNE), their covering radii and distances: C2, and CCP after each problem.

    Cost: 1 minute (4 runs); in full 6 runs on CUB-200-2011 and a GPU.
    """
    compared = comparison(task)
    make_images(task)
    kept: dict[tuple[str, int], StoredRun] = {}
    for seed in compared.seeds:
        for method in compared.methods:
            run = solved(task, method.name, compared.plan(method, seed, task).config)
            if run is not None:
                kept[method.name, seed] = run
    if not kept:
        raise DataError(f"no run of ccp-geometry is finished in {task.runs}: leave out --only-finished")
    rows = [
        {"method": method, "seed": seed, "problem": number if method == MANY else None, **row}
        for (method, seed), run in kept.items() for number, row in enumerate(run.numbers["rows"], 1)
    ]  # fmt: skip
    asked = len(compared.seeds) * len(compared.methods)
    missing = finished(len(kept), asked, task.command("ccp-geometry"))
    text = paragraphs(told(rows), how(task.small), missing)
    first = {method: kept[method, seed] for method, seed in reversed(kept)}  # of the first seed
    settings = {"small": task.small, "words": list(compared.words), "seeds": list(compared.seeds)}
    return Findings("The geometry of unseen classes", text, rows, draw(pictures(first)), settings)


def solved(task: Task, name: str, config: RunConfig) -> StoredRun | None:
    """Train a run, or read what came of it: a row for each problem, and some classes' embeddings.

    Raises:
        ConfigError: for a run that was made with other settings.
    """

    def train() -> StoredRun:
        splits = load_splits(config, task.shared)
        own = resolve_config(config, splits.train)
        prepared = build_setup(own, splits, Callback(), task.shared)
        prepared.embedder.to(make_fabric(own).device)
        trainer = Trainer(own, init_objective(prepared), prepared.train, prepared.val)
        learner, test = trainer.objective, prepared.test
        assert test is not None, "a comparison has test classes"
        problems = solve_problems(trainer)
        records = [] if trainer.ccp_solver is None else trainer.ccp_solver.records()
        records = records or [{"steps": trainer.state.step, "best": trainer.state.best}]
        rows: list[dict[str, Any]] = []
        curves: list[list[float]] = []
        tensors: dict[str, Tensor] = {}
        labels = torch.from_numpy(test.labels)
        for problem, record in zip(problems, records, strict=True):
            if not problem.weights:
                continue  # the run's end cut it off before its first validation
            learner.load_state_dict(problem.weights)
            embeddings = learner.loss.normalizer(embed(learner.model, test, batch=own.train.eval_batch_size)).cpu()
            reached = 100 * retrieval_metrics(embeddings, test.labels)["MAP@R"]
            tensors[f"{len(rows)}.embeddings"] = embeddings[labels < SHOWN]
            measured = geometry(embeddings, labels)
            rows.append({"steps": record["steps"], "validation MAP@R": round(100 * record["best"], 2),
                         "MAP@R": round(reached, 2), **{key: round(value, 4) for key, value in measured.items()},
                         "radius / distance": round(measured[RADIUS] / measured[APART], 4)})  # fmt: skip
            curves.append(curve(embeddings, labels))
        task.note(f"{name}, seed {config.seed}: MAP@R {rows[-1]['MAP@R']:.2f} after {len(rows)} problems")
        return StoredRun({"rows": rows, "curves": curves}, tensors | {"labels": labels[labels < SHOWN]})

    asked = {"config": config.model_dump(mode="json")}
    return keep_run(task, f"{name.lower().replace(' + ', '-')}-seed{config.seed}", asked, train)


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
    order = torch.cat([first, greedy_k_center(points, len(points) - 1, points[first])])
    return distances[order].cummin(dim=0).values.amax(dim=1)


def curve(embeddings: Tensor, labels: Tensor) -> list[float]:
    """Return the classes' mean radius around 1, 2, ... images, up to as many as every class has."""
    each = [radii(embeddings[labels == label].double()) for label in torch.unique(labels)]
    most = min(map(len, each))
    mean: list[float] = torch.stack([one[:most] for one in each]).mean(dim=0).tolist()
    return mean


def pictures(runs: dict[str, StoredRun]) -> list[Picture]:
    """Return what is drawn of one run of each method: C2, and CCP after the first three problems and the last."""
    found: list[Picture] = []
    for method in (PLAIN, MANY):
        if method not in runs:
            continue
        numbers, tensors = runs[method].numbers, runs[method].tensors
        last = len(numbers["rows"]) - 1
        for place in sorted({0, 1, 2, last} & set(range(last + 1))):
            row: dict[str, Any] = numbers["rows"][place]
            name = PLAIN if method == PLAIN else f"CCP, problem {place + 1}"
            embeddings, curve = tensors[f"{place}.embeddings"], numbers["curves"][place]
            found.append(Picture(name, embeddings, tensors["labels"], row, curve))
    return found
