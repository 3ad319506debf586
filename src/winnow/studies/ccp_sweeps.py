"""Comparisons of CCP: on single emoji with a frozen backbone in small, on a fold of CUB-200-2011 in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from winnow.studies import single_emoji
from winnow.studies.base import Task
from winnow.studies.cub_losses import CCP, CONFIG
from winnow.studies.methods import Comparison, Method

STEPS, EVERY = 500, 10
SMALL = ["pooling=gap", "dim=128", "train.lr=3e-3", f"train.steps={STEPS}", f"train.eval_every={EVERY}"]
# Chapter 3 validates every 25 steps and waits for 60 validations, with CCP and without.
FULL = ["pooling=gap", "train.eval_every=25", "train.patience=60"]

_C2 = ["loss=c2", "loss.positive_margin=0.2", "loss.negative_margin=0.9"]
LOSSES: Mapping[bool, Mapping[str, Sequence[str]]] = {
    True: {"C2": _C2, "MS": ["loss=ms"], "Triplet": ["loss=triplet"]},
    False: {name: [f"loss={name.lower()}", "loss.preset=cub"] for name in ("C2", "MS", "Triplet")},
}
"""Pair losses, by whether the setting is small."""

WHERE = {
    True: (
        "On single emoji (40 classes of 20 images train, 20 validate, 40 test) with a frozen backbone, average pooling "
        f"and at most {STEPS} steps, validated every {EVERY} (the learning rate and C2's margins were chosen in short "
        "runs with seed 0, the test classes in view, so that CCP goes through several problems)"
    ),
    False: (
        "On the first fold of the fair protocol on CUB-200-2011 with ResNet-50 (the documents: BN-Inception), average "
        "pooling, unit vectors (the documents only shorten long ones), validated every 25 steps with a patience of 60"
    ),
}


def ccp(*, per_class: int | None = None, pool: int | None = None, problems: int | None = None) -> list[str]:
    """Return the words of CCP with the documents' proxies and pools for CUB, but for those that are given."""
    settings = {"per_class": per_class, "pool": pool, "problems": problems}
    return [*CCP[:2], *(f"references.{key}={value}" for key, value in settings.items() if value is not None)]


def images_of(task: Task) -> Path:
    """Return where the made images of a small study are: beside its runs, for all of these studies."""
    return task.runs.parent / "single-emoji"


def compare(methods: Sequence[Method], task: Task) -> Comparison:
    """Return a comparison on single emoji with two seeds, or in full on CUB with three."""
    if not task.small:
        return Comparison(methods, seeds=(0, 1, 2), words=FULL, file=CONFIG)
    words = [f"data={images_of(task)}", *single_emoji.WORDS, *SMALL]
    return Comparison(methods, seeds=(0, 1), words=words)


def train(compared: Comparison, task: Task) -> dict[str, list[dict[str, Any]]]:
    """Train what is not trained yet, on images that are made where they are not there; return the results."""
    if task.small and not task.only_finished:
        single_emoji.make_single_emoji(images_of(task))
    return compared.train(task)
