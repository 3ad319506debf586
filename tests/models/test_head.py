"""The head with every pooling: sizes, gradients, saving, projections, and backbones it cannot use."""

from pathlib import Path

import numpy as np
import pytest
import torch

from winnow import Embedder
from winnow.errors import ConfigError
from winnow.losses import LOSSES
from winnow.models import Head, principal_directions
from winnow.models.config import HeadConfig
from winnow.pooling import POOLINGS, PrototypePooling
from winnow.references import REFERENCES
from winnow.training import make_config
from winnow.training.objective import check_components

pytestmark = pytest.mark.filterwarnings("ignore:backbone .* starts from random weights")
every_pooling = pytest.mark.parametrize("name", list(POOLINGS))
DIM = 16


def settings(name: str) -> dict[str, object]:
    few = {"num_prototypes": 4, "memory_size": 8} if issubclass(POOLINGS[name], PrototypePooling) else {}
    return POOLINGS.resolve({"name": name, **few})


def head(name: str) -> Head:
    torch.manual_seed(0)
    made = Head(10, DIM, settings(name), positions=12)
    made(torch.randn(8, 10, 3, 4))  # sets prototypes
    return made


@every_pooling
def test_embeddings_have_the_requested_size(name):
    made = head(name)
    maps = torch.randn(2, 10, 3, 4)
    assert made(maps).shape == (2, DIM)
    details = made(maps, return_details=True)
    assert (details.weights is not None) is made.pooling.has_weights
    if made.pooling.layout != "grid":
        torch.testing.assert_close(made.eval()(maps.flatten(2).mT), made(maps))
    mask = torch.ones(2, 3, 4, dtype=torch.bool)
    torch.testing.assert_close(made.eval()(maps, mask), made(maps))


@every_pooling
def test_training_reaches_every_parameter(name):
    made = head(name)
    loss, labels = LOSSES.build({"name": "c2"}), torch.arange(8) // 2
    source = REFERENCES.build({"name": "batch"})
    for step in range(2):  # parameters behind one that starts at zero learn from the second step on
        source(loss, made(torch.randn(8, 10, 3, 4).abs()), labels).backward()
        if step == 0:
            with torch.no_grad():
                for parameter in made.parameters():
                    parameter.sub_(0.1 * parameter.grad)
            made.zero_grad()
    for key, parameter in made.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        # A shift of all scores of a softmax, or of all inputs of a batch norm, has no gradient.
        if key not in ("pooling.reduce_channels.bias", "pooling.reduce_places.bias"):
            assert parameter.grad.any(), key


@every_pooling
def test_a_saved_model_loads_with_equal_embeddings(name, tmp_path: Path):
    torch.manual_seed(0)
    tree = {"backbone": {"name": "resnet20", "weights": "random"}, "image": {"resize": 32, "crop": 32}, "dim": DIM}
    model = Embedder.create({**tree, "pooling": settings(name)})
    images = torch.rand(8, 3, 32, 32)
    model(images)
    assert model.prototypes_ready
    model.save_pretrained(tmp_path)
    again = Embedder.from_pretrained(tmp_path)
    assert again.prototypes_ready
    np.testing.assert_allclose(again.encode(images), model.encode(images), atol=1e-5)


@pytest.mark.parametrize("name", [name for name in POOLINGS if POOLINGS[name].layout == "grid"])
def test_grid_poolings_reject_tokens(name):
    tree = {"backbone": {"name": "test_vit", "weights": "random"}, "image": 32, "pooling": name}
    with pytest.raises(
        ConfigError, match=f"pooling={name}: expected a map with rows and columns, but backbone test_vit returns tokens"
    ):
        Embedder.create(tree)


def test_a_fixed_number_of_positions_comes_from_the_model():
    tree = {"backbone": {"name": "test_vit", "weights": "random"}, "image": 64, "pooling": "gsop", "dim": 8}
    model = Embedder.create(tree)
    assert model.head.pooling.positions == 16
    assert model.encode(torch.rand(2, 3, 64, 64)).shape == (2, 8)
    with pytest.raises(ValueError, match="expected 16 local features per image, got 36"):
        model.encode(torch.rand(2, 3, 96, 96))


