"""BN-Inception (Ioffe and Szegedy, "Batch Normalization", ICML 2015), as Caffe's public weights have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

# Of each colour, red first, in [0, 1]; the published weights were trained on blue, green, red from 0 to 255 less this.
MEAN = (128 / 255, 117 / 255, 104 / 255)
STD = (1 / 255, 1 / 255, 1 / 255)


@dataclass(frozen=True)
class Block:
    """Channels of an inception block: `one` of the 1x1 branch (0 for a block of stride 2, which has none), `three` of
    the 3x3 branch and `double` of the one with two 3x3, each with its 1x1 first, and `pool` of the projection behind
    the pooling (0: none)."""

    one: int
    three: tuple[int, int]
    double: tuple[int, int]
    pool: int
    by: Literal["average", "maximum"] = "average"

    @property
    def stride(self) -> int:
        """2 where the block has no 1x1 branch."""
        return 1 if self.one else 2


BLOCKS = {
    "3a": Block(64, (64, 64), (64, 96), 32),
    "3b": Block(64, (64, 96), (64, 96), 64),
    "3c": Block(0, (128, 160), (64, 96), 0, "maximum"),
    "4a": Block(224, (64, 96), (96, 128), 128),
    "4b": Block(192, (96, 128), (96, 128), 128),
    "4c": Block(160, (128, 160), (128, 160), 128),
    "4d": Block(96, (128, 192), (160, 192), 128),
    "4e": Block(0, (128, 192), (192, 256), 0, "maximum"),
    "5a": Block(352, (192, 320), (160, 224), 128),
    "5b": Block(352, (192, 320), (192, 224), 128, "maximum"),
}


class BNInception(nn.Module):
    """Ten inception blocks; the map has stride 32 and 1024 channels, 7x7 for images of 227 pixels.

    Its parts have the names of the published weights: `inception_3a_double_3x3_2_bn` and so on. Every convolution has a
    bias beside its batch norm, as in Caffe.

    Args:
        num_classes: Of the classifier `last_linear`; 0 for none.
    """

    num_features = 1024
    num_prefix_tokens = 0

    def __init__(self, num_classes: int = 0) -> None:
        super().__init__()
        self._add("conv1_7x7_s2", 3, 64, 7, 2)
        self._add("conv2_3x3_reduce", 64, 64, 1)
        self._add("conv2_3x3", 64, 192, 3)
        self.halve = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.average = nn.AvgPool2d(3, stride=1, padding=1, ceil_mode=True, count_include_pad=True)
        self.maximum = nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True)
        inputs = 192
        for name, block in BLOCKS.items():
            inputs = self._add_block(f"inception_{name}", inputs, block)
        if num_classes:
            self.last_linear = nn.Linear(inputs, num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the map of images (B, 3, H, W), red first, less their mean, of the scale of 0 to 255."""
        x = x.flip(1)  # to blue, green, red
        x = self.halve(self._conv("conv1_7x7_s2", x))
        x = self.halve(self._conv("conv2_3x3", self._conv("conv2_3x3_reduce", x)))
        for name, block in BLOCKS.items():
            x = self._inception(f"inception_{name}", block, x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.last_linear(self.forward_features(x).mean(dim=(2, 3)))
        return logits

    def _add(self, name: str, inputs: int, outputs: int, size: int, stride: int = 1) -> None:
        self.add_module(name, nn.Conv2d(inputs, outputs, size, stride, padding=size // 2))
        self.add_module(f"{name}_bn", nn.BatchNorm2d(outputs))

    def _add_block(self, name: str, inputs: int, block: Block) -> int:
        """Add a block's layers; return the channels of its map."""
        if block.one:
            self._add(f"{name}_1x1", inputs, block.one, 1)
        self._add(f"{name}_3x3_reduce", inputs, block.three[0], 1)
        self._add(f"{name}_3x3", *block.three, 3, block.stride)
        self._add(f"{name}_double_3x3_reduce", inputs, block.double[0], 1)
        self._add(f"{name}_double_3x3_1", *block.double, 3)
        self._add(f"{name}_double_3x3_2", block.double[1], block.double[1], 3, block.stride)
        if block.pool:
            self._add(f"{name}_pool_proj", inputs, block.pool, 1)
        return block.one + block.three[1] + block.double[1] + (block.pool or inputs)

    def _conv(self, name: str, x: Tensor) -> Tensor:
        """Return relu(norm(convolution(x)))."""
        result: Tensor = nn.functional.relu(self._modules[f"{name}_bn"](self._modules[name](x)))  # type: ignore[misc]
        return result

    def _inception(self, name: str, block: Block, x: Tensor) -> Tensor:
        branches = [self._conv(f"{name}_1x1", x)] if block.one else []
        branches.append(self._conv(f"{name}_3x3", self._conv(f"{name}_3x3_reduce", x)))
        y = self._conv(f"{name}_double_3x3_1", self._conv(f"{name}_double_3x3_reduce", x))
        branches.append(self._conv(f"{name}_double_3x3_2", y))
        pooled: Tensor = self.halve(x) if block.stride == 2 else getattr(self, block.by)(x)
        branches.append(self._conv(f"{name}_pool_proj", pooled) if block.pool else pooled)
        return torch.cat(branches, dim=1)


def published(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Bring the state dicts that are about to one form.

    Caffe separates a block from its layers by a slash, some call the classifier `fc`, and the first conversions keep
    the numbers of a batch norm as a row (1, C).
    """
    named = {key.replace("/", "_"): value for key, value in state.items()}
    named = {key.replace("fc.", "last_linear.", 1) if key.startswith("fc.") else key: v for key, v in named.items()}
    return {
        key: value.flatten() if "_bn." in key and value.dim() == 2 and value.shape[0] == 1 else value
        for key, value in named.items()
    }
