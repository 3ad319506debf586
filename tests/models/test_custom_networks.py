"""Networks of users: wrapped, trained in a plain loop, saved, loaded, indexed, served, and trained by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from torch import Tensor, nn

from tests.conftest import TINY, MakeFolder
from winnow import Embedder, Index
from winnow.errors import ConfigError, ModelError
from winnow.losses import LOSSES
from winnow.models import Head, build_backbone, factory, register_network
from winnow.models.config import BackboneConfig
from winnow.serve import create_app
from winnow.training import RunDir, load_config, train

LAYOUTS = ("map", "tokens", "vectors")
CHANNELS = 6


class SmallNetwork(nn.Module):
    """Two convolutions; the output has one of the three layouts. `view` fails on channels-last memory."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.layout = layout
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, CHANNELS, 3, 2, 1)
        )
        self.class_token = nn.Parameter(torch.randn(1, 1, CHANNELS))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(x)
        if self.layout == "map":
            return x
        tokens = x.view(len(x), CHANNELS, -1).mT
        if self.layout == "tokens":
            return torch.cat([self.class_token.expand(len(x), 1, CHANNELS), tokens], dim=1)
        return tokens.mean(dim=1)


def make_network(layout: str) -> SmallNetwork:
    torch.manual_seed(0)
    return SmallNetwork(layout)


def wrap(network: SmallNetwork, *, dim: int | None = 5, **settings: object) -> Embedder:
    torch.manual_seed(0)
    defaults = {"image": {"resize": 20, "crop": 16}, "num_prefix_tokens": int(network.layout == "tokens")}
    return Embedder.from_module(network, dim=dim, **{**defaults, **settings})  # type: ignore[arg-type]


@pytest.fixture
def registered() -> Iterator[None]:
    """Restore the table of networks after a test."""
    before = dict(factory.NETWORKS)
    yield
    factory.NETWORKS.clear()
    factory.NETWORKS.update(before)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dim", [None, 5])
