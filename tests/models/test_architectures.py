"""BN-Inception in the layout of its published weights, and ResNetV2-20."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from winnow.errors import ConfigError, ModelError
from winnow.models import BackboneConfig, build_backbone
from winnow.models.architectures import BNInception, ResNetV2CIFAR

# Shapes in the published state dict, at layers whose layout is easy to get wrong.
SHAPES = {
    "conv1_7x7_s2.weight": (64, 3, 7, 7),
    "conv1_7x7_s2.bias": (64,),
    "conv2_3x3_reduce_bn.running_mean": (64,),
    "conv2_3x3.weight": (192, 64, 3, 3),
    "inception_3a_1x1.weight": (64, 192, 1, 1),
    "inception_3a_double_3x3_2_bn.running_var": (96,),
    "inception_3a_pool_proj.weight": (32, 192, 1, 1),
    "inception_3c_3x3.weight": (160, 128, 3, 3),
    "inception_4a_1x1.weight": (224, 576, 1, 1),
    "inception_4c_double_3x3_reduce.weight": (128, 576, 1, 1),
    "inception_4d_1x1.weight": (96, 608, 1, 1),
    "inception_4e_double_3x3_2.weight": (256, 256, 3, 3),
    "inception_5a_3x3_reduce.weight": (192, 1056, 1, 1),
    "inception_5b_pool_proj_bn.weight": (128,),
    "last_linear.weight": (1000, 1024),
}
ABSENT = ("inception_3c_1x1.weight", "inception_3c_pool_proj.weight", "inception_4e_1x1.weight")


def with_random_norms(network: torch.nn.Module) -> torch.nn.Module:
    """Randomize the batch norms, which are the identity in a new network."""
    generator = torch.Generator().manual_seed(0)
    for key, value in network.state_dict().items():
        if key.endswith(("running_var", "weight")) and value.dim() == 1:
            value.copy_(0.5 + torch.rand(value.shape, generator=generator))
        elif key.endswith(("running_mean", "bias")):
            value.copy_(0.1 * torch.randn(value.shape, generator=generator))
    return network.eval()


def test_bn_inception_has_the_published_names_and_shapes() -> None:
    network = BNInception(num_classes=1000)
    state = network.state_dict()
    assert {key: tuple(state[key].shape) for key in SHAPES} == SHAPES
    assert not set(ABSENT) & set(state)
    assert sum(p.numel() for p in network.parameters()) == 11_295_240
    assert len([key for key in state if key.endswith("running_mean")]) == 69
    assert network(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)


@pytest.mark.parametrize(("side", "locations"), [(227, 7), (224, 7), (256, 8)])
def test_bn_inception_returns_the_published_map_sizes(side: int, locations: int) -> None:
    with torch.device("meta"):
        network = BNInception()
        assert network.forward_features(torch.zeros(1, 3, side, side)).shape == (1, 1024, locations, locations)


def slow_inception(state: dict[str, Tensor], image: Tensor) -> Tensor:
    """BN-Inception as a slow loop, on an RGB image (1, 3, H, W) in [0, 1]."""

    def conv(name: str, x: Tensor, stride: int = 1) -> Tensor:
        weight = state[f"{name}.weight"]
        x = F.conv2d(x, weight, state[f"{name}.bias"], stride, weight.shape[-1] // 2)
        of = {
            k: state[f"{name}_bn.{k}"][None, :, None, None] for k in ("running_mean", "running_var", "weight", "bias")
        }
        x = (x - of["running_mean"]) / (of["running_var"] + 1e-5).sqrt() * of["weight"] + of["bias"]
        return x.clamp(min=0)

    red, green, blue = (255 * image).unbind(1)
    x = torch.stack([blue - 104, green - 117, red - 128], dim=1)
    x = F.max_pool2d(conv("conv1_7x7_s2", x, 2), 3, 2, ceil_mode=True)
    x = F.max_pool2d(conv("conv2_3x3", conv("conv2_3x3_reduce", x)), 3, 2, ceil_mode=True)
    for name in ("3a", "3b", "3c", "4a", "4b", "4c", "4d", "4e", "5a", "5b"):
        b, step = f"inception_{name}", 2 if name in ("3c", "4e") else 1
        parts = []
        if step == 1:
            parts.append(conv(f"{b}_1x1", x))
        parts.append(conv(f"{b}_3x3", conv(f"{b}_3x3_reduce", x), step))
        y = conv(f"{b}_double_3x3_1", conv(f"{b}_double_3x3_reduce", x))
        parts.append(conv(f"{b}_double_3x3_2", y, step))
        if step == 2:
            parts.append(F.max_pool2d(x, 3, 2, ceil_mode=True))
        elif name == "5b":
            parts.append(conv(f"{b}_pool_proj", F.max_pool2d(x, 3, 1, padding=1)))
        else:
            parts.append(conv(f"{b}_pool_proj", F.avg_pool2d(x, 3, 1, padding=1)))
        x = torch.cat(parts, dim=1)
    return x


def published_form(state: dict[str, Tensor], form: str) -> dict[str, Tensor]:
    """Return a state dict in one of the published forms."""
    if form == "caffe":
        slashed = {
            key.replace("inception_3a_", "inception_3a/").replace("conv1_", "conv1/"): v for key, v in state.items()
        }
        return {key.replace("last_linear", "fc"): value for key, value in slashed.items()}
    if form == "rows":
        return {key: value[None] if "_bn." in key and value.dim() == 1 else value for key, value in state.items()}
    return state


@pytest.mark.parametrize("form", ["plain", "caffe", "rows"])
def test_published_weights_load_and_expect_bgr(tmp_path: Path, form: str) -> None:
    torch.manual_seed(0)
    state = dict(with_random_norms(BNInception(num_classes=1000)).state_dict())
    # The published files are older than the counter of batches.
    state = {key: value for key, value in state.items() if "num_batches" not in key}
    file = tmp_path / "bn_inception.pth"
    torch.save(published_form(state, form), file)
    backbone = build_backbone(BackboneConfig(name="bn_inception", weights=str(file))).double().eval()
    image = torch.rand(1, 3, 64, 96, dtype=torch.float64)
    expected = slow_inception({key: value.double() for key, value in state.items()}, image)
    assert expected.shape == (1, 1024, 2, 3)
    # Mean and standard deviation are stored in float32.
    torch.testing.assert_close(backbone(image), expected, rtol=1e-4, atol=1e-4)


def test_other_weights_raise(tmp_path: Path) -> None:
    torch.save(ResNetV2CIFAR().state_dict(), tmp_path / "other.pth")
    with pytest.raises(ModelError, match="do not fit"):
        build_backbone(BackboneConfig(name="bn_inception", weights=str(tmp_path / "other.pth")))
    for name, stride in (("bn_inception", 16), ("resnetv2_20", 8)):
        with pytest.raises(ConfigError, match=f"the map of {name} has stride"):
            build_backbone(BackboneConfig(name=name, weights="random", stride=stride))
        with pytest.raises(ModelError, match="contains no weights"):
            build_backbone(BackboneConfig(name=name))


def slow_resnetv2(network: ResNetV2CIFAR, x: Tensor) -> Tensor:
    """ResNetV2-20 as a slow loop over its convolutions and norms."""
    convs = iter([m for m in network.modules() if isinstance(m, torch.nn.Conv2d)])
    norms = iter([m for m in network.modules() if isinstance(m, torch.nn.BatchNorm2d)])

    def activate(x: Tensor) -> Tensor:
        n = next(norms)
        return F.relu(F.batch_norm(x, n.running_mean, n.running_var, n.weight, n.bias, eps=1e-5))

    x = activate(F.conv2d(x, next(convs).weight, padding=1))
    for stage, stride in enumerate((1, 2, 2)):
        for block in range(2):
            step = stride if block == 0 else 1
            first = stage == block == 0
            y = F.conv2d(x if first else activate(x), next(convs).weight, stride=step)
            y = F.conv2d(activate(y), next(convs).weight, padding=1)
            y = F.conv2d(activate(y), next(convs).weight)
            x = y + (F.conv2d(x, next(convs).weight, stride=step) if block == 0 else x)
    return activate(x)


def test_resnetv2_equals_the_slow_loop() -> None:
    torch.manual_seed(0)
    network = with_random_norms(ResNetV2CIFAR()).double()
    images = torch.randn(2, 3, 20, 20, dtype=torch.float64)
    torch.testing.assert_close(network.forward_features(images), slow_resnetv2(network, images))
    convs = [m for m in network.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len([c for c in convs if c.kernel_size == (3, 3)]) == 7
    assert len(convs) == 3 * 6 + 1 + 3  # depth 20 with the classifier; 3 shortcuts
    assert [c.out_channels for c in convs if c.kernel_size == (3, 3)] == [16, 16, 32, 64, 64, 128, 128]
    assert all(c.bias is None for c in convs)
    with torch.device("meta"):
        assert ResNetV2CIFAR()(torch.zeros(1, 3, 64, 64)).shape == (1, 256, 16, 16)


def test_both_train_by_name() -> None:
    for name, width in (("bn_inception", 1024), ("resnetv2_20", 256)):
        with pytest.warns(UserWarning, match="random"):
            backbone = build_backbone(BackboneConfig(name=name, weights="random", freeze_batch_norm=False))
        assert backbone.num_features == width
        backbone.train()(torch.rand(2, 3, 64, 64)).square().mean().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in backbone.parameters())
