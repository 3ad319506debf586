"""Tests of GSP with timm and pytorch-metric-learning."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from winnow.models import ensure_torchvision
from winnow.pooling import GSP

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def example() -> ModuleType:
    ensure_torchvision()
    spec = importlib.util.spec_from_file_location("timm_classifier", ROOT / "examples" / "timm_classifier.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_learns(example):
    torch.manual_seed(0)
    model = example.make_model("test_resnet")
    before = example.accuracy(model)
    start = None
    losses = []
    for seed in range(2):
        losses += example.train(model, steps=12, batch=16, seed=seed)
        if start is None:
            assert model.global_pool.prototypes_ready
            start = model.global_pool.prototypes.detach().clone()
    assert sum(losses[-4:]) < 0.7 * sum(losses[:4])
    assert example.accuracy(model) > before + 0.1
    # The optimizer was built before the prototypes were set, and trains them.
    assert (model.global_pool.prototypes - start).abs().amax(dim=1).gt(1e-4).all()


@pytest.mark.parametrize("name", ["ContrastiveLoss", "MultiSimilarityLoss", "TripletMarginLoss"])
def test_gradients_of_other_losses_reach_the_prototypes(example, name):
    from pytorch_metric_learning import losses

    torch.manual_seed(0)
    pooling = GSP(6, num_prototypes=3, memory_size=8)
    pooling(torch.randn(8, 6, 4, 4))
    assert pooling.prototypes_ready
    getattr(losses, name)()(pooling(torch.randn(8, 6, 4, 4)), torch.arange(8) // 2).backward()
    assert pooling.prototypes.grad.any()
