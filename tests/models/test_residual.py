"""Residual blocks with fused norms: plain operations, the Triton interpreter, and a GPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from tests.kernels.interpreter import run_interpreted
from winnow.kernels.ops import can_fuse_norm, fused_norm_relu, norm_relu
from winnow.models.residual import FrozenResidual, NormReLU, fuse_frozen_norms


def made_norm(width: int, seed: int, device: str = "cpu") -> nn.BatchNorm2d:
    generator = torch.Generator().manual_seed(seed)
    norm = nn.BatchNorm2d(width)
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean):
            assert tensor is not None
            tensor.copy_(torch.randn(width, generator=generator))
        assert norm.running_var is not None
        norm.running_var.copy_(torch.rand(width, generator=generator) + 0.1)
    return norm.eval().requires_grad_(False).to(device)


def check(device: str, widths: list[int]) -> None:
    """Compare values and gradients of the kernels with plain operations in float64."""
    for width in widths:
        for shortcut, normed in ((False, False), (True, False), (True, True)):
            generator = torch.Generator().manual_seed(width)
            maps = [torch.randn(3, width, 5, 4, generator=generator) for _ in range(3)]
            x, side, weights = (m.to(device).contiguous(memory_format=torch.channels_last) for m in maps)
            norms = made_norm(width, 1, device), made_norm(width, 2, device) if normed else None
            results = []
            for kernels in (True, False):
                dtype = torch.float32 if kernels else torch.float64
                a, b = (t.detach().to(dtype).requires_grad_() for t in (x, side))
                used = [n if kernels or n is None else copy.deepcopy(n).double() for n in norms]
                given = (a, used[0], b if shortcut else None, used[1])
                out = (fused_norm_relu if kernels else norm_relu)(*given)  # type: ignore[arg-type]
                (out * weights.to(dtype)).sum().backward()
                results.append([t.double() for t in (out.detach(), a.grad, b.grad) if t is not None])
            assert len(results[0]) == len(results[1])
            for found, expected in zip(*results, strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_kernels_equal_plain_operations_in_the_interpreter() -> None:
    run_interpreted("from tests.models.test_residual import check; check('cpu', [3, 128, 130])")


@pytest.mark.gpu
def test_kernels_equal_plain_operations_on_the_gpu() -> None:
    check("cuda", [3, 64, 130, 2048])


def test_nan_is_kept() -> None:
    x = torch.full((1, 2, 1, 1), torch.nan)
    assert norm_relu(x, made_norm(2, 0)).isnan().all()


def test_only_frozen_norms_and_channels_last_maps_are_fused() -> None:
    pytest.importorskip("triton")
    norm, x = made_norm(4, 0), torch.rand(2, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    assert can_fuse_norm(x, norm, None, None)
    assert not can_fuse_norm(x.contiguous(), norm, None, None)
    assert not can_fuse_norm(x, norm, x.double(), None)
    assert not can_fuse_norm(x.double(), norm, None, None)
    assert not can_fuse_norm(x, copy.deepcopy(norm).train(), None, None)
    assert not can_fuse_norm(x, norm, x, copy.deepcopy(norm).requires_grad_())


def resnet(name: str) -> nn.Module:
    from winnow.models import ensure_torchvision

    ensure_torchvision()
    import timm

    network: nn.Module = timm.create_model(name, pretrained=False, num_classes=0).eval()
    generator = torch.Generator().manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):  # new norms are the identity
            for tensor in (module.weight, module.bias, module.running_mean):
                assert tensor is not None
                tensor.data.copy_(0.5 + 0.2 * torch.randn(len(tensor), generator=generator))
    return network


def run(network: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    features = network.forward_features(images)  # type: ignore[operator]
    gradient = torch.autograd.grad(features.square().mean(), network.conv1.weight)[0]  # type: ignore[union-attr]
    return features.detach(), gradient


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_a_fused_network_is_equal_bit_for_bit(name: str) -> None:
    network, images = resnet(name), torch.rand(2, 3, 64, 64)
    joined = copy.deepcopy(network)
    fuse_frozen_norms(joined)
    assert sum(isinstance(m, FrozenResidual) for m in joined.modules()) == (8 if name == "resnet18" else 16)
    assert isinstance(joined.bn1, NormReLU)
    assert joined.state_dict().keys() == network.state_dict().keys()
    for module in (network, joined):
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.requires_grad_(False)
    for a, b in zip(run(joined, images), run(network, images), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(run(copy.deepcopy(joined), images), run(network, images), strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
def test_a_fused_network_compiles_to_one_graph() -> None:
    torch._dynamo.reset()
    network, images = resnet("resnet18"), torch.rand(1, 3, 32, 32)
    fuse_frozen_norms(network)
    compiled = torch.compile(network.forward_features, backend="aot_eager", fullgraph=True)  # type: ignore[arg-type]
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), network.forward_features(images))  # type: ignore[operator]


def test_other_networks_are_not_changed() -> None:
    network = resnet("seresnet50")
    before = repr(network.layer1)  # type: ignore[union-attr]
    fuse_frozen_norms(network)
    assert repr(network.layer1) == before  # type: ignore[union-attr]
