"""Find why C2 loses by CCP at a fixed budget: which pairs are within its margin, on frozen features.

    python scripts/ccp_margin.py IMAGES WEIGHTS [WORK] [--jobs N] [--folds 1,3]

IMAGES has CUB-200-2011 as class folders; its first 100 classes are used, in the four folds of the fair protocol.
WEIGHTS are those of ResNet-50. WORK keeps averaged features and finished runs of these settings, so an interrupted
script resumes. A 128-D projection is trained for 2,000 steps on a cosine, as in the fair protocol at a fixed budget.
The last averaged weights are evaluated on the validation classes. No test class is read. Writes
results/ccp_margin.json.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from winnow.data import ImageCache, MPerClassSampler, load_images
from winnow.data.datasets import fold_range
from winnow.files import write_text
from winnow.losses import ContrastiveLoss
from winnow.models import Embedder, Head
from winnow.references import ChanceConstrainedProxies
from winnow.training import Callback, Trainer, load_config
from winnow.training.build import make_crops, resolve_config
from winnow.training.features import iter_features
from winnow.training.inputs import CropInputs, FeatureInputs
from winnow.training.objective import Objective, build_objective
from winnow.training.results import collect_provenance

RESULT = Path(__file__).resolve().parents[1] / "results/ccp_margin.json"
CLASSES, FOLDS = 100, 4
BASE = [
    "backbone=resnet50_v1", "backbone.weights=random", "backbone.train=frozen", "image.resize=256", "image.crop=227",
    "pooling=gap", "dim=128", "normalize=ball", "loss=c2", "loss.preset=cub", "train.lr=1e-4",
    "train.projection_init=random", "train.classes_per_batch=8", "train.samples_per_class=4", "train.max_steps=2000",
    "train.eval_steps=100", "train.patience=1000", "train.select_weights=last", "train.schedule=cosine",
    "train.average=0.998", "train.eval_batch_size=1024", "train.device=cpu",
]  # fmt: skip
CCP, OFTEN, MARGIN = ["references=ccp"], ["references.max_steps=100"], ["loss.neg_margin=1"]
MS = ["loss=ms", "loss.preset=cub"]
FORMS: Mapping[str, Sequence[str]] = {
    "C2": [],
    "C2 + CCP": CCP,
    "C2 + CCP, new proxies every 100 steps": [*CCP, *OFTEN],
    "C2 + CCP, weight 1 within the batch": [*CCP, "references.batch_weight=1"],
    "C2 + CCP, unit length": [*CCP, "normalize=unit"],
    "C2, margin 1": MARGIN,
    "C2 + CCP, margin 1": [*CCP, *MARGIN],
    "C2 + CCP, margin 1, new proxies every 100 steps": [*CCP, *MARGIN, *OFTEN],
    "MS": MS,
    "MS + CCP": [*MS, *CCP],
    "MS + CCP, new proxies every 100 steps": [*MS, *CCP, *OFTEN],
}


def average_features(images: Path, weights: Path) -> tuple[Tensor, Tensor]:
    """Return averaged features (N, 2048) and labels of the classes that train and validate."""
    torch.manual_seed(0)
    settings = {"backbone": {"name": "resnet50_v1", "weights": str(weights)}, "pooling": "gap", "dim": 128}
    backbone = Embedder.create(settings).backbone
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = load_images(str(images))
    kept = found.select_classes(range(CLASSES))
    inputs = CropInputs(ImageCache(kept, resize=256, device=device), make_crops(load_config(None, BASE)))
    with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16):
        features = torch.cat([maps.mean((2, 3)) for maps in iter_features(backbone, inputs, device)])
    return features, torch.from_numpy(inputs.labels.copy())


def count_pairs(objective: Objective, train: FeatureInputs, batches: int = 5) -> dict[str, float]:
    """Return mean distances of pairs of classes, and fractions of them within the margin, in some batches.

    Pairs are of images of a batch, and of its images and all proxies.
    """
    sampler = MPerClassSampler(train.labels, 8, 4, seed=0)
    ccp, loss = objective.references, objective.loss
    assert isinstance(loss, ContrastiveLoss)
    found: dict[str, list[float]] = {}
    for number in range(batches):
        rows = sampler.batch(number)
        labels = torch.from_numpy(train.labels[rows])
        with torch.no_grad():
            embedded = loss.normalizer(objective.model(train.test(rows)))
        others = {"batch": (embedded, labels)}
        if isinstance(ccp, ChanceConstrainedProxies):
            others["proxies"] = (loss.normalizer(ccp.proxies.detach()), ccp.labels)
        for name, (references, theirs) in others.items():
            apart = torch.cdist(embedded, references)[labels[:, None] != theirs]
            found.setdefault(f"{name}, distance", []).append(float(apart.mean()))
            found.setdefault(f"{name}, within margin", []).append(float((apart < loss.neg_margin).float().mean()))
    return {name: round(statistics.fmean(values), 5) for name, values in found.items()}


class PairCounter(Callback):
    """Counts pairs at some validations."""

    def __init__(self, objective: Objective, train: FeatureInputs) -> None:
        self.objective, self.train, self.counts = objective, train, dict[int, dict[str, float]]()

    def validated(self, entry: Mapping[str, float], improved: bool, by: str = "MAP@R") -> None:
        if entry["step"] % 200 == 0 and isinstance(self.objective.loss, ContrastiveLoss):
            self.counts[int(entry["step"])] = count_pairs(self.objective, self.train)


def train_form(words: Sequence[str], fold: int, features: Tensor, labels: Tensor) -> dict[str, Any]:
    """Train a run; return its validation curve, its subproblems, and its pairs."""
    config = resolve_config(load_config(None, [*BASE, *words, f"seed={10 * fold + 1}"]))
    torch.manual_seed(config.seed)
    span = fold_range(CLASSES, fold, FOLDS)
    held_out = (labels >= span.start) & (labels < span.stop)

    def inputs(rows: Tensor) -> FeatureInputs:
        ranks = torch.unique(labels[rows], return_inverse=True)[1].numpy()
        names = [f"image {row}" for row in rows.nonzero()[:, 0].tolist()]
        return FeatureInputs(features[rows][:, :, None, None], ranks, names, torch.device("cpu"))

    train, val = inputs(~held_out), inputs(held_out)
    objective = build_objective(config, Head(features.shape[1], config.dim, config.pooling), CLASSES - len(span))
    counter = PairCounter(objective, train)
    trainer = Trainer(config, objective, train, val, callback=counter)
    history = trainer.fit().history
    problems = [] if trainer.ccp_solver is None else trainer.ccp_solver.records()
    return {
        "step": [entry.step for entry in history],
        "val MAP@R": [round(100 * entry.val["MAP@R"], 3) for entry in history],
        "turned": [problem["turned"] for problem in problems],
        "first steps": [problem["first_step"] for problem in problems],
        "pairs": {str(step): one for step, one in counter.counts.items()},
    }


def run_form(work: Path, form: str, fold: int) -> str:
    """Train a form on a fold and write its run, unless it is finished; return a line about it."""
    torch.set_num_threads(1)
    file, settings = run_file(work, form, fold), [*BASE, *FORMS[form]]
    if not (file.is_file() and json.loads(file.read_text())["settings"] == settings):
        provenance = collect_provenance()
        run = {"form": form, "fold": fold, "settings": settings, "commit": provenance.commit,
               "machine": provenance.to_dict()["machine"]}  # fmt: skip
        write_text(file, json.dumps(run | train_form(FORMS[form], fold, *torch.load(work / "features.pt"))))
    return f"{form}, fold {fold}: {json.loads(file.read_text())['val MAP@R'][-1]}"


def run_file(work: Path, form: str, fold: int) -> Path:
    return work / f"{list(FORMS).index(form):02d}-{fold}.json"


def summarize(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return means over the folds."""
    row: dict[str, Any] = {"n": len(runs), "val MAP@R": statistics.fmean(run["val MAP@R"][-1] for run in runs)}
    turned = [run["turned"][0] for run in runs if run["turned"]]
    if turned:
        row |= {"first turn": statistics.fmean(turned),
                "subproblems": statistics.fmean(len(run["turned"]) for run in runs)}  # fmt: skip
    for step in ("0", "200", "400", "2000"):
        names = runs[0]["pairs"].get(step, {})
        row |= {f"{name}, step {step}": statistics.fmean(run["pairs"][step][name] for run in runs) for name in names}
    return {name: round(value, 5 if "within" in name else 2) for name, value in row.items()}


