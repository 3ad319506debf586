"""Chapter 4's model: ResNet-20 on Cifar-10 whose local features lie in a plane, and are averaged there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from winnow.data.datasets import DATASETS
from winnow.errors import DataError
from winnow.pooling.base import as_tokens
from winnow.studies.artifacts import TrainedModel, open_trained
from winnow.studies.base import Task
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import percent
from winnow.studies.zero_shot import CIFAR10
from winnow.training.build import load_splits

# The documents give no loss and no margins. Theirs are meant for networks that know ImageNet: from nothing, all classes
# stay in one place with them, hence the wide one. No vector is longer than one, as in their picture.
PLANE = ["backbone.weights=random", "pooling=gap", "dim=2", "normalize=ball", "loss=c2", "loss.neg_margin=1.0"]
METHOD = Method("GAP", [])


@dataclass(frozen=True)
class Looked:
    """Local features of some images.

    Attributes:
        spaces: Features (N, n, d) in the plane and in the backbone's own space.
        labels: (N,) classes of the images.
        classes: Their names.
        where: What they are of.
    """

    spaces: Mapping[str, Tensor]
    labels: Tensor
    classes: Sequence[str]
    where: str


def comparison(task: Task) -> Comparison:
    """Return the one run."""
    place = [] if task.data is None else [f"data.root={task.data}"]
    return Comparison([METHOD], seeds=(0,), words=[*CIFAR10.to_args(), *PLANE, *place])


def cifar_features(task: Task, per_class: int) -> Looked:
    """Train the model where it is not trained yet, and look at some test images of each class.

    Raises:
        DataError: where Cifar-10 is not there, or the model is not trained and is not to be.
    """
    DATASETS["cifar10"].load(task.data)  # said at once where it is not there
    compared = comparison(task)
    found = compared.train(task)[METHOD.name]
    if not found:
        raise DataError(f"no trained model in {task.runs}: `{task.command('average-pooling')}` trains it")
    run = compared.plan(METHOD, 0, task)
    splits = load_splits(run.config, task.shared)
    spaces, labels = look(open_trained(run, splits, task.shared), per_class)
    assert splits.test is not None, "a study compares on test images"
    where = (
        f"Cifar-10 with ResNet-20, trained from nothing to embed in the plane by average pooling (C2; MAP@R "
        f"{percent(found)[0]:.1f} % on its test images), {per_class} test images of each class"
    )
    return Looked(spaces, labels, splits.test.class_names, where)


@torch.no_grad()
def look(trained: TrainedModel, per_class: int) -> tuple[dict[str, Tensor], Tensor]:
    """Return local features of some test images of each class in both spaces, and their labels."""
    labels = trained.inputs.labels
    chosen = [int(index) for label in np.unique(labels) for index in np.flatnonzero(labels == label)[:per_class]]
    maps = torch.cat([trained.features(chosen[start : start + 500]) for start in range(0, len(chosen), 500)])
    spaces = {"plane": trained.embedder.head.project(maps).cpu(), "backbone": as_tokens(maps).cpu()}
    return spaces, torch.from_numpy(labels[chosen])
