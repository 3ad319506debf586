"""A transformer's class token in place of its local ones."""

from __future__ import annotations

import pytest
import torch

from winnow.errors import ConfigError
from winnow.models import Embedder
from winnow.models.config import BackboneConfig
from winnow.models.networks import build_backbone

pytestmark = pytest.mark.filterwarnings("ignore:the backbone .* starts from random weights")


def test_the_class_token_is_the_one_the_network_classifies_by() -> None:
    torch.manual_seed(0)
    local = build_backbone(BackboneConfig(name="test_vit", weights="random")).eval()
    own = build_backbone(BackboneConfig(name="test_vit", weights="random", tokens="class")).eval()
    assert own.fingerprint() != local.fingerprint()
    own.load_state_dict(local.state_dict())
    assert own.fingerprint() != local.fingerprint()  # features of one are never taken for those of the other
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        network = own.network
        pooled = network.forward_head(network.forward_features((images - own.mean) / own.std), pre_logits=True)
        found = own(images)
    assert found.shape == (2, 1, 64)
    torch.testing.assert_close(found[:, 0], pooled)
    assert local(images).shape == (2, 16, 64)


def test_a_model_of_the_class_token_embeds_and_is_saved(tmp_path) -> None:
    tree = {"backbone": {"name": "test_vit", "weights": "random", "tokens": "class"}, "image": 64, "pooling": "gap"}
    model = Embedder.create({**tree, "dim": 8}).eval()
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        expected = model.head.projection(model.backbone(images)[:, 0])
        torch.testing.assert_close(model(images), expected)
        model.save_pretrained(tmp_path)
        torch.testing.assert_close(Embedder.from_pretrained(tmp_path)(images), expected)


@pytest.mark.parametrize(
    ("settings", "whose"),
    [({"name": "resnet20"}, "resnet20"), ({"name": "resnet18"}, "resnet18"),
     ({"name": "resnet18", "stride": 16}, "a map of stride 16")],
)  # fmt: skip
def test_a_network_without_one_is_refused(settings: dict[str, object], whose: str) -> None:
    with pytest.raises(ConfigError, match=f"backbone.tokens=class: {whose} has no class token"):
        build_backbone(BackboneConfig(**settings, weights="not-looked-for.safetensors", tokens="class"))