def main(images: Path, weights: Path, work: Path, jobs: int, folds: Sequence[int]) -> None:
    provenance = collect_provenance()
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "features.pt").is_file():
        torch.save(average_features(images, weights), work / "features.pt")
    plan = [(form, fold) for fold in folds for form in FORMS]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for one in as_completed([pool.submit(run_form, work, form, fold) for form, fold in plan]):
            print(one.result(), flush=True)
    by_form = {form: [json.loads(run_file(work, form, fold).read_text()) for fold in folds] for form in FORMS}
    base = {"C2": "C2", "C2 + CCP, margin 1": "C2, margin 1", "MS": "MS"}
    rows = []
    for form, runs in by_form.items():
        control = base[max((name for name in base if form.startswith(name)), key=len)]
        gains = [one["val MAP@R"][-1] - other["val MAP@R"][-1] for one, other in
                 zip(runs, by_form[control], strict=True)]  # fmt: skip
        gain = {
            "against": control,
            "gain": round(statistics.fmean(gains), 2),
            "gains": [round(one, 2) for one in gains],
        }
        rows.append({"form": form, **summarize(runs), **(gain if form != control else {})})
    for row in rows:
        print({key: value for key, value in row.items() if "step" not in key})
    result = {
        **provenance.to_dict(), "command": f"python {shlex.join(sys.argv)}", "settings": BASE,
        "about": "validation MAP@R in percent of the last averaged weights; pairs of different classes in 5 batches",
        "rows": rows, "runs": [run for runs in by_form.values() for run in runs],
    }  # fmt: skip
    write_text(RESULT, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("images", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("work", type=Path, nargs="?", default=Path("runs/ccp-margin"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folds", default="1,2,3,4")
    given = parser.parse_args()
    main(given.images, given.weights, given.work, given.jobs, [int(one) for one in given.folds.split(",")])
