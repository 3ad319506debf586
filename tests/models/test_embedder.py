from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from winnow import Embedder
from winnow.errors import ConfigError, DataError, ModelError
from winnow.models import BackboneConfig, Head, ModelConfig, build_backbone
from winnow.models.config import fingerprint_settings
from winnow.models.head import principal_directions
from winnow.models.weights import bundled_weights, load_by_order, read_state
from winnow.pooling import POOLINGS

SMALL = {"image": {"resize": 32, "crop": 32}, "dim": 8, "pooling": {"name": "gsp", "prototypes": 4, "memory": 16}}


def small(**changes: object) -> Embedder:
    torch.manual_seed(0)
    settings = {"backbone": {"name": "resnet20", "weights": "random"}, **SMALL, **changes}
    with pytest.warns(UserWarning, match="random weights"):
        return Embedder.create(settings).eval()


def picture(seed: int = 0, size: tuple[int, int] = (50, 40)) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def test_paths_pictures_and_tensors_of_one_image_have_one_embedding(tmp_path: Path) -> None:
    embedder, image = small(), picture()
    image.save(tmp_path / "a.png")
    tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    vectors = embedder.encode([tmp_path / "a.png", str(tmp_path / "a.png"), image, tensor, tensor / 255])
    assert vectors.shape == (5, 8)
    assert vectors.dtype == np.float32
    assert np.abs(vectors - vectors[0]).max() < 1e-6
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_one_image_and_a_list_of_one_are_the_same_and_an_empty_list_gives_no_rows() -> None:
    embedder, image = small(), picture()
    assert np.array_equal(embedder.encode(image), embedder.encode([image]))
    assert embedder.encode([]).shape == (0, 8)


def test_a_ready_batch_goes_to_the_network_as_it_is() -> None:
    embedder = small()
    batch = torch.rand(3, 3, 32, 32)
    with torch.no_grad():
        assert np.allclose(embedder.encode(batch, normalise=False), embedder(batch).numpy(), atol=1e-6)


def test_bytes_and_fractions_of_one_batch_have_one_embedding() -> None:
    batch = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    embedder = small()
    assert np.allclose(embedder.encode(batch), embedder.encode(batch / 255), atol=1e-6)


def test_the_batch_size_does_not_matter_and_the_mode_is_restored() -> None:
    embedder = small().train()
    images = [picture(i) for i in range(5)]
    assert np.allclose(embedder.encode(images, batch_size=2), embedder.encode(images, batch_size=64), atol=1e-6)
    assert embedder.training


def test_grey_and_transparent_pictures_are_taken_as_rgb() -> None:
    grey = picture().convert("L")
    assert np.allclose(small().encode(grey), small().encode(grey.convert("RGB")), atol=1e-6)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_text("no image")
    with pytest.raises(DataError, match=r"bad\.jpg"):
        small().encode([tmp_path / "bad.jpg"])


def test_a_saved_model_comes_back_the_same(tmp_path: Path) -> None:
    embedder = small().train()
    for _ in range(4):
        embedder(torch.rand(4, 3, 32, 32))  # fills the memory, so that prototypes are set
    assert embedder.is_ready
    embedder.save_pretrained(tmp_path / "m", metrics={"MAP@R": 0.25})
    again = Embedder.from_pretrained(tmp_path / "m")
    assert again.is_ready
    assert again.config == embedder.config
    assert np.array_equal(again.encode(picture()), embedder.encode(picture()))
    card = (tmp_path / "m" / "README.md").read_text()
    assert "25.00" in card
    assert "never set" not in card


def test_the_card_says_when_prototypes_were_never_set(tmp_path: Path) -> None:
    small().save_pretrained(tmp_path)
    assert "pools by plain average" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    ("normalise", "measure", "length"),
    [("unit", "cosine similarity", "), unit length"), ("ball", "Euclidean distance", "), at most unit length")],
)
def test_the_card_says_how_vectors_are_compared(tmp_path: Path, normalise: str, measure: str, length: str) -> None:
    small(normalise=normalise).save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert f"Compare by {measure}." in card
    assert length in card


