"""Find what lets C2 with CCP collapse in the first steps, on a small network that is fine-tuned.

    python scripts/ccp_collapse.py IMAGES [WORK] [--jobs N]

IMAGES has CIFAR-100, or some images of each class, as class folders below `train` and `test`. WORK keeps the
pretrained network and finished runs of these settings, so an interrupted script resumes. Writes
results/ccp_collapse.json after the last run. A ResNet-20 is pretrained on 45 classes. Its last stage and a projection
are then fine-tuned on 32 other classes, from stored maps of two crops per image; 8 classes validate and 15 test.
Margins, normalization, and a learning rate ten times that of CUB are those of [Thesis] for Cars196, where C2 + CCP
collapsed. A run takes a minute on one core.
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

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from winnow.data import Labels
from winnow.files import write_text
from winnow.models import Embedder, Head, principal_directions
from winnow.models.architectures import ResNetCIFAR
from winnow.models.backbone import Backbone
from winnow.training import Trainer, load_config
from winnow.training.build import resolve_config
from winnow.training.objective import build_objective
from winnow.training.results import collect_provenance

ROOT = Path(__file__).resolve().parents[1]
ROLES = {"pretrain": 45, "train": 32, "val": 8, "test": 15}  # classes; no class has two roles
EVERY = 2  # every second image of a validation or test class is evaluated
SEEDS = (0, 1, 2)
MEAN = torch.tensor([0.5071, 0.4865, 0.4409]).view(1, 3, 1, 1)
STD = torch.tensor([0.2673, 0.2564, 0.2762]).view(1, 3, 1, 1)
EPOCHS, BATCH, STAGES = 10, 128, 7  # of pretraining; the stem and two stages are not fine-tuned
STEPS, LATE = 300, 200  # the last third follows step 200

BASE = [
    "backbone=resnet20", "backbone.weights=random", "backbone.train=full", "pooling=gap", "dim=64", "normalize=ball",
    "loss=c2", "loss.preset=cars", "train.lr=1e-3", "train.classes_per_batch=16", "train.samples_per_class=4",
    f"train.max_steps={STEPS}", "train.eval_steps=25", "train.patience=1000", "train.average=0",
    "train.eval_batch_size=512", "train.test_curve=true", "train.device=cpu",
]  # fmt: skip
MARGIN = ["loss.pos_margin=0", "loss.neg_margin=1"]
CCP, LITERAL = ["references=ccp"], ["references=ccp", "references.preset=literal"]
SLOWER, TENTH = [*CCP, "references.lr_multiplier=10"], ["train.lr=1e-4"]
OFTEN = [*SLOWER, "references.max_steps=25"]
FORMS: Mapping[str, Sequence[str]] = {
    "C2": [],
    "C2 + CCP, literal": LITERAL,
    "C2 + CCP, moving": CCP,
    "C2, margin 1": MARGIN,
    "C2 + CCP, literal, margin 1": [*LITERAL, *MARGIN],
    "C2 + CCP, moving, margin 1": [*CCP, *MARGIN],
    "C2 + CCP, literal, from the best weights": [*LITERAL, "references.start_from=best"],
    "C2 + CCP, moving, from the last weights": [*CCP, "references.start_from=last"],
    "C2 + CCP, moving, unit length": [*CCP, "normalize=unit"],
    "C2 + CCP, moving, averaged weights": [*CCP, "train.average=0.99"],
    "C2 + CCP, moving at 10 times": SLOWER,
    "C2 + CCP, moving at 10 times, margin 1": [*SLOWER, *MARGIN],
    "C2 + CCP, new proxies every 25 steps": OFTEN,
    "C2 + CCP, new proxies every 25 steps, margin 1": [*OFTEN, *MARGIN],
    "C2, a tenth of the rate": TENTH,
    "C2 + CCP, literal, a tenth of the rate": [*LITERAL, *TENTH],
    "C2 + CCP, moving, a tenth of the rate": [*CCP, *TENTH],
    "C2 + CCP, new proxies every 25 steps, a tenth of the rate": [*CCP, "references.max_steps=25", *TENTH],
}


class Last(nn.Sequential):
    """The last stage of the network."""

    num_features = 64

    def forward_features(self, maps: Tensor) -> Tensor:
        result: Tensor = self(maps)
        return result


class StoredMaps:
    """Maps of images, and in training of one of two crops of each."""

    def __init__(self, maps: Tensor, labels: Tensor, crops: Sequence[Tensor] = ()) -> None:
        self.maps, self.crops = maps, crops
        self.labels: Labels = labels.numpy()

    def name(self, index: int) -> str:
        return f"image {index}"

    def train(
        self, indices: Any, generator: torch.Generator, out: Tensor | None = None, rows: slice = slice(None)
    ) -> Tensor:
        chosen = torch.randint(0, len(self.crops), (len(indices),), generator=generator)[rows].tolist()
        images = np.asarray(indices)[rows].tolist()
        maps = torch.stack([self.crops[crop][image] for crop, image in zip(chosen, images, strict=True)]).float()
        return maps if out is None else out.copy_(maps)

    def test(self, indices: Any) -> Tensor:
        return self.maps[torch.as_tensor(indices)].float()


def read_images(folder: Path) -> tuple[Tensor, Labels]:
    """Return all images (N, 32, 32, 3) and labels by the names of the classes; test images of a class come first."""
    names = sorted(path.name for path in (folder / "train").iterdir())
    pixels, labels = [], []
    for label, name in enumerate(names):
        for part in ("test", "train"):
            for file in sorted((folder / part / name).glob("*.png")):
                with Image.open(file) as image:
                    pixels.append(np.asarray(image.convert("RGB")))
                labels.append(label)
    return torch.from_numpy(np.stack(pixels)), np.asarray(labels)


def normalized(pixels: Tensor) -> Tensor:
    return (pixels.permute(0, 3, 1, 2).float() / 255 - MEAN) / STD


def random_crops(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Return shifted and flipped images, as usual on CIFAR."""
    crops = []
    for image in nn.functional.pad(normalized(pixels), (4, 4, 4, 4), mode="reflect"):
        top, left = torch.randint(0, 9, (2,), generator=generator).tolist()
        crop = image[:, top : top + 32, left : left + 32]
        crops.append(crop.flip(-1) if torch.rand(1, generator=generator) < 0.5 else crop)
    return torch.stack(crops)


