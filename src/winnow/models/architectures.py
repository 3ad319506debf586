"""Networks that timm lacks: BN-Inception and CIFAR ResNets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

# Per channel in RGB order, for images in [0, 1]. The published BN-Inception weights expect BGR images in [0, 255]
# minus (104, 117, 128); `BNInception.forward_features` reverses the channels.
CAFFE_MEAN = (128 / 255, 117 / 255, 104 / 255)
CAFFE_STD = (1 / 255, 1 / 255, 1 / 255)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut.

    The shortcut is a 1x1 convolution where the shape changes.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
        )
        same = in_channels == out_channels and stride == 1
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(body(x) + shortcut(x))."""
        result: Tensor = nn.functional.relu(self.body(x) + self.shortcut(x))
        return result


class ResNetCIFAR(nn.Sequential):
    """ResNet for small images: three stages with 16, 32, and 64 channels.

    The map has stride 4. The depth is 6 * num_blocks + 2, so 3 blocks make ResNet-20.

    Reference: He et al., "Deep Residual Learning", CVPR 2016, section 4.2.

    Args:
        num_blocks: Basic blocks per stage.
    """

    num_features = 64
    num_prefix_tokens = 0

    def __init__(self, num_blocks: int = 3) -> None:
        stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        stages = []
        in_channels = 16
        for out_channels, stride in ((16, 1), (32, 2), (64, 2)):
            for block in range(num_blocks):
                stages.append(BasicBlock(in_channels, out_channels, stride if block == 0 else 1))
                in_channels = out_channels
        super().__init__(stem, *stages)
        _init_convolutions(self)

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the feature map (B, 64, H / 4, W / 4)."""
        result: Tensor = self(x)
        return result


class PreActivation(nn.Sequential):
    """Batch norm, ReLU, then a convolution without bias."""

    def __init__(self, in_channels: int, out_channels: int, size: int, stride: int = 1) -> None:
        super().__init__(
            nn.BatchNorm2d(in_channels),
            nn.ReLU(),
            nn.Conv2d(in_channels, out_channels, size, stride, padding=size // 2, bias=False),
        )


class PreActivationBottleneck(nn.Module):
    """1x1, 3x3, and 1x1 convolutions, added to the input.

    Where the shape changes, the shortcut is a 1x1 convolution of the raw input, without norm and activation.

    Args:
        in_channels: Channels of the input.
        width: Channels of the 3x3 convolution.
        out_channels: Channels of the output.
        stride: Stride of the first convolution.
        activate: Apply norm and ReLU before the first convolution. The input of the very first block has had both.
    """

    def __init__(self, in_channels: int, width: int, out_channels: int, stride: int, *, activate: bool = True) -> None:
        super().__init__()
        first: nn.Module = nn.Conv2d(in_channels, width, 1, stride, bias=False)
        self.body = nn.Sequential(
            PreActivation(in_channels, width, 1, stride) if activate else first,
            PreActivation(width, width, 3),
            PreActivation(width, out_channels, 1),
        )
        same = in_channels == out_channels and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return body(x) + shortcut(x)."""
        result: Tensor = self.body(x) + self.shortcut(x)
        return result


