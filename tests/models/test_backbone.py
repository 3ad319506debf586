"""Backbones: weights, strides, image sizes, batch norm, class tokens, and fingerprints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from winnow.errors import ConfigError, ModelError
from winnow.models import BackboneConfig, Embedder, build_backbone
from winnow.models.factory import bundled_weights, load_by_order, read_state_dict

pytestmark = pytest.mark.filterwarnings("ignore:backbone .* starts from random weights")


def test_the_class_token_is_the_classifier_input() -> None:
    torch.manual_seed(0)
    local = build_backbone(BackboneConfig(name="test_vit", weights="random")).eval()
    own = build_backbone(BackboneConfig(name="test_vit", weights="random", tokens="cls")).eval()
    assert own.fingerprint() != local.fingerprint()
    own.load_state_dict(local.state_dict())
    assert own.fingerprint() != local.fingerprint()  # caches of both stay apart
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        network = own.network
        pooled = network.forward_head(network.forward_features((images - own.mean) / own.std), pre_logits=True)
        found = own(images)
    assert found.shape == (2, 1, 64)
    torch.testing.assert_close(found[:, 0], pooled)
    assert local(images).shape == (2, 16, 64)


def test_a_model_on_the_class_token_embeds_and_is_saved(tmp_path) -> None:
    tree = {"backbone": {"name": "test_vit", "weights": "random", "tokens": "class"}, "image": 64, "pooling": "gap"}
    model = Embedder.create({**tree, "dim": 8}).eval()
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        expected = model.head.projection(model.backbone(images)[:, 0])
        torch.testing.assert_close(model(images), expected)
        model.save_pretrained(tmp_path)
        torch.testing.assert_close(Embedder.from_pretrained(tmp_path)(images), expected)


@pytest.mark.parametrize(
    ("settings", "owner"),
    [({"name": "resnet20"}, "resnet20"), ({"name": "resnet18"}, "resnet18"),
     ({"name": "resnet18", "stride": 16}, "a map of stride 16")],
)  # fmt: skip
def test_a_network_without_class_token_raises(settings: dict[str, object], owner: str) -> None:
    with pytest.raises(ConfigError, match=f"backbone.tokens=cls: {owner} has no class token"):
        build_backbone(BackboneConfig(**settings, weights="not-looked-for.safetensors", tokens="cls"))


def test_frozen_batch_norm_keeps_its_statistics_in_training() -> None:
    with pytest.warns(UserWarning, match="random"):
        backbone = build_backbone(BackboneConfig(name="resnet20", weights="random", freeze_batch_norm=True))
    before = {k: v.clone() for k, v in backbone.state_dict().items() if "running" in k}
    backbone.train()(torch.rand(4, 3, 32, 32)).sum().backward()
    assert all(torch.equal(backbone.state_dict()[k], v) for k, v in before.items())
    norms = [m for m in backbone.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert norms
    assert all(p.grad is None for m in norms for p in m.parameters())
    with pytest.warns(UserWarning, match="random"):
        free = build_backbone(BackboneConfig(name="resnet20", weights="random", freeze_batch_norm=False))
    free.train()(torch.rand(4, 3, 32, 32))
    assert any(not torch.equal(free.state_dict()[k], v) for k, v in before.items())


def test_a_frozen_backbone_stays_in_inference_mode() -> None:
    with pytest.warns(UserWarning, match="random"):
        backbone = build_backbone(BackboneConfig(name="resnet20", weights="random")).freeze().train()
    assert not backbone.network.training
    assert not any(p.requires_grad for p in backbone.parameters())


def test_bundled_weights_load_and_strides_select_maps() -> None:
    whole = build_backbone(BackboneConfig()).eval()
    cut = build_backbone(BackboneConfig(stride=16)).eval()
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        assert whole(images).shape == (1, 1280, 2, 2)
        assert cut(images).shape == (1, 112, 4, 4)
    path = bundled_weights("tf_efficientnet_lite0")
    assert path is not None
    first = next(iter(read_state_dict(path).values()))
    assert torch.equal(whole.network.conv_stem.weight, first)
    assert torch.equal(cut.network.conv_stem.weight, first)


def test_each_network_has_its_input_normalization() -> None:
    lite = build_backbone(BackboneConfig())
    with pytest.warns(UserWarning, match="random"):
        v1 = build_backbone(BackboneConfig(name="resnet50_v1", weights="random"))
    assert lite.mean.flatten().tolist() == lite.std.flatten().tolist() == [0.5, 0.5, 0.5]
    assert v1.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    assert v1.std.flatten().tolist() == pytest.approx([0.229, 0.224, 0.225])


@pytest.mark.parametrize(
    ("name", "crop", "shape"),
    [
        ("resnet18", 227, (512, 8, 8)),
        ("mobilenetv3_small_050", 227, (288, 8, 8)),
        ("vit_tiny_patch16_224", 224, (196, 192)),  # the class token is dropped
        ("deit_tiny_distilled_patch16_224", 224, (196, 192)),  # both of them
        ("mixer_s32_224", 224, (49, 512)),
        ("swin_tiny_patch4_window7_224", 224, (768, 7, 7)),
        ("xcit_nano_12_p16_224", 224, (196, 128)),
        ("cait_xxs24_224", 224, (196, 192)),
        ("efficientvit_b0", 227, (128, 8, 8)),
    ],
)
def test_timm_networks_return_local_features_at_their_crop_size(name: str, crop: int, shape: tuple[int, ...]) -> None:
    with pytest.warns(UserWarning, match="random"):
        embedder = Embedder.create({"backbone": {"name": name, "weights": "random"}, "dim": 4}).eval()
    assert embedder.config.image.crop == crop
    with torch.no_grad():
        assert tuple(embedder.backbone(torch.rand(1, 3, crop, crop)).shape[1:]) == shape


def test_a_crop_size_that_the_network_rejects_raises() -> None:
    with pytest.warns(UserWarning, match="random"), pytest.raises(ConfigError, match=r"Set image.crop"):
        Embedder.create({"backbone": {"name": "vit_tiny_patch16_224", "weights": "random"}, "image": 227})


def test_resnet50_v1_has_its_stride_in_the_first_convolution() -> None:
    with pytest.warns(UserWarning, match="random"):
        backbone = build_backbone(BackboneConfig(name="resnet50_v1", weights="random"))
    for stage in ("layer2", "layer3", "layer4"):
        block = getattr(backbone.network, stage)[0]
        assert (block.conv1.stride, block.conv2.stride) == ((2, 2), (1, 1))
    with torch.no_grad():
        assert backbone.eval()(torch.rand(1, 3, 227, 227)).shape == (1, 2048, 8, 8)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_weight_file_loads_into_its_network_only(tmp_path: Path, suffix: str) -> None:
    from safetensors.torch import save_file

    with pytest.warns(UserWarning, match="random"):
        source = build_backbone(BackboneConfig(name="resnet20", weights="random"))
    state = {k: v.contiguous() for k, v in source.network.state_dict().items()}
    file = tmp_path / f"w{suffix}"
    save_file(state, file) if suffix == ".safetensors" else torch.save({"state_dict": state}, file)
    loaded = build_backbone(BackboneConfig(name="resnet20", weights=str(file)))
    assert all(torch.equal(loaded.network.state_dict()[k], v) for k, v in state.items())
    with pytest.raises(ModelError, match="weights do not fit"):
        build_backbone(BackboneConfig(name="resnet18", weights=str(file)))


def test_a_weight_file_that_would_run_code_raises(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (print, ("run!",))

    torch.save({"a": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(ModelError, match="read safely"):
        read_state_dict(tmp_path / "evil.pth")
    with pytest.raises(ModelError, match=r"does not exist; did you mean 'evil.pth'"):
        read_state_dict(tmp_path / "evl.pth")


def test_loading_by_order_checks_every_shape() -> None:
    a, b = torch.nn.Linear(2, 3), torch.nn.Linear(3, 2)
    with pytest.raises(ModelError, match="order or shape"):
        load_by_order(a, b.state_dict(), "b")


def test_missing_weights_raise() -> None:
    with pytest.raises(ModelError, match=r"Set backbone.weights to a file"):
        build_backbone(BackboneConfig(name="resnet20"))


def test_fingerprints_differ_with_strides() -> None:
    def fingerprint(name: str) -> str:
        torch.manual_seed(0)
        with pytest.warns(UserWarning, match="random"):
            return build_backbone(BackboneConfig(name=name, weights="random")).fingerprint()

    assert fingerprint("resnet50") == fingerprint("resnet50") != fingerprint("resnet50_v1")


def test_channels_last_memory_changes_features_only_by_rounding() -> None:
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="random"):
        backbone = build_backbone(BackboneConfig(name="resnet20", weights="random")).eval()
    convolution = next(m for m in backbone.network.modules() if isinstance(m, torch.nn.Conv2d))
    assert convolution.weight.is_contiguous(memory_format=torch.channels_last)
    images = torch.rand(4, 3, 32, 32)
    with torch.no_grad():
        found = backbone(images)
        backbone.network.to(memory_format=torch.contiguous_format)
        expected = backbone._features(images)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
