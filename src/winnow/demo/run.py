"""Train every method with every seed on features computed once, then write the report."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from winnow.data import Splits
from winnow.data.emoji import load_emoji
from winnow.demo.exhibits import heatmaps, prototypes, queries
from winnow.demo.settings import METHODS, SHARED, method_config
from winnow.evaluation import RetrievalResult
from winnow.files import make_folder, write_text
from winnow.models import Embedder, Head
from winnow.report.comparison import write_comparison
from winnow.report.content import Comparison, Method, MethodRun
from winnow.report.numbers import comparison_table, markdown_table
from winnow.training.build import TrainingSetup, build_setup, init_objective, resolve_config
from winnow.training.callbacks import Callback
from winnow.training.evaluation import evaluate
from winnow.training.results import collect_provenance
from winnow.training.trainer import Trainer

SUMMARY = (
    "Each picture is a collage of one emoji and three of clutter, drawn by different artists. The task: given a "
    "picture, find others of the same emoji. Emoji and clutter of the test are never seen in training, so what "
    "carries over is telling content from clutter. The two differ in kind: content is animals, food, objects, "
    "activities and places, clutter is symbols and flags."
)


@dataclass(frozen=True)
class Made:
    """What the demo leaves behind."""

    report: Path
    model: Path
    table: list[dict[str, Any]]


@dataclass(frozen=True)
class Trained:
    """One trained model of one method, with its test result."""

    embedder: Embedder
    result: RetrievalResult


def run_demo(folder: Path, *, seeds: int, steps: int, monitor: Callback, splits: Splits | None = None) -> Made:
    """Run the comparison and write `report.html`, `results.json`, `results.md` and a model into a folder.

    Args:
        folder: Where to write; made if need be.
        seeds: Runs of each method.
        steps: Training steps of each run.
        monitor: Told how it goes.
        splits: Other images of the embedded kind; default the whole embedded set.
    """
    make_folder(folder)  # before the work, so that a bad place is known at once
    started = time.perf_counter()
    splits = splits or load_emoji()
    assert splits.test is not None, "the embedded set has test classes"
    base = resolve_config(method_config(METHODS[0][2], seed=0, steps=steps))
    prepared = build_setup(base, splits, monitor)
    assert prepared.test is not None
    feature_seconds = time.perf_counter() - started
    untrained = evaluate(prepared.baseline, prepared.test).metrics()
    methods: list[Method] = []
    shown: dict[str, Trained] = {}
    show = monitor.progress("training")
    done = 0
    for name, meaning, changes in METHODS:
        runs = []
        for seed in range(seeds):
            trained, run = _train(prepared, changes, seed, steps)
            runs.append(run)
            if seed == 0:
                shown[name] = trained
            done += 1
            show(done, len(METHODS) * seeds)
        methods.append(Method(name, meaning, runs))
        mean = sum(run.metrics["MAP@R"] for run in runs) / len(runs)
        monitor.message(f"{name}: test MAP@R {100 * mean:.2f}")
    made = collect_provenance().to_dict()
    made["seconds"] = {"features": round(feature_seconds, 1), "all": round(time.perf_counter() - started, 1)}
    best = shown["GSP + ZSR"]
    comparison = Comparison(
        title="Learned pooling against average pooling, on classes never seen",
        summary=SUMMARY,
        methods=methods,
        baseline=("untrained backbone, GAP", untrained),
        queries=queries(splits.test, {name: trained.result for name, trained in shown.items()}),
        heatmaps=heatmaps(splits.test, {name: trained.embedder for name, trained in shown.items()}),
        prototypes=prototypes(splits.test, prepared.test, best.embedder),
        settings={"shared": SHARED, "methods": {name: changes for name, _, changes in METHODS}, "steps": steps},
        provenance=made,
    )
    report, model = folder / "report.html", folder / "model"
    write_comparison(report, comparison)
    best.embedder.save_pretrained(model, metrics=best.result.metrics())
    write_text(folder / "results.json", json.dumps(_results(comparison, untrained), indent=2) + "\n")
    write_text(folder / "results.md", markdown_table(comparison) + "\n")
    return Made(report, model, comparison_table(comparison))


def _train(prepared: TrainingSetup, changes: dict[str, Any], seed: int, steps: int) -> tuple[Trained, MethodRun]:
    """Train one method's head on the features at hand."""
    config = resolve_config(method_config(changes, seed=seed, steps=steps))
    torch.manual_seed(config.seed)
    backbone = prepared.embedder.backbone
    embedder = Embedder(backbone, Head(backbone.num_features, config.dim, config.pooling), config)
    own = TrainingSetup(
        config, embedder, prepared.train, prepared.val, prepared.test, prepared.num_classes, frozen=True
    )
    learner = init_objective(own)
    trainer = Trainer(config, learner, own.train, own.val)
    progress = trainer.fit()
    assert own.test is not None
    result = evaluate(learner.model, own.test, keep=5)
    run = MethodRun(seed, result.metrics(), [entry.to_dict() for entry in progress.history], progress.seconds)
    return Trained(embedder, result), run


def _results(comparison: Comparison, untrained: dict[str, float]) -> dict[str, Any]:
    return {
        **comparison.provenance,
        "config": comparison.settings,
        "table": comparison_table(comparison),
        "untrained": untrained,
        "runs": [
            {"method": method.name, "seed": run.seed, "seconds": round(run.seconds, 2), **run.metrics}
            for method in comparison.methods
            for run in method.runs
        ],
    }