def test_poolings_that_do_not_divide_the_embedding_raise():
    with pytest.raises(ConfigError, match="dim=20 is not a multiple of 8"):
        Head(10, 20, POOLINGS.resolve("netvlad"))
    with pytest.raises(ConfigError, match="dim=20 is not a multiple of 8"):
        check_components(make_config({"pooling": "otp", "dim": 20}))  # before anything is made or written


def test_projection_commutes_with_average_pooling() -> None:
    torch.manual_seed(0)
    gsp = Head(
        6, 4, {"name": "gsp", "num_prototypes": 2, "memory_size": 8}
    ).eval()  # not ready: average of the projected map
    gap = Head(6, 4, {"name": "gap"})
    gap.projection.load_state_dict(gsp.projection.state_dict())
    maps = torch.randn(3, 6, 5, 5)
    assert torch.allclose(gsp(maps), gap(maps), atol=1e-6)


def test_principal_directions_keep_distances() -> None:
    """Distances of vectors of low rank stay equal up to one scale."""
    torch.manual_seed(0)
    vectors = torch.randn(50, 3) @ torch.randn(3, 20)  # rank 3 in 20 channels
    head = Head(20, 4, {"name": "gap"})
    scale = head.projection.weight.norm() / 4**0.5
    head.init_projection(vectors=vectors)
    rows = head.projection.weight / scale
    assert torch.allclose(rows @ rows.mT, torch.eye(4), atol=1e-5)
    projected = vectors @ rows.mT
    full, low = vectors.double(), projected.double()  # float32 cdist is not exact at zero
    assert torch.allclose(torch.cdist(low, low), torch.cdist(full, full), atol=1e-3)


def test_directions_without_variance_do_not_depend_on_rounding() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(6, 20)
    first, second = (principal_directions(each) for each in (vectors, vectors * (1 + 1e-7 * torch.randn(6, 20))))
    assert torch.allclose(first, second, atol=1e-4)
    assert torch.allclose(first @ first.mT, torch.eye(20, dtype=torch.float64), atol=1e-9)
    centred = (vectors - vectors.mean(dim=0)).double()
    assert (centred @ first[5:].mT).abs().max() < 1e-6
    flat = principal_directions(torch.ones(3, 4))  # no variance at all
    assert torch.allclose(flat @ flat.mT, torch.eye(4, dtype=torch.float64), atol=1e-9)


@pytest.mark.parametrize("pooling", ["gap", "gsp", "netvlad", "delf"])
@pytest.mark.parametrize("position", ["pooled", "embedding"])
@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_norms_normalize_the_vector_they_name(norm: str, position: str, pooling: str) -> None:
    torch.manual_seed(0)
    settings = {"name": pooling, **({"num_prototypes": 4, "memory_size": 8} if pooling == "gsp" else {})}
    config = HeadConfig(norm=norm, position=position)
    head, plain = Head(16, 8, settings, norm=config), Head(16, 8, settings)
    plain.load_state_dict({key: value for key, value in head.state_dict().items() if not key.startswith("norm.")})
    maps = torch.randn(12, 16, 3, 3)
    head.train(), plain.train()
    vectors = head(maps)
    before = position == "pooled" and plain.pooling.stage == "raw"
    if before:
        guide = plain.project(maps) if plain.pooling.needs_guide else None
        pooled = plain.pooling(maps, None, guide=guide, return_details=True).vector
    else:
        pooled = plain(maps)
    axis = 1 if norm == "layer" else 0
    expected = (pooled - pooled.mean(axis, keepdim=True)) / (pooled.var(axis, keepdim=True, correction=0) + 1e-5).sqrt()
    expected = plain.projection(expected) if before else expected
    assert torch.allclose(vectors, expected, atol=1e-4)


def test_layer_norm_without_weights_gives_embeddings_one_length() -> None:
    head = Head(16, 8, "gap", norm=HeadConfig(norm="layer"))
    vectors = head(100 * torch.randn(12, 16, 3, 3))
    assert torch.allclose(vectors.norm(dim=1), torch.full((12,), 8**0.5), rtol=1e-4)


def test_a_head_without_a_norm_has_the_keys_of_version_0_1_0() -> None:
    assert not [key for key in Head(16, 8, "gap").state_dict() if "norm" in key]
    assert [key for key in Head(16, 8, "gap", norm=HeadConfig(norm="layer", affine=True)).state_dict() if "norm" in key]