def test_train_two_steps_then_save_and_load(layout: str, dim: int | None, tmp_path: Path) -> None:
    model = wrap(make_network(layout), dim=dim)
    assert model.config.dim == (dim or CHANNELS)
    loss, labels = LOSSES.build({"name": "c2"}), torch.arange(8) // 2
    images = torch.rand(8, 3, 16, 16)
    before = {name: value.clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss(model(images), labels).backward()
        optimizer.step()
    moved = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    assert {"backbone.network.layers.0.weight", "backbone.network.layers.3.weight"} <= moved
    assert ("head.projection.weight" in moved) == (dim is not None)
    vectors = model.encode(images)
    assert vectors.shape == (8, dim or CHANNELS)
    model.save_pretrained(tmp_path)
    network = SmallNetwork(layout)  # other random weights
    again = Embedder.from_pretrained(tmp_path, network=network)
    assert again.backbone.network is network
    assert np.array_equal(again.encode(images), vectors)
    assert again.fingerprint() == model.fingerprint()
    assert "network=network" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_embeddings_equal_the_network_computed_by_hand(layout: str) -> None:
    network, mean, std = make_network(layout), (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    model = wrap(network, dim=None, mean=mean, std=std).eval()
    images = torch.rand(3, 3, 16, 16)
    x = (images - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    with torch.no_grad():
        output = network(x)
        expected = {"map": lambda: output.mean(dim=(2, 3)), "tokens": lambda: output[:, 1:].mean(dim=1)}
        torch.testing.assert_close(model(images), expected.get(layout, lambda: output)())


@pytest.mark.parametrize("layout", ["map", "tokens"])
def test_any_pooling_works_on_maps_and_tokens(layout: str, tmp_path: Path) -> None:
    model = wrap(make_network(layout), pooling={"name": "gsp", **dict(zip(gsp_sizes(), (2, 4), strict=True))}).train()
    images = torch.rand(8, 3, 16, 16)
    assert not model.prototypes_ready
    model(images)
    assert model.prototypes_ready
    model.save_pretrained(tmp_path)
    again = Embedder.from_pretrained(tmp_path, network=SmallNetwork(layout))
    assert np.array_equal(again.encode(images), model.encode(images))
    weights = again.explain([images[0]])[0].weights
    assert weights is not None
    assert weights.shape == (4, 4)


def gsp_sizes() -> tuple[str, str]:
    """Return the names of GSP's number of prototypes and size of its memory."""
    from winnow.pooling import POOLINGS

    names = [one.name for one in POOLINGS.parameters("gsp")]
    return next(n for n in names if "prototypes" in n), next(n for n in names if "memory" in n)


def test_the_network_is_left_as_it_was() -> None:
    network = make_network("map").train()
    network.layers[1].eval()
    state = {key: value.clone() for key, value in network.state_dict().items()}
    model = wrap(network)
    assert model.backbone.network is network
    assert network.training
    assert not network.layers[1].training
    assert all(torch.equal(value, state[key]) for key, value in network.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_frozen_batch_norm_is_a_choice() -> None:
    model = wrap(make_network("map"), freeze_batch_norm=True).train()
    norm = model.backbone.network.layers[1]  # type: ignore[union-attr, index]
    assert not norm.training
    assert not norm.weight.requires_grad


def test_tied_weights_are_saved(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 3, 3, padding=1, bias=False)
            self.second = nn.Conv2d(3, 3, 3, padding=1, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x))  # type: ignore[no-any-return]

    model = Embedder.from_module(Tied(), image=16)
    model.save_pretrained(tmp_path)
    images = torch.rand(2, 3, 16, 16)
    assert np.array_equal(Embedder.from_pretrained(tmp_path, network=Tied()).encode(images), model.encode(images))


def test_errors_of_wrapping() -> None:
    class Wrong(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"features": x}

    with pytest.raises(ConfigError, match=r"network: Wrong failed .* got a dict\. Pass a module that returns"):
        Embedder.from_module(Wrong())
    with pytest.raises(ConfigError, match=r"network: Sequential failed .*\(1, 3, 5, 5\)"):
        Embedder.from_module(nn.Sequential(nn.Conv2d(3, 2, 7)), image=5)
    with pytest.raises(ConfigError, match="pooling=cbam: expected a map"):
        wrap(make_network("tokens"), pooling="cbam")
    with pytest.raises(ConfigError, match="normalize=L2"):
        wrap(make_network("map"), normalize="L2")
    with pytest.raises(ConfigError, match=r"dim: .* Use a projection"):
        Head(6, 5, "gap", projection=False)
    with pytest.raises(ConfigError, match="dim=0"):
        wrap(make_network("map"), dim=0)


def test_errors_of_loading(tmp_path: Path) -> None:
    wrap(make_network("map")).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"SmallNetwork\)\. Pass it as network=, or register it .*'SmallNetwork'"):
        Embedder.from_pretrained(tmp_path)
    with pytest.raises(ModelError, match="weights of another model"):
        Embedder.from_pretrained(tmp_path, network=nn.Conv2d(3, CHANNELS, 3))
    wrap(make_network("map"), dim=None).save_pretrained(tmp_path / "whole")
    with pytest.raises(ModelError, match="expected a network with 6 features, got Conv2d with 2"):
        Embedder.from_pretrained(tmp_path / "whole", network=nn.Conv2d(3, 2, 3))
    with pytest.warns(UserWarning, match="random"):
        named = Embedder.create({"backbone": {"name": "resnet20", "weights": "random"}, "image": 32})
    named.save_pretrained(tmp_path / "named")
    with pytest.raises(ModelError, match="Leave network out"):
        Embedder.from_pretrained(tmp_path / "named", network=make_network("map"))


def test_fingerprints_differ_with_the_input_normalization() -> None:
    models = [wrap(make_network("vectors"), mean=mean) for mean in ((0.5, 0.5, 0.5), (0.4, 0.4, 0.4))]
    assert models[0].fingerprint() != models[1].fingerprint()
    assert models[0].backbone.fingerprint() != models[1].backbone.fingerprint()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_index_and_service_with_a_registered_network(
    layout: str, make_folder: MakeFolder, tmp_path: Path, registered: None
) -> None:
    photos = make_folder(classes=3, images=3)
    Index.build(wrap(make_network(layout)), photos, tmp_path / "index")
    query = photos / "class_01" / "0.png"
    with pytest.raises(ModelError, match="register"):
        Index.open(tmp_path / "index").search(query, k=1)
    register_network("SmallNetwork", lambda: SmallNetwork(layout))
    index = Index.open(tmp_path / "index")
    nearest = index.entry(int(index.search(query, k=1).ids[0, 0]))
    assert nearest.path == str(query)
    with TestClient(create_app(index)) as client:
        assert client.post("/api/search", content=query.read_bytes()).status_code == 200


@pytest.mark.parametrize("training", ["full", "frozen"])
@pytest.mark.parametrize("layout", ["map", "vectors"])
def test_a_registered_network_is_trained_by_name(
    layout: str, training: str, make_folder: MakeFolder, tmp_path: Path, registered: None
) -> None:
    register_network("mine", lambda: make_network(layout))
    assert build_backbone(BackboneConfig(name="mine")).num_features == CHANNELS
    settings = [word for word in TINY if not word.startswith(("backbone", "pooling"))]
    settings += [f"data={make_folder()}", "backbone.name=mine", "pooling=gap", "train.max_steps=2"]
    settings += [f"backbone.train={training}"]
    folder = RunDir(tmp_path / "run")
    train(load_config(None, [*settings, "train.device=cpu"]), folder)
    images = torch.rand(2, 3, 32, 32)
    by_name = Embedder.from_pretrained(folder.path)
    passed = Embedder.from_pretrained(folder.path, network=SmallNetwork(layout))
    assert np.array_equal(by_name.encode(images), passed.encode(images))


def test_a_registered_network_starts_from_a_weight_file(tmp_path: Path, registered: None) -> None:
    register_network("mine", lambda: SmallNetwork("map"))
    source = make_network("map")
    torch.save(source.state_dict(), tmp_path / "mine.pt")
    backbone = build_backbone(BackboneConfig(name="mine", weights=str(tmp_path / "mine.pt")))
    assert all(torch.equal(value, source.state_dict()[key]) for key, value in backbone.network.state_dict().items())


def test_errors_of_registration(registered: None) -> None:
    with pytest.raises(ConfigError, match="'resnet20' is a network of winnow"):
        register_network("resnet20", nn.Identity)
    register_network("mine", nn.Identity)
    for key, value in (("stride", 16), ("tokens", "cls"), ("weights", "random")):
        with pytest.raises(ConfigError, match=f"backbone.{key}={value}: "):
            build_backbone(BackboneConfig(name="mine", **{key: value}))  # type: ignore[arg-type]
