"""Contract checks run on every registered component, and fail on broken ones with a clear message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from winnow.data import ArrayImages, Splits
from winnow.data.emoji import load_emoji
from winnow.functional.pairs import Pairs
from winnow.losses import LOSSES, MarginLoss, PairLoss, ProxyAnchorLoss
from winnow.pooling import GAP, POOLINGS
from winnow.references import REFERENCES, BatchReferences, CrossBatchMemory
from winnow.testing import check_dataset, check_loss, check_pooling, check_references

POOLED = {"in_features": 8, "dim": 8, "positions": 16, "num_positions": 16}


@pytest.mark.parametrize("name", list(LOSSES))
def test_all_losses_pass(name: str) -> None:
    check_loss(LOSSES[name])


def test_losses_with_classes_pass() -> None:
    check_loss(MarginLoss(num_classes=4), any_labels=False)
    check_loss(lambda: ProxyAnchorLoss(4, 6))


@pytest.mark.parametrize("name", list(POOLINGS))
def test_all_poolings_pass(name: str) -> None:
    check_pooling(POOLINGS.build({"name": name}, **POOLED))


@pytest.mark.parametrize("name", list(REFERENCES))
@pytest.mark.filterwarnings("ignore::winnow.references.MemoryNotInUseWarning")
def test_all_references_pass(name: str) -> None:
    check_references(REFERENCES[name])


def test_memory_in_effect_passes() -> None:
    check_references(CrossBatchMemory(4, 6, num_batches=2, start_step=0))


def test_bundled_dataset_passes() -> None:
    check_dataset(load_emoji(images_per_class=2), num_images=3)


class MeanDistance(PairLoss):
    """Mean distance of positive pairs.

    Args:
        scale: Factor on the value.
    """

    def __init__(self, *, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def compute_loss(self, pairs: Pairs) -> Tensor:
        """Return the scaled mean distance."""
        terms = pairs.distances() * pairs.positives
        return self.scale * terms.sum() / pairs.positives.sum().clamp(min=1)


class NaNWithoutPositives(MeanDistance):
    """Mean of positive pairs.

    Args:
        scale: Factor on the value.
    """

    def compute_loss(self, pairs: Pairs) -> Tensor:
        """Return the mean distance; NaN without pairs."""
        return pairs.distances()[pairs.positives].mean()


class IgnoresMasks(MeanDistance):
    """Mean of all pairs.

    Args:
        scale: Factor on the value.
    """

    def compute_loss(self, pairs: Pairs) -> Tensor:
        """Return the mean distance of all pairs."""
        return pairs.distances().sum() / max(pairs.positives.numel(), 1)


class Undocumented(MeanDistance):
    """Mean distance without Args."""


class Detached(MeanDistance):
    """Mean of detached distances.

    Args:
        scale: Factor on the value.
    """

    def compute_loss(self, pairs: Pairs) -> Tensor:
        """Return a value with half of its gradient."""
        return super().compute_loss(pairs) + super().compute_loss(pairs).detach() + pairs.queries.detach().sum()


class Vector(MeanDistance):
    """Distances.

    Args:
        scale: Factor on the value.
    """

    def compute_loss(self, pairs: Pairs) -> Tensor:
        """Return a vector."""
        return pairs.distances().sum(dim=1)


def test_own_loss_passes() -> None:
    check_loss(MeanDistance)
    check_loss(MeanDistance(scale=2.0))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (NaNWithoutPositives, "NaNWithoutPositives, check 'degenerate batches': the value is not finite"),
        (IgnoresMasks, "check 'excluded pairs'"),
        (Undocumented, "check 'documented settings': no description of scale"),
        (Detached, "check 'finite differences'"),
        (Vector, "the value is torch.float64 .* Return a scalar"),
        (lambda: torch.nn.Linear(1, 1), "Linear, check 'base class': no PairLoss"),
        (lambda first: None, "check 'constructor': requires first"),
    ],
)
def test_broken_losses_fail(loss: Callable[..., Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_loss(loss)


class FirstFeature(GAP):
    """First feature of each image."""

    def pool(self, features: Tensor, mask: Tensor | None) -> Any:
        """Return the first feature with the weights of an average."""
        output = super().pool(features, mask)
        return type(output)(features[:, 0], output.weights, output.attributes)


class UnboundedWeights(GAP):
    """Average with weights that do not sum to 1."""

    def pool(self, features: Tensor, mask: Tensor | None) -> Any:
        """Return doubled weights."""
        output = super().pool(features, mask)
        assert output.weights is not None
        return type(output)(output[0], 2 * output.weights, output.attributes)


@pytest.mark.parametrize(
    ("pooling", "message"),
    [(FirstFeature, "FirstFeature, check 'permutation'"), (UnboundedWeights, "check 'weights': sum of weights")],
)
def test_broken_poolings_fail(pooling: Callable[..., Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_pooling(pooling)


class Forgetful(BatchReferences):
    r"""State that no state dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, loss: Any, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return a value that grows with each call."""
        self.calls += 1
        return super().forward(loss, embeddings, labels) * self.calls


def test_broken_references_fail() -> None:
    with pytest.raises(AssertionError, match="Forgetful, check 'state dict': loaded state"):
        check_references(Forgetful)


class Noisy(ArrayImages):
    """Images that differ between reads."""

    def read(self, index: int) -> Image.Image:
        """Return an image with noise."""
        noise = np.random.default_rng().integers(0, 255, self.pixels[index].shape, dtype=np.uint8)
        return Image.fromarray(noise)


def test_broken_datasets_fail() -> None:
    pixels, labels = np.zeros((4, 5, 5, 3), np.uint8), np.array([0, 0, 1, 1])
    check_dataset(ArrayImages(pixels + np.arange(4, dtype=np.uint8)[:, None, None, None], labels))
    with pytest.raises(AssertionError, match=r"check 'pixels'.*Seed random parts"):
        check_dataset(Noisy(pixels, labels))
    with pytest.raises(AssertionError, match="check 'labels': labels from 0 to 1 for 1 class names"):
        check_dataset(ArrayImages(pixels, labels, class_names=("only",)))
    splits = load_emoji(images_per_class=1)
    with pytest.raises(AssertionError, match="'class-disjoint': train and val share"):
        check_dataset(replace(splits, val=splits.train.select(range(20))), num_images=1)
    assert isinstance(splits, Splits)
