"""Residual blocks of timm with norm, shortcut, and ReLU fused into one operation."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from winnow.kernels.ops import norm_relu


class FrozenResidual(nn.Module):
    """Basic or bottleneck block of a ResNet with fused norms.

    It holds the submodules of the given block, so the state dict is the same.

    Args:
        block: A block for which `is_plain_block` is true.
    """

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.depth = 3 if hasattr(block, "conv3") else 2
        for name, child in block.named_children():
            self.add_module(name, child)

    def forward(self, x: Tensor) -> Tensor:
        """Return the map of the block."""
        parts: Any = self._modules
        y = x
        for index in range(1, self.depth):
            y = norm_relu(parts[f"conv{index}"](y), parts[f"bn{index}"])
        y = parts[f"conv{self.depth}"](y)
        if "downsample" not in parts:
            return norm_relu(y, parts[f"bn{self.depth}"], x)
        *body, norm = parts["downsample"]
        for part in body:
            x = part(x)
        return norm_relu(y, parts[f"bn{self.depth}"], x, norm)


class NormReLU(nn.BatchNorm2d):
    """Batch norm followed by ReLU."""

    def forward(self, input: Tensor) -> Tensor:
        """Return relu(norm(input))."""
        return norm_relu(input, self)


def fuse_frozen_norms(network: nn.Module) -> None:
    """Fuse norms of plain residual blocks, and of a plain ResNet's stem, in place.

    Outputs and state dict stay the same. Only frozen norms get faster.
    """
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if is_plain_block(child):
                parent.add_module(name, FrozenResidual(child))
    norm, activation = getattr(network, "bn1", None), getattr(network, "act1", None)
    if type(network).__name__ == "ResNet" and _is_norm(norm) and type(activation) is nn.ReLU:
        assert norm is not None, "checked by _is_norm"
        norm.__class__ = NormReLU
        network.act1 = nn.Identity()


def is_plain_block(block: nn.Module) -> bool:
    """Return whether a module is a plain residual block of timm.

    Blocks with attention or stochastic depth are not plain.
    """
    if type(block).__name__ not in ("BasicBlock", "Bottleneck"):
        return False
    depth = 3 if hasattr(block, "conv3") else 2
    indices = range(1, depth + 1)
    downsample = getattr(block, "downsample", None)
    optional = [getattr(block, name, None) for name in ("se", "drop_path", "aa", "drop_block")]
    return (
        all(isinstance(getattr(block, f"conv{i}", None), nn.Conv2d) for i in indices)
        and all(_is_norm(getattr(block, f"bn{i}", None)) for i in indices)
        and all(type(getattr(block, f"act{i}", None)) is nn.ReLU for i in indices)
        and all(part is None or type(part) is nn.Identity for part in optional)
        and (downsample is None or (isinstance(downsample, nn.Sequential) and _is_norm(downsample[-1])))
    )


def _is_norm(module: Any) -> bool:
    return type(module) is nn.BatchNorm2d and module.affine and module.track_running_stats
