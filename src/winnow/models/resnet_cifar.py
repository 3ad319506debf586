"""ResNet-20 for small images (He et al., "Deep Residual Learning", CVPR 2016, section 4.2)."""

from __future__ import annotations

from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, projected by a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(body(x) + shortcut(x))."""
        result: Tensor = nn.functional.relu(self.body(x) + self.shortcut(x))
        return result


class ResNetCifar(nn.Sequential):
    """Three stages of `blocks` basic blocks with 16, 32 and 64 channels; the map has stride 4.

    Depth is 6 blocks + 2, so 3 blocks make ResNet-20.
    """

    num_features = 64
    num_prefix_tokens = 0

    def __init__(self, blocks: int = 3) -> None:
        stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        stages = []
        inputs = 16
        for outputs, stride in ((16, 1), (32, 2), (64, 2)):
            for block in range(blocks):
                stages.append(BasicBlock(inputs, outputs, stride if block == 0 else 1))
                inputs = outputs
        super().__init__(stem, *stages)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
