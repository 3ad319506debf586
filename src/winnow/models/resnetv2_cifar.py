"""ResNetV2-20 for small images: bottlenecks with norm and ReLU first (He et al., "Identity Mappings", ECCV 2016)."""

from __future__ import annotations

from torch import Tensor, nn


class PreActivation(nn.Sequential):
    """Batch norm, ReLU, then a convolution without bias."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1) -> None:
        super().__init__(
            nn.BatchNorm2d(inputs),
            nn.ReLU(),
            nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False),
        )


class PreActivationBottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, added to the input.

    Where the shape changes the input goes through a 1x1 convolution, as it is: not activated, no norm.

    Args:
        inputs: Channels of the input.
        width: Channels inside.
        outputs: Channels of the output.
        stride: Of the first convolution.
        activate: Whether the first convolution has norm and ReLU before it; the very first block's input has been
            through them already.
    """

    def __init__(self, inputs: int, width: int, outputs: int, stride: int, *, activate: bool = True) -> None:
        super().__init__()
        first: nn.Module = nn.Conv2d(inputs, width, 1, stride, bias=False)
        self.body = nn.Sequential(
            PreActivation(inputs, width, 1, stride) if activate else first,
            PreActivation(width, width, 3),
            PreActivation(width, outputs, 1),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return body(x) + shortcut(x)."""
        result: Tensor = self.body(x) + self.shortcut(x)
        return result


class ResNetV2Cifar(nn.Sequential):
    """Three stages of `blocks` bottlenecks with 64, 128 and 256 channels; the map has stride 4.

    Depth is 9 blocks + 2, so 2 blocks make ResNetV2-20. Inside a bottleneck there is half the width of its output, but
    for the very first, which has 16.
    """

    num_features = 256
    num_prefix_tokens = 0

    def __init__(self, blocks: int = 2) -> None:
        layers: list[nn.Module] = [
            nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        ]
        inputs = 16
        for outputs, stride in ((64, 1), (128, 2), (256, 2)):
            for block in range(blocks):
                first = len(layers) == 1
                width = 16 if first else outputs // 2
                step = stride if block == 0 else 1
                layers.append(PreActivationBottleneck(inputs, width, outputs, step, activate=not first))
                inputs = outputs
        super().__init__(*layers, nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU()))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the map."""
        result: Tensor = self(x)
        return result