class ResNetV2CIFAR(nn.Sequential):
    """Pre-activation ResNet for small images, with 64, 128, and 256 channels.

    The map has stride 4. The depth is 9 * num_blocks + 2, so 2 blocks make ResNetV2-20. A bottleneck has half the
    channels of its output inside; the first one has 16.

    Reference: He et al., "Identity Mappings in Deep Residual Networks", ECCV 2016.

    Args:
        num_blocks: Bottlenecks per stage.
    """

    num_features = 256
    num_prefix_tokens = 0

    def __init__(self, num_blocks: int = 2) -> None:
        layers: list[nn.Module] = [
            nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        ]
        in_channels = 16
        for out_channels, stride in ((64, 1), (128, 2), (256, 2)):
            for block in range(num_blocks):
                first = len(layers) == 1
                width = 16 if first else out_channels // 2
                step = stride if block == 0 else 1
                layers.append(PreActivationBottleneck(in_channels, width, out_channels, step, activate=not first))
                in_channels = out_channels
        super().__init__(*layers, nn.Sequential(nn.BatchNorm2d(in_channels), nn.ReLU()))
        _init_convolutions(self)

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the feature map (B, 256, H / 4, W / 4)."""
        result: Tensor = self(x)
        return result


@dataclass(frozen=True)
class InceptionBlock:
    """Channels of the four branches of an inception block."""

    one: int  # of the 1x1 branch; 0 for a block of stride 2, which has none
    three: tuple[int, int]  # of the 3x3 branch: its 1x1 convolution, then the 3x3
    double: tuple[int, int]  # of the double 3x3 branch: its 1x1 convolution, then both 3x3
    projection: int  # of the 1x1 convolution after the pooling; 0 for none
    pooling: Literal["average", "maximum"] = "average"

    @property
    def stride(self) -> int:
        """Stride of the block."""
        return 1 if self.one else 2


INCEPTION_BLOCKS = {
    "3a": InceptionBlock(64, (64, 64), (64, 96), 32),
    "3b": InceptionBlock(64, (64, 96), (64, 96), 64),
    "3c": InceptionBlock(0, (128, 160), (64, 96), 0, "maximum"),
    "4a": InceptionBlock(224, (64, 96), (96, 128), 128),
    "4b": InceptionBlock(192, (96, 128), (96, 128), 128),
    "4c": InceptionBlock(160, (128, 160), (128, 160), 128),
    "4d": InceptionBlock(96, (128, 192), (160, 192), 128),
    "4e": InceptionBlock(0, (128, 192), (192, 256), 0, "maximum"),
    "5a": InceptionBlock(352, (192, 320), (160, 224), 128),
    "5b": InceptionBlock(352, (192, 320), (192, 224), 128, "maximum"),
}


class BNInception(nn.Module):
    """BN-Inception in the layout of the published Caffe weights.

    The map has stride 32 and 1024 channels: 7x7 for images of 227 pixels. Submodules have the names of the published
    weights, such as `inception_3a_double_3x3_2_bn`. As in Caffe, each convolution before a batch norm has a bias.

    Reference: Ioffe, Szegedy, "Batch Normalization", ICML 2015.

    Args:
        num_classes: Outputs of the classifier `last_linear`; 0 for none.
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
        in_channels = 192
        for name, block in INCEPTION_BLOCKS.items():
            in_channels = self._add_block(f"inception_{name}", in_channels, block)
        if num_classes:
            self.last_linear = nn.Linear(in_channels, num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the map of RGB images (B, 3, H, W) in units of 1/255.

        The mean is subtracted already.
        """
        x = x.flip(1)  # the weights expect BGR
        x = self.halve(self._conv("conv1_7x7_s2", x))
        x = self.halve(self._conv("conv2_3x3", self._conv("conv2_3x3_reduce", x)))
        for name, block in INCEPTION_BLOCKS.items():
            x = self._inception(f"inception_{name}", block, x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the classifier."""
        logits: Tensor = self.last_linear(self.forward_features(x).mean(dim=(2, 3)))
        return logits

    def _add(self, name: str, in_channels: int, out_channels: int, size: int, stride: int = 1) -> None:
        self.add_module(name, nn.Conv2d(in_channels, out_channels, size, stride, padding=size // 2))
        self.add_module(f"{name}_bn", nn.BatchNorm2d(out_channels))

    def _add_block(self, name: str, in_channels: int, block: InceptionBlock) -> int:
        """Add the layers of a block and return the channels of its map."""
        if block.one:
            self._add(f"{name}_1x1", in_channels, block.one, 1)
        self._add(f"{name}_3x3_reduce", in_channels, block.three[0], 1)
        self._add(f"{name}_3x3", *block.three, 3, block.stride)
        self._add(f"{name}_double_3x3_reduce", in_channels, block.double[0], 1)
        self._add(f"{name}_double_3x3_1", *block.double, 3)
        self._add(f"{name}_double_3x3_2", block.double[1], block.double[1], 3, block.stride)
        if block.projection:
            self._add(f"{name}_pool_proj", in_channels, block.projection, 1)
        return block.one + block.three[1] + block.double[1] + (block.projection or in_channels)

    def _conv(self, name: str, x: Tensor) -> Tensor:
        """Return relu(norm(convolution(x)))."""
        result: Tensor = nn.functional.relu(self._modules[f"{name}_bn"](self._modules[name](x)))  # type: ignore[misc]
        return result

    def _inception(self, name: str, block: InceptionBlock, x: Tensor) -> Tensor:
        branches = [self._conv(f"{name}_1x1", x)] if block.one else []
        branches.append(self._conv(f"{name}_3x3", self._conv(f"{name}_3x3_reduce", x)))
        y = self._conv(f"{name}_double_3x3_1", self._conv(f"{name}_double_3x3_reduce", x))
        branches.append(self._conv(f"{name}_double_3x3_2", y))
        pooled: Tensor = self.halve(x) if block.stride == 2 else getattr(self, block.pooling)(x)
        branches.append(self._conv(f"{name}_pool_proj", pooled) if block.projection else pooled)
        return torch.cat(branches, dim=1)


def convert_caffe_keys(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert any published BN-Inception state dict to the keys of `BNInception`.

    Caffe separates a block from its layers by a slash. Several conversions call the classifier `fc` or store the
    numbers of a batch norm as a row (1, C).
    """
    named = {key.replace("/", "_"): value for key, value in state.items()}
    named = {key.replace("fc.", "last_linear.", 1) if key.startswith("fc.") else key: v for key, v in named.items()}
    return {
        key: value.flatten() if "_bn." in key and value.dim() == 2 and value.shape[0] == 1 else value
        for key, value in named.items()
    }


def _init_convolutions(network: nn.Module) -> None:
    """Draw the weights of all convolutions from He's normal distribution."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