def pretrain(pixels: Tensor, labels: Labels, generator: torch.Generator, rng: np.random.Generator) -> ResNetCIFAR:
    """Train a ResNet-20 to classify; labels are 0 .. C - 1."""
    torch.manual_seed(0)
    network, classifier = ResNetCIFAR(3), nn.Linear(64, int(labels.max()) + 1)
    parameters = [*network.parameters(), *classifier.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    per_epoch = len(labels) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=EPOCHS * per_epoch)
    for _ in range(EPOCHS):
        order = rng.permutation(len(labels))
        for rows in order[: per_epoch * BATCH].reshape(per_epoch, BATCH):
            images = random_crops(pixels[rows], generator).contiguous(memory_format=torch.channels_last)
            with torch.autocast("cpu", torch.bfloat16):
                features = network(images).float().mean((2, 3))
            loss = nn.functional.cross_entropy(classifier(features), torch.from_numpy(labels[rows]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return network.eval()


def prepare(images: Path, file: Path) -> dict[str, int]:
    """Pretrain the network, store its last stage and the maps before it, and return the images of each role."""
    pixels, labels = read_images(images)
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    ends = np.cumsum(list(ROLES.values()))
    roles = dict(zip(ROLES, np.split(rng.permutation(100), ends[:-1]), strict=True))
    rows = {role: np.flatnonzero(np.isin(labels, classes)) for role, classes in roles.items()}
    rank = {label: position for position, label in enumerate(roles["pretrain"].tolist())}
    own = rows["pretrain"]
    network = pretrain(pixels[own], np.asarray([rank[one] for one in labels[own].tolist()]), generator, rng)
    layers = list(network)
    first = nn.Sequential(*layers[:STAGES])

    @torch.no_grad()
    def maps_of(batch: Tensor) -> Tensor:
        parts = [part.contiguous(memory_format=torch.channels_last) for part in batch.split(256)]
        return torch.cat([first(part).to(torch.bfloat16) for part in parts])

    stored: dict[str, Any] = {"last": nn.Sequential(*layers[STAGES:]).state_dict()}
    for role in ("train", "val", "test"):
        some = rows[role][:: 1 if role == "train" else EVERY]
        ranks = np.searchsorted(np.sort(roles[role]), labels[some])
        stored[role] = (maps_of(normalized(pixels[some])), torch.from_numpy(ranks))
        if role == "train":
            stored["crops"] = [maps_of(random_crops(pixels[some], generator)) for _ in range(2)]
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(stored, file)
    return {"pretrain": len(own), **{role: len(stored[role][1]) for role in ("train", "val", "test")}}


def train_form(words: Sequence[str], seed: int, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Train a run; return its curve on test classes, and where classes are before training."""
    config = resolve_config(load_config(None, [*BASE, *words, f"seed={seed}"]))
    torch.manual_seed(seed)
    last = Last(*list(ResNetCIFAR(3))[STAGES:])
    last.load_state_dict(stored["last"])
    backbone = Backbone(last, out_index=None, num_features=64, mean=(0.0,), std=(1.0,), freeze_batch_norm=True)
    embedder = Embedder(backbone, Head(64, config.dim, config.pooling), config)
    inputs = {
        "train": StoredMaps(*stored["train"], stored["crops"]),
        **{r: StoredMaps(*stored[r]) for r in ("val", "test")},
    }
    with torch.no_grad():
        features = torch.cat([backbone.eval()(part.float()).mean((2, 3)) for part in inputs["train"].maps.split(512)])
        embedder.head.init_projection(directions=principal_directions(features))
        embeddings = nn.functional.normalize(embedder.head.projection(features))
    labels = torch.from_numpy(inputs["train"].labels)
    chosen = torch.from_numpy(np.random.default_rng(0).choice(len(labels), 400, replace=False))
    distances = torch.cdist(embeddings[chosen], embeddings[chosen])
    others = distances[labels[chosen, None] != labels[None, chosen]]
    objective = build_objective(config, embedder, ROLES["train"])
    trainer = Trainer(config, objective, inputs["train"], inputs["val"], test=inputs["test"])
    history = trainer.fit().history
    problems = [] if trainer.ccp_solver is None else trainer.ccp_solver.records()
    return {
        "other classes, distance": float(others.mean()),
        "step": [entry.step for entry in history],
        **{f"test {metric}": [round(100 * entry.test[metric], 3) for entry in history] for metric in ("MAP@R", "P@1")},
        "val MAP@R": [round(100 * entry.val["MAP@R"], 3) for entry in history],
        "turned": [problem["turned"] for problem in problems],
        "first steps": [problem["first_step"] for problem in problems],
    }


def summarize(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return mean and standard deviation of a form over its seeds."""

    def late(run: Mapping[str, Any], metric: str) -> float:
        pairs = zip(run["step"], run[f"test {metric}"], strict=True)
        return statistics.fmean(value for step, value in pairs if step > LATE)

    def at_best(run: Mapping[str, Any]) -> float:
        curve: list[float] = run["test MAP@R"]
        return curve[int(np.argmax(run["val MAP@R"]))]

    values = {
        "before": [run["test MAP@R"][0] for run in runs], "lowest": [min(run["test MAP@R"]) for run in runs],
        "best validation": [at_best(run) for run in runs], "last third": [late(run, "MAP@R") for run in runs],
        "last third, P@1": [late(run, "P@1") for run in runs],
        "first turn": [run["turned"][0] for run in runs if run["turned"]],
    }  # fmt: skip
    row: dict[str, Any] = {"n": len(runs)}
    for name, each in values.items():
        if each:
            row[name] = round(statistics.fmean(each), 2)
            row[f"{name}, std"] = round(statistics.stdev(each), 2) if len(each) > 1 else None
    return row


def run_file(work: Path, form: str, seed: int) -> Path:
    return work / f"{list(FORMS).index(form):02d}-{seed}.json"


def is_finished(file: Path, words: Sequence[str], prepared: Mapping[str, Any]) -> bool:
    """Return whether a file holds a run with these settings and from this network."""
    if not file.is_file():
        return False
    run = json.loads(file.read_text())
    return bool(run["settings"] == [*BASE, *words] and run["prepared"] == prepared)


def run_form(work: Path, form: str, seed: int, prepared: Mapping[str, Any]) -> str:
    """Train a form and write its run; return its name."""
    torch.set_num_threads(1)
    stored = torch.load(work / "maps.pt", mmap=True)
    provenance = collect_provenance()
    found = train_form(FORMS[form], seed, stored)
    run = {"form": form, "seed": seed, "settings": [*BASE, *FORMS[form]], "commit": provenance.commit,
           "machine": provenance.to_dict()["machine"], "prepared": prepared, **found}  # fmt: skip
    write_text(run_file(work, form, seed), json.dumps(run))
    return f"{form}, seed {seed}: {summarize([run])}"


def main(images: Path, work: Path, jobs: int) -> None:
    provenance = collect_provenance()
    record = work / "prepared.json"
    if not record.is_file():
        torch.set_num_threads(jobs)
        counts = prepare(images, work / "maps.pt")
        write_text(record, json.dumps({"commit": provenance.commit, "epochs": EPOCHS, "images": counts}))
    prepared = json.loads(record.read_text())
    missing = [
        (form, seed)
        for seed in SEEDS
        for form, words in FORMS.items()
        if not is_finished(run_file(work, form, seed), words, prepared)
    ]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for one in as_completed([pool.submit(run_form, work, form, seed, prepared) for form, seed in missing]):
            print(one.result(), flush=True)
    by_form = {form: [json.loads(run_file(work, form, seed).read_text()) for seed in SEEDS] for form in FORMS}
    runs = [{key: value for key, value in run.items() if key != "prepared"} for own in by_form.values() for run in own]
    result = {
        **provenance.to_dict(), "command": f"python {shlex.join(sys.argv)}", "prepared": prepared, "settings": BASE,
        "rows": [{"form": form, **summarize(own)} for form, own in by_form.items()], "runs": runs,
    }  # fmt: skip
    write_text(ROOT / "results" / "ccp_collapse.json", json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("images", type=Path)
    parser.add_argument("work", type=Path, nargs="?", default=Path("runs/ccp-collapse"))
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    main(given.images, given.work, given.jobs)
