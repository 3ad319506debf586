"""Pretraining of small networks, for which no published weights exist."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from winnow.data import ImageSet
from winnow.errors import ModelError
from winnow.files import parse_json, read_text
from winnow.integrity import check_listed, write_checked, write_checked_text
from winnow.models import Backbone
from winnow.models.architectures import ResNetCIFAR
from winnow.seeding import fork_rng


@dataclass(frozen=True)
class Recipe:
    """Settings of SGD with Nesterov momentum and a one-cycle learning rate."""

    epochs: int = 40
    batch: int = 512
    lr: float = 0.4  # highest learning rate of the cycle
    weight_decay: float = 5e-4
    shift: int = 4  # pixels by which images are shifted at most, in both directions; half of them are mirrored
    seed: int = 0


def pretrain(
    target: Path,
    train: ImageSet,
    held_out: ImageSet,
    recipe: Recipe,
    *,
    note: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Train a ResNet-20 to classify images; save its weights without the classifier.

    Weights of the same images and recipe are reused.

    Args:
        target: A .safetensors file for the weights, as `backbone.weights` takes it; a .json next to it describes them.
        train: Training images of one size.
        held_out: Images of the same classes to measure the accuracy on.
        recipe: Settings of the training.
        note: Called with the accuracy.

    Returns:
        Content of the .json file: images, classes, the recipe, and the accuracy on the held-out images.
    """
    requested = {"images": len(train), "classes": len(train.class_names), "held_out": len(held_out),
                 "fingerprint": train.fingerprint(), "recipe": asdict(recipe)}  # fmt: skip
    record = read_record(target)
    if record is not None and target.is_file() and all(record.get(key) == value for key, value in requested.items()):
        return record
    started = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with fork_rng():
        torch.manual_seed(recipe.seed)
        network = ResNetCIFAR()
        backbone = Backbone(network, out_index=None, num_features=network.num_features, freeze_batch_norm=False)
        model = nn.Sequential(backbone, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                              nn.Linear(backbone.num_features, len(train.class_names))).to(device)  # fmt: skip
        _fit(model, _pixels(train, device), torch.from_numpy(train.labels).to(device), recipe)
    right = accuracy(model, _pixels(held_out, device), torch.from_numpy(held_out.labels).to(device))
    state = {key: value.detach().cpu().contiguous() for key, value in network.state_dict().items()}
    from safetensors.torch import save_file

    write_checked(target, lambda partial: save_file(state, partial))
    record = {**requested, "accuracy": round(right, 4), "seconds": round(time.perf_counter() - started, 1)}
    write_checked_text(target.with_suffix(".json"), json.dumps(record, indent=2) + "\n")
    note(f"{target.stem}: {100 * right:.1f}% of the held-out images classified correctly after {record['seconds']} s")
    return record


def read_record(target: Path) -> dict[str, Any] | None:
    """Return the description of a file of weights; None if it is missing or damaged."""
    try:
        for file in (target, target.with_suffix(".json")):
            check_listed(file)
        record: dict[str, Any] = parse_json(read_text(target.with_suffix(".json")))
        return record
    except (OSError, ValueError, ModelError):
        return None


def shifted(images: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Shift each image by random numbers of pixels, and mirror half of the images.

    Pixels from outside an image are black.

    Args:
        images: (B, C, h, w).
        most: Largest shift in pixels, in both directions.
        generator: On the device of the images.
    """
    count, _, height, width = images.shape
    device = images.device
    moves = torch.randint(0, 2 * most + 1, (2, count, 1), generator=generator, device=device)
    rows = moves[0] + torch.arange(height, device=device)
    columns = moves[1] + torch.arange(width, device=device)
    mirrored = torch.rand(count, 1, generator=generator, device=device) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    padded = pad(images, [most] * 4)
    which = torch.arange(count, device=device)[:, None, None]
    # Indices before and after the colors put these last.
    return padded[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


@torch.inference_mode()
def accuracy(model: nn.Module, pixels: Tensor, labels: Tensor, batch: int = 1000) -> float:
    """Return the fraction of images (N, 3, h, w) in bytes with the correct class."""
    model.eval()
    named = [model(part / 255).argmax(dim=1) for part in torch.split(pixels, batch)]
    return float((torch.cat(named) == labels).float().mean())


def _fit(model: nn.Module, pixels: Tensor, labels: Tensor, recipe: Recipe) -> None:
    count = len(labels)
    batch = min(recipe.batch, count)
    steps = count // batch
    optimizer = torch.optim.SGD(
        model.parameters(), lr=recipe.lr, momentum=0.9, weight_decay=recipe.weight_decay, nesterov=True
    )
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.lr, recipe.epochs * steps)
    generator = torch.Generator(pixels.device).manual_seed(recipe.seed)
    model.train()
    for _ in range(recipe.epochs):
        order = torch.randperm(count, generator=generator, device=pixels.device)
        for rows in order[: steps * batch].view(steps, batch):
            images = shifted(pixels[rows], recipe.shift, generator) / 255
            loss = cross_entropy(model(images), labels[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            cycle.step()


def _pixels(images: ImageSet, device: torch.device) -> Tensor:
    """Return all images (N, 3, h, w) as bytes on the device."""
    read = np.stack([np.asarray(images.read(index)) for index in range(len(images))])
    return torch.from_numpy(read).permute(0, 3, 1, 2).contiguous().to(device)
