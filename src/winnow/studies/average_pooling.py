"""What average pooling does, on local features of a model in the plane and in the backbone's own space (chapter 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from winnow.data import ImageSet, MPerClassSampler, load_images
from winnow.data.emoji import load_emoji
from winnow.errors import ConfigError
from winnow.functional import analyze_average_pooling
from winnow.losses import ContrastiveLoss
from winnow.models import Embedder
from winnow.pooling.base import as_tokens
from winnow.studies.average_pooling_model import Looked, cifar_features, comparison
from winnow.studies.average_pooling_report import PER_CLASS, PROTOTYPES, draw, row_of, told
from winnow.studies.base import Findings, Task, with_data, with_runs
from winnow.training import load_config
from winnow.training.build import make_crops, resolve_config
from winnow.training.features import extract_features

CLASSES = 10  # as in the documents
SOME = 16  # images of a class in small
COUNTS = (12, PROTOTYPES, 192)
WORDS = ["data=emoji", "backbone.train=frozen", "train.device=cpu", "dim=2", "pooling=gap"]


def pick_images(task: Task, per_class: int) -> ImageSet:
    """Return some images of the first classes: of the embedded set, or of the folder that was named."""
    whole = load_emoji(images_per_class=per_class).train if task.data is None else load_images(task.data)
    chosen = whole.select_classes(range(min(CLASSES, len(whole.class_names))))
    keep = [
        int(i) for label in range(len(chosen.class_names)) for i in np.flatnonzero(chosen.labels == label)[:per_class]
    ]
    return chosen.select(keep)


def local_features(images: ImageSet, words: Sequence[str]) -> Tensor:
    """Return a pretrained backbone's local features (N, n, C)."""
    config = resolve_config(load_config(None, list(words)))
    backbone = Embedder.create(config).backbone
    inputs, _ = extract_features(backbone, images, make_crops(config), torch.device("cpu"))
    return as_tokens(inputs.whole())


def train_plane(features: Tensor, labels: Tensor, steps: int) -> Tensor:
    """Return local features (N, n, 2) in a plane in which average pooling with C2 tells the classes apart.

    The projection is linear, so that average pooling of what it makes is what it makes of the averages.
    """
    means = features.mean(dim=1)
    scale = means.std()
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(2, means.shape[1]) / means.shape[1] ** 0.5)
    optimizer = torch.optim.Adam([weight], lr=3e-3)
    loss = ContrastiveLoss(pos_margin=0.0, neg_margin=0.5)
    loss.normalizer = lambda vectors: vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1.0)
    own = labels.numpy()
    sampler = MPerClassSampler(own, min(CLASSES, int(own.max()) + 1), 4, seed=0)
    for step in range(steps):
        rows = torch.as_tensor(sampler.batch(step))
        value = loss(means[rows] / scale @ weight.mT, labels[rows])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return (features / scale) @ weight.detach().mT


@with_data(small=True, full=True)
@with_runs
def study(task: Task) -> Findings:
    """Average pooling as a convex combination of prototypes: the bound for every image, class hulls (Figs. 4.2-4.4).

    Cost: 1 minute; in full Cifar-10, 40 minutes on two cores, less on a GPU.
    """
    looked = small_features(task) if task.small else cifar_features(task, PER_CLASS)
    labels = looked.labels
    rows: list[dict[str, Any]] = []
    figure = None
    for name, space in looked.spaces.items():
        scaled = space / space.norm(dim=2).max()  # as in the documents: no feature is longer than one
        for count in COUNTS:
            task.note(f"{count} prototypes, {name}")
            found = analyze_average_pooling(scaled, labels, count)
            rows.append(row_of(name, scaled.shape[2], found))
            if (name, count) == ("plane", PROTOTYPES):
                figure = draw(found, scaled, labels, looked.classes)
    assert figure is not None
    words = WORDS if task.small else list(comparison(task).words)
    settings = {"small": task.small, "classes": int(labels.max()) + 1, "images": len(labels), "words": words}
    return Findings("What average pooling does", told(rows, looked.where), rows, figure, settings)


def small_features(task: Task) -> Looked:
    """Return local features in a plane and in a pretrained backbone's own space.

    Raises:
        ConfigError: for settings, since no run takes them here.
    """
    asked = [*task.words, *(["--methods"] if task.methods else []), *(["--seeds"] if task.seeds is not None else [])]
    if asked:
        raise ConfigError(f"{asked[0]}: settings are of the run that --full trains; leave them out")
    images = pick_images(task, SOME)
    task.note(f"local features of {len(images)} images")
    features, labels = local_features(images, WORDS), torch.from_numpy(images.labels)
    data = "The embedded set" if task.data is None else task.data.name
    where = f"{data} with a frozen pretrained backbone and a plane learned from its averages, {len(images)} images"
    return Looked(
        {"plane": train_plane(features, labels, 300), "backbone": features}, labels, images.class_names, where
    )