def test_what_is_no_model_is_refused_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no saved model"):
        Embedder.from_pretrained(tmp_path)
    small().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["dim"] = 16
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="is of another model"):
        Embedder.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"colour": "red"}')
    with pytest.raises(ModelError, match="not a config"):
        Embedder.from_pretrained(tmp_path)


def test_explanations_lie_over_what_the_network_saw() -> None:
    seen = small().explain([picture(), picture(1)])
    assert len(seen) == 2
    assert seen[0].image.size == (32, 32)
    assert seen[0].weights is not None
    assert seen[0].weights.shape == (8, 8)
    assert seen[0].weights.sum() == pytest.approx(1, abs=1e-5)


def test_projection_before_or_after_average_pooling_is_one_function() -> None:
    torch.manual_seed(0)
    gsp = Head(6, 4, {"name": "gsp", "prototypes": 2, "memory": 8}).eval()  # not ready: average of the projected map
    gap = Head(6, 4, {"name": "gap"})
    gap.projection.load_state_dict(gsp.projection.state_dict())
    maps = torch.randn(3, 6, 5, 5)
    assert torch.allclose(gsp(maps), gap(maps), atol=1e-6)


def test_frozen_batch_norm_keeps_its_statistics_while_training() -> None:
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


def test_a_frozen_backbone_stays_in_inference_mode_and_untrained() -> None:
    with pytest.warns(UserWarning, match="random"):
        backbone = build_backbone(BackboneConfig(name="resnet20", weights="random")).freeze().train()
    assert not backbone.network.training
    assert not any(p.requires_grad for p in backbone.parameters())


def test_the_bundled_weights_are_loaded_and_strides_choose_the_map() -> None:
    whole = build_backbone(BackboneConfig()).eval()
    cut = build_backbone(BackboneConfig(stride=16)).eval()
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        assert whole(images).shape == (1, 1280, 2, 2)
        assert cut(images).shape == (1, 112, 4, 4)
    path = bundled_weights("tf_efficientnet_lite0")
    assert path is not None
    first = next(iter(read_state(path).values()))
    assert torch.equal(whole.network.conv_stem.weight, first)
    assert torch.equal(cut.network.conv_stem.weight, first)


def test_each_network_has_its_own_input_scale() -> None:
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
def test_any_timm_network_gives_local_features_at_the_crop_it_takes(
    name: str, crop: int, shape: tuple[int, ...]
) -> None:
    with pytest.warns(UserWarning, match="random"):
        embedder = Embedder.create({"backbone": {"name": name, "weights": "random"}, "dim": 4}).eval()
    assert embedder.config.image.crop == crop
    with torch.no_grad():
        assert tuple(embedder.backbone(torch.rand(1, 3, crop, crop)).shape[1:]) == shape


def test_a_crop_that_a_network_cannot_take_is_refused() -> None:
    with pytest.warns(UserWarning, match="random"), pytest.raises(ConfigError, match=r"set image.crop"):
        Embedder.create({"backbone": {"name": "vit_tiny_patch16_224", "weights": "random"}, "image": 227})


def test_resnet50_v1_takes_its_stride_in_the_first_convolution() -> None:
    with pytest.warns(UserWarning, match="random"):
        backbone = build_backbone(BackboneConfig(name="resnet50_v1", weights="random"))
    for stage in ("layer2", "layer3", "layer4"):
        block = getattr(backbone.network, stage)[0]
        assert (block.conv1.stride, block.conv2.stride) == ((2, 2), (1, 1))
    with torch.no_grad():
        assert backbone.eval()(torch.rand(1, 3, 227, 227)).shape == (1, 2048, 8, 8)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_local_weight_file_is_loaded_and_a_foreign_one_refused(tmp_path: Path, suffix: str) -> None:
    from safetensors.torch import save_file

    with pytest.warns(UserWarning, match="random"):
        source = build_backbone(BackboneConfig(name="resnet20", weights="random"))
    state = {k: v.contiguous() for k, v in source.network.state_dict().items()}
    file = tmp_path / f"w{suffix}"
    save_file(state, file) if suffix == ".safetensors" else torch.save({"state_dict": state}, file)
    loaded = build_backbone(BackboneConfig(name="resnet20", weights=str(file)))
    assert all(torch.equal(loaded.network.state_dict()[k], v) for k, v in state.items())
    with pytest.raises(ModelError, match="does not fit this network"):
        build_backbone(BackboneConfig(name="resnet18", weights=str(file)))


