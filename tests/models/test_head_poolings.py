"""Every pooling inside a model: sizes, gradients, saving, and backbones that it cannot take."""

from pathlib import Path

import numpy as np
import pytest
import torch

from winnow import Embedder
from winnow.errors import ConfigError
from winnow.losses import LOSSES
from winnow.models import Head
from winnow.pooling import POOLINGS, PrototypePooling
from winnow.references import REFERENCES
from winnow.training import make_config
from winnow.training.learner import check_parts

pytestmark = pytest.mark.filterwarnings("ignore:the backbone .* starts from random weights")
every_pooling = pytest.mark.parametrize("name", list(POOLINGS))
DIM = 16


def settings(name: str) -> dict[str, object]:
    few = {"prototypes": 4, "memory": 8} if issubclass(POOLINGS[name], PrototypePooling) else {}
    return POOLINGS.resolve({"name": name, **few})


def head(name: str) -> Head:
    torch.manual_seed(0)
    made = Head(10, DIM, settings(name), positions=12)
    made(torch.randn(8, 10, 3, 4))  # sets prototypes
    return made


@every_pooling
def test_embeddings_have_the_size_asked_for(name):
    made = head(name)
    maps = torch.randn(2, 10, 3, 4)
    assert made(maps).shape == (2, DIM)
    details = made(maps, details=True)
    assert (details.weights is not None) is made.pooling.has_weights
    if made.pooling.takes != "grid":
        torch.testing.assert_close(made.eval()(maps.flatten(2).mT), made(maps))
    mask = torch.ones(2, 3, 4, dtype=torch.bool)
    torch.testing.assert_close(made.eval()(maps, mask), made(maps))


@every_pooling
def test_training_reaches_every_parameter(name):
    made = head(name)
    loss, labels = LOSSES.build({"name": "c2"}), torch.arange(8) // 2
    source = REFERENCES.build({"name": "batch"})
    for step in range(2):  # what starts at zero lets others learn only after a step
        source(loss, made(torch.randn(8, 10, 3, 4).abs()), labels).backward()
        if step == 0:
            with torch.no_grad():
                for parameter in made.parameters():
                    parameter.sub_(0.1 * parameter.grad)
            made.zero_grad()
    for key, parameter in made.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        # What shifts all scores of a softmax or all inputs of a batch norm alike has no gradient.
        if key not in ("pooling.reduce_channels.bias", "pooling.reduce_places.bias"):
            assert parameter.grad.any(), key


@every_pooling
def test_a_saved_model_comes_back_the_same(name, tmp_path: Path):
    torch.manual_seed(0)
    tree = {"backbone": {"name": "resnet20", "weights": "random"}, "image": {"resize": 32, "crop": 32}, "dim": DIM}
    model = Embedder.create({**tree, "pooling": settings(name)})
    images = torch.rand(8, 3, 32, 32)
    model(images)
    assert model.is_ready
    model.save_pretrained(tmp_path)
    again = Embedder.from_pretrained(tmp_path)
    assert again.is_ready
    np.testing.assert_allclose(again.encode(images), model.encode(images), atol=1e-5)


@pytest.mark.parametrize("name", [name for name in POOLINGS if POOLINGS[name].takes == "grid"])
def test_a_transformer_has_no_grid(name):
    tree = {"backbone": {"name": "test_vit", "weights": "random"}, "image": 32, "pooling": name}
    with pytest.raises(ConfigError, match=f"pooling '{name}' needs a map with rows and columns, and test_vit makes"):
        Embedder.create(tree)


def test_a_fixed_number_of_places_is_that_of_the_model():
    tree = {"backbone": {"name": "test_vit", "weights": "random"}, "image": 64, "pooling": "gsop", "dim": 8}
    model = Embedder.create(tree)
    assert model.head.pooling.positions == 16
    assert model.encode(torch.rand(2, 3, 64, 64)).shape == (2, 8)
    with pytest.raises(ValueError, match="made for 16 local features an image and got 36"):
        model.encode(torch.rand(2, 3, 96, 96))


def test_parts_that_do_not_fit_the_embedding_are_refused():
    with pytest.raises(ConfigError, match="8 equal parts, which 20 is no multiple of"):
        Head(10, 20, POOLINGS.resolve("netvlad"))
    with pytest.raises(ConfigError, match="8 equal parts, which 20 is no multiple of"):
        check_parts(make_config({"pooling": "otp", "dim": 20}))  # before anything is made or written
