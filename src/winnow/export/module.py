"""The part of a model that is exported: from crops to normalised vectors and the weights over the image."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

from winnow.functional import NORMALISE
from winnow.models import Embedder


class ExportedEmbedder(nn.Module):
    """Images (B, 3, H, W) in [0, 1] to vectors (B, dim), and to weights where the pooling has any.

    Weights are (B, h, w), a map laid over the image; of a network that makes tokens they are (B, n).

    Args:
        model: What to export; it is copied, to the CPU and in inference mode.
    """

    def __init__(self, model: Embedder) -> None:
        super().__init__()
        own = copy.deepcopy(model).cpu().eval()
        _open_padding(own.backbone)
        self.backbone, self.head = own.backbone, own.head
        self.normalise = NORMALISE[own.config.normalise]
        self.has_weights = own.head.pooling.has_weights

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Embed a batch."""
        features = self.backbone(images)
        result = self.head(features, details=True)
        vectors = self.normalise(result.pooled.float())
        if result.weights is None or not self.has_weights:
            return vectors
        weights = result.weights.float()
        if features.dim() == 4:
            weights = weights.reshape(features.shape[0], features.shape[2], features.shape[3])
        return vectors, weights


class SamePadding(nn.Module):
    """A convolution padded as TensorFlow does, by arithmetic of whole numbers that a graph can hold.

    The padding of a side of length x is $(\\lceil x / s \\rceil - 1) s + k - x$ in all, the larger half behind. That is
    never negative for a kernel at least as wide as its stride.
    """

    def __init__(self, convolution: Any) -> None:
        super().__init__()
        self.convolution = convolution

    def forward(self, x: Tensor) -> Tensor:
        """Pad and convolve."""
        c: Any = self.convolution
        padding = []
        for side in (1, 0):  # torch pads the last dimension first
            length, stride = x.shape[2 + side], c.stride[side]
            total = ((length + stride - 1) // stride - 1) * stride + c.dilation[side] * (c.kernel_size[side] - 1)
            total = total + 1 - length
            padding += [total // 2, total - total // 2]
        return conv2d(pad(x, padding), c.weight, c.bias, c.stride, 0, c.dilation, c.groups)


def _open_padding(module: nn.Module) -> None:
    """Replace timm's convolutions with "same" padding, whose question for the larger of two sizes fixes the size."""
    for name, child in module.named_children():
        narrow = isinstance(child, nn.Conv2d) and min(child.kernel_size) < max(child.stride)
        if type(child).__name__ == "Conv2dSame" and not narrow:
            setattr(module, name, SamePadding(child))
        else:
            _open_padding(child)


@torch.no_grad()
def outputs(module: nn.Module, images: Tensor) -> list[Tensor]:
    """Return all that a module makes of images."""
    result = module(images)
    return list(result) if isinstance(result, tuple) else [result]
