"""A network of two small layers, by a name that timm knows: models and checkpoints of it take a few kilobytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from tests.golden import adapters

adapters.ensure_torchvision()  # else timm fails beside a torchvision of another torch

from timm.models import register_model  # noqa: E402

__all__ = ["golden_net"]


class GoldenNet(nn.Module):
    """Two convolutions with batch norm: 12 channels of stride 8."""

    def __init__(self) -> None:
        super().__init__()
        self.num_features = 12
        self.default_cfg = {"mean": (0.5, 0.45, 0.4), "std": (0.25, 0.25, 0.25), "input_size": (3, 24, 24)}
        self.feature_info = [{"num_chs": 12, "reduction": 8, "module": "conv2"}]
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 4, stride=4, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 12, 2, stride=2, bias=False), nn.BatchNorm2d(12)
        rng = np.random.default_rng(0)
        with torch.no_grad():
            for conv in (self.conv1, self.conv2):
                conv.weight.copy_(torch.from_numpy(rng.normal(0, 0.2, tuple(conv.weight.shape))))

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the map (B, 12, h / 8, w / 8)."""
        return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(images))))))

    def forward(self, images: Tensor) -> Tensor:
        """Return the mean of the map."""
        return self.forward_features(images).mean(dim=(2, 3))


@register_model
def golden_net(pretrained: bool = False, **settings: Any) -> GoldenNet:
    """Make the network, as timm asks."""
    return GoldenNet()


def make_photos(root: Path, *, classes: int, images: int, size: int) -> Path:
    """Make a folder of class folders; each class has a color and stripes, each image a shade and noise of its own."""
    rng = np.random.default_rng(0)
    for label in range(classes):
        folder = root / f"class_{label:02d}"
        folder.mkdir(parents=True)
        color, stripes = 128 + rng.normal(0, 10, 3), 12 * np.sin(np.arange(size) * rng.uniform(0.3, 1.5))[:, None]
        for index in range(images):
            noise = rng.normal(0, 12, 3) + rng.normal(0, 30, (size, size, 3))
            pixels = np.clip(color + stripes[..., None] + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{index}.png")
    return root
