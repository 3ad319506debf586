"""Measure the effect of zero-shot regularization on a training with few classes.

    python scripts/zsr_few_classes.py [WEIGHTS]

Needs CIFAR-100 in data/cifar100, and the backbone that `winnow study collage --full` pretrains on the training classes
(by default in the folder of that study). Trains the first steps of runs of that study on the CPU in some minutes, and
writes results/zsr_few_classes.json.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from winnow.evaluation import retrieval_metrics
from winnow.studies.collage import BASE, COLLAGES, GSP, LOSSES
from winnow.studies.settings import gsp
from winnow.training import Callback, Trainer, load_config
from winnow.training.build import TrainingSetup, build_setup, load_splits, resolve_config
from winnow.training.cache import RunCache
from winnow.training.objective import Objective, build_objective
from winnow.training.results import collect_provenance

ROOT = Path(__file__).resolve().parents[1]
WEIGHTS = "studies/runs/collage-full/pretrained/training-classes.safetensors"
START, LAST = 16, 40  # steps: prototypes are set from the first 1024 features, of 16 batches of 64
NUM_EVALUATED = 640  # validation images
SETTINGS: tuple[list[str], ...] = (
    [], ["zsr=0.002"], ["zsr=0.02"], ["zsr=0.5"], ["zsr=0.5", "zsr.logit_scale=1.5"],
    ["zsr=0.5", "train.lr_multipliers={'zsr.*': 100}"],
)  # fmt: skip


def words_of(settings: list[str], weights: str) -> list[str]:
    shared = BASE | COLLAGES | gsp(mu=0.2) | GSP | LOSSES["C2"]
    return [
        *shared.to_args(), "backbone.train=full", f"backbone.weights={weights}", f"train.max_steps={LAST}",
        "zsr.preset=authors", "train.projection_init=random", "train.device=cpu", "seed=0", *settings,
    ]  # fmt: skip


def score(learner: Objective, prepared: TrainingSetup) -> float:
    """Return MAP@R in percent on a fixed subset of the validation images."""
    chosen = np.sort(np.random.default_rng(0).permutation(len(prepared.val.labels))[:NUM_EVALUATED])
    learner.eval()
    with torch.inference_mode():
        found = torch.cat([learner.model(prepared.val.test(part)) for part in np.array_split(chosen, 4)])
    learner.train()
    return 100 * retrieval_metrics(torch.nn.functional.normalize(found, dim=1), prepared.val.labels[chosen])["MAP@R"]


def inspect(trainer: Trainer, learner: Objective, step: int) -> dict[str, float]:
    """Return both losses on a batch, the norms of their gradients, and the standard deviation of attributes."""
    indices = trainer.sampler.batch(step)
    inputs = trainer.train.train(indices, torch.Generator().manual_seed(0))
    labels = torch.as_tensor(trainer.train.labels[indices])
    learner = copy.deepcopy(learner)  # the inspected batch must not change batch norm
    terms = learner(inputs, labels)
    parameters = [p for p in learner.model.parameters() if p.requires_grad]
    with torch.no_grad():
        attributes = learner.model(inputs, return_details=True).attributes
    found = {"attributes' deviation": float(attributes.std(dim=0).mean())}
    for name in ("metric", "zsr"):
        if name in terms:
            gradients = torch.autograd.grad(terms[name], parameters, retain_graph=True, allow_unused=True)
            norm = torch.stack([g.norm() for g in gradients if g is not None]).norm()
            found |= {name: terms[name].item(), f"{name}: norm of the gradient": norm.item()}
    return found


def measure(settings: list[str], weights: str, shared: RunCache) -> dict[str, Any]:
    config = load_config(None, words_of(settings, weights))
    splits = load_splits(config, shared)
    config = resolve_config(config, splits.train)
    prepared = build_setup(config, splits, Callback(), shared)
    learner = build_objective(config, prepared.embedder, prepared.num_classes)
    trainer = Trainer(config, learner, prepared.train, prepared.val)
    learner.train()
    row: dict[str, Any] = {"settings": settings}
    for step in range(LAST):
        trainer.take_step(step)
        if step + 1 in (START, LAST):
            inspected = inspect(trainer, learner, step + 1)
            row[f"after {step + 1} steps"] = {"MAP@R": score(learner, prepared), **inspected}
    return row


def main() -> None:
    weights = sys.argv[1] if len(sys.argv) > 1 else WEIGHTS
    provenance, shared, rows = collect_provenance().to_dict(), RunCache(), []
    for settings in SETTINGS:
        rows.append(measure(settings, weights, shared))
        print(json.dumps(rows[-1]), flush=True)
    report = {**provenance, "command": "python scripts/zsr_few_classes.py", "words": words_of([], WEIGHTS),
            "validation images": NUM_EVALUATED, "rows": rows}  # fmt: skip
    (ROOT / "results" / "zsr_few_classes.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
