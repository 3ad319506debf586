"""GSP outside winnow: the example puts it into a plain timm classifier and trains it with other people's losses."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from winnow.models._torchvision import ensure_torchvision
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
    for part in range(2):
        losses += example.train(model, steps=12, batch=16, seed=part)
        if start is None:
            assert model.global_pool.is_ready
            start = model.global_pool.prototypes.detach().clone()
    assert sum(losses[-4:]) < 0.7 * sum(losses[:4])
    assert example.accuracy(model) > before + 0.1
    # An optimiser that knew them before they were set from data trains the prototypes.
    assert (model.global_pool.prototypes - start).abs().amax(dim=1).gt(1e-4).all()


@pytest.mark.parametrize("name", ["ContrastiveLoss", "MultiSimilarityLoss", "TripletMarginLoss"])
def test_other_losses_reach_the_prototypes(example, name):
    from pytorch_metric_learning import losses

    torch.manual_seed(0)
    pooling = GSP(6, prototypes=3, memory=8)
    pooling(torch.randn(8, 6, 4, 4))
    assert pooling.is_ready
    getattr(losses, name)()(pooling(torch.randn(8, 6, 4, 4)), torch.arange(8) // 2).backward()
    assert pooling.prototypes.grad.any()
