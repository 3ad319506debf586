"""Residual blocks of timm with frozen norms, put together so that norm, shortcut and ReLU are one operation."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from winnow.models.norm_fused import norm_relu


class FrozenResidual(nn.Module):
    """A basic or bottleneck block of a ResNet, with the parts, and so the state dict, of the block it is made from.

    Args:
        block: A block that `is_plain_block`.
    """

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.depth = 3 if hasattr(block, "conv3") else 2
        for name, child in block.named_children():
            self.add_module(name, child)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's map."""
        parts: Any = self._modules
        y = x
        for place in range(1, self.depth):
            y = norm_relu(parts[f"conv{place}"](y), parts[f"bn{place}"])
        y = parts[f"conv{self.depth}"](y)
        if "downsample" not in parts:
            return norm_relu(y, parts[f"bn{self.depth}"], x)
        *body, norm = parts["downsample"]
        for part in body:
            x = part(x)
        return norm_relu(y, parts[f"bn{self.depth}"], x, norm)


class NormReLU(nn.BatchNorm2d):
    """A batch norm together with the ReLU after it."""

    def forward(self, input: Tensor) -> Tensor:
        """Return relu(norm(input))."""
        return norm_relu(input, self)


def join_frozen_norms(network: nn.Module) -> None:
    """Rebuild the residual blocks of a network and its stem, if it is a plain ResNet; others stay as they are.

    What it computes and its state dict stay the same. The norms must be frozen to gain from it.
    """
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if is_plain_block(child):
                parent.add_module(name, FrozenResidual(child))
    norm, activation = getattr(network, "bn1", None), getattr(network, "act1", None)
    if type(network).__name__ == "ResNet" and _is_norm(norm) and type(activation) is nn.ReLU:
        assert norm is not None, "it is a norm"
        norm.__class__ = NormReLU
        network.act1 = nn.Identity()


def is_plain_block(block: nn.Module) -> bool:
    """Whether a module is a residual block of timm without attention, stochastic depth and the like."""
    if type(block).__name__ not in ("BasicBlock", "Bottleneck"):
        return False
    depth = 3 if hasattr(block, "conv3") else 2
    places = range(1, depth + 1)
    downsample = getattr(block, "downsample", None)
    optional = [getattr(block, name, None) for name in ("se", "drop_path", "aa", "drop_block")]
    return (
        all(isinstance(getattr(block, f"conv{i}", None), nn.Conv2d) for i in places)
        and all(_is_norm(getattr(block, f"bn{i}", None)) for i in places)
        and all(type(getattr(block, f"act{i}", None)) is nn.ReLU for i in places)
        and all(part is None or type(part) is nn.Identity for part in optional)
        and (downsample is None or (isinstance(downsample, nn.Sequential) and _is_norm(downsample[-1])))
    )


def _is_norm(module: Any) -> bool:
    return type(module) is nn.BatchNorm2d and module.affine and module.track_running_stats
