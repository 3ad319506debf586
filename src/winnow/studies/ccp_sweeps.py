"""Comparisons of CCP: on single emoji with a frozen backbone in small, on a fold of CUB-200-2011 in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from winnow.protocols.spec import ABLATION
from winnow.studies import synthetic_images
from winnow.studies.base import Task
from winnow.studies.cub_losses import CCP, CONFIG
from winnow.studies.methods import Comparison, Method

STEPS, EVERY = 500, 10
SMALL = ["pooling=gap", "dim=128", "train.lr=3e-3", f"train.max_steps={STEPS}", f"train.eval_steps={EVERY}"]
# Chapter 3 validates every 25 steps and waits for 60 validations, with CCP and without.
FULL = ["pooling=gap", "train.eval_steps=25", "train.patience=60"]

_C2 = ["loss=c2", "loss.pos_margin=0.2", "loss.neg_margin=0.9"]
LOSSES: Mapping[bool, Mapping[str, Sequence[str]]] = {
    True: {"C2": _C2, "MS": ["loss=ms"], "Triplet": ["loss=triplet"]},
    False: {name: [f"loss={name.lower()}", "loss.preset=cub"] for name in ("C2", "MS", "Triplet")},
}
"""Pair losses, by whether the setting is small."""

WHERE = {
    True: (
        "Made on single emoji (40 classes of 20 images train, 20 validate, 40 test) with a frozen backbone, average "
        f"pooling and at most {STEPS} steps, validated every {EVERY}. The learning rate and C2's margins were chosen "
        "in short runs with seed 0, the test classes in view, so that CCP goes through several problems."
    ),
    False: (
        "Made on the first fold of the fair protocol on CUB-200-2011 and judged on the test classes, with ResNet-50, "
        "average pooling and unit vectors, validated every 25 steps with a patience of 60."
    ),
}
THEIRS = "BN-Inception, vectors that are only shortened where they are long, and Cars196 too"
"""What the documents have otherwise in all of these studies."""
ABLATIONS = (
    "ablations train on two thirds of the training classes and are judged on the last third, with a patience of "
    f"{ABLATION.patience[0]}"
)
"""What they have otherwise in most, which is not the fair protocol."""


def where(small: bool, *, fair: bool = False) -> str:
    """Say how a comparison was made, and in what the documents' is another.

    Args:
        small: Whether the setting is small.
        fair: Whether the documents' comparison is of the fair protocol as well.
    """
    if small:
        return WHERE[small]
    theirs = (
        f"The documents have all four folds, {THEIRS}" if fair else f"The documents' {ABLATIONS}; they have {THEIRS}"
    )
    return f"{WHERE[small]} {theirs}."


def ccp(*, per_class: int | None = None, pool: int | None = None, problems: int | None = None) -> list[str]:
    """Return the words of CCP with the documents' proxies and pools for CUB, but for those that are given."""
    settings = {"proxies_per_class": per_class, "pool_size": pool, "max_problems": problems}
    return [*CCP[:2], *(f"references.{key}={value}" for key, value in settings.items() if value is not None)]


def images_of(task: Task) -> Path:
    """Return where the made images of a small study are: beside its runs, for all of these studies."""
    return task.runs.parent / "single-emoji"


def compare(methods: Sequence[Method], task: Task) -> Comparison:
    """Return a comparison on single emoji with two seeds, or in full on CUB with three."""
    if not task.small:
        return Comparison(methods, seeds=(0, 1, 2), words=FULL, file=CONFIG)
    words = [f"data={images_of(task)}", *synthetic_images.SINGLE_EMOJI, *SMALL]
    return Comparison(methods, seeds=(0, 1), words=words)


def train(compared: Comparison, task: Task) -> dict[str, list[dict[str, Any]]]:
    """Train what is not trained yet, on images that are made where they are not there; return the results."""
    make_images(task)
    return compared.train(task)


def make_images(task: Task) -> None:
    """Make the images of a small study where they are not there and something is to be trained."""
    if task.small and not task.only_finished:
        synthetic_images.write_single_emoji(images_of(task))