def test_a_weight_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (print, ("run!",))

    torch.save({"a": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(ModelError, match="read safely"):
        read_state(tmp_path / "evil.pth")
    with pytest.raises(ModelError, match=r"does not exist \(did you mean 'evil.pth'\?\)"):
        read_state(tmp_path / "evl.pth")


def test_loading_by_order_checks_every_shape() -> None:
    a, b = torch.nn.Linear(2, 3), torch.nn.Linear(3, 2)
    with pytest.raises(ModelError, match="order and shape"):
        load_by_order(a, b.state_dict(), "b")


def test_weights_that_nobody_has_are_asked_for() -> None:
    with pytest.raises(ModelError, match=r"give backbone.weights=FILE"):
        build_backbone(BackboneConfig(name="resnet20"))


def test_a_model_config_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="Extra inputs"):
        ModelConfig(colour="red")  # type: ignore[call-arg]


def test_slips_in_a_models_settings_are_named() -> None:
    with pytest.raises(ConfigError, match="did you mean 'pooling'"):
        Embedder.create({"poling": "gsp"})
    with pytest.raises(ConfigError, match="dim='wide'"):
        Embedder.create({"dim": "wide"})


def test_a_projection_from_principal_directions_keeps_what_a_random_one_loses() -> None:
    """Distances between vectors that span few directions are kept exactly, up to one scale."""
    torch.manual_seed(0)
    vectors = torch.randn(50, 3) @ torch.randn(3, 20)  # rank 3 in 20 channels
    head = Head(20, 4, {"name": "gap"})
    scale = head.projection.weight.norm() / 4**0.5
    head.start_from(vectors)
    rows = head.projection.weight / scale
    assert torch.allclose(rows @ rows.mT, torch.eye(4), atol=1e-5)
    projected = vectors @ rows.mT
    wide, kept = vectors.double(), projected.double()  # float32 cdist is not exact at zero
    assert torch.allclose(torch.cdist(kept, kept), torch.cdist(wide, wide), atol=1e-3)


def test_directions_without_variance_do_not_go_by_rounding() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(6, 20)
    first, second = (principal_directions(each) for each in (vectors, vectors * (1 + 1e-7 * torch.randn(6, 20))))
    assert torch.allclose(first, second, atol=1e-4)
    assert torch.allclose(first @ first.mT, torch.eye(20, dtype=torch.float64), atol=1e-9)
    centred = (vectors - vectors.mean(dim=0)).double()
    assert (centred @ first[5:].mT).abs().max() < 1e-6
    flat = principal_directions(torch.ones(3, 4))  # no variance at all
    assert torch.allclose(flat @ flat.mT, torch.eye(4, dtype=torch.float64), atol=1e-9)


def test_networks_that_differ_in_strides_or_input_scale_have_other_fingerprints() -> None:
    def marks(name: str) -> str:
        torch.manual_seed(0)
        with pytest.warns(UserWarning, match="random"):
            return build_backbone(BackboneConfig(name=name, weights="random")).fingerprint()

    assert marks("resnet50") == marks("resnet50") != marks("resnet50_v1")


def test_channels_last_order_changes_features_only_by_rounding() -> None:
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


def test_a_model_stays_itself_when_winnow_learns_a_setting_it_does_not_use() -> None:
    class Later(ModelConfig):
        new: float = 0.0

    model = small()
    before = model.fingerprint()
    settings = model.config.model_dump()
    model.config = Later(**settings)
    assert model.fingerprint() == before
    model.config = Later(**settings, new=0.5)
    assert model.fingerprint() != before
    model.config = ModelConfig(**{**settings, "image": {"resize": 32, "crop": 24}})
    assert model.fingerprint() != before
    assert fingerprint_settings(ModelConfig()) == {
        "pooling": {"name": POOLINGS.default}
    }  # no setting of the pooling either
    own = {"name": "gsp", "mu": 0.123}
    assert fingerprint_settings(ModelConfig(pooling=own, dim=3)) == {"pooling": own, "dim": 3}
