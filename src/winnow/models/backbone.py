"""A backbone: a network that turns images into local features."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from winnow.models.residual import join_frozen_norms
from winnow.models.resnet_cifar import ResNetCifar

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Backbone(nn.Module):
    """A network from images (B, 3, H, W) in [0, 1] to a map (B, C, h, w) or tokens (B, N, C).

    The input's mean and scale are the network's own affair and are applied here; class and register tokens of
    transformers are dropped, so that what comes out are local features alone, unless the class token is asked for.

    Args:
        network: A timm model, or one with the same `forward_features` / `num_features` / `num_prefix_tokens`.
        level: Which of the network's intermediate maps to return; None for the last.
        width: Channels of what is returned.
        mean: Subtracted from each colour.
        std: Divides each colour.
        freeze_batch_norm: Keep batch norm in inference mode, its scales untrained.
        class_token: Return a transformer's class token (B, 1, C) in place of the local ones.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        network: nn.Module,
        *,
        level: int | None,
        width: int,
        mean: tuple[float, ...] = IMAGENET_MEAN,
        std: tuple[float, ...] = IMAGENET_STD,
        freeze_batch_norm: bool = True,
        class_token: bool = False,
    ) -> None:
        super().__init__()
        self.network, self.level, self.width, self.class_token = network, level, width, class_token
        self.freeze_batch_norm = freeze_batch_norm
        self.frozen = False
        self._compiled: Callable[[Tensor], Tensor] | None = None
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # convolutions are fastest so
        self.register_buffer("mean", torch.tensor(mean).reshape(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).reshape(1, -1, 1, 1), persistent=False)
        if freeze_batch_norm:
            join_frozen_norms(network)
            for norm in self._batch_norms():
                norm.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the local features of a batch of images."""
        images = images.contiguous(memory_format=torch.channels_last)
        compute = self._compiled if self._compiled is not None and self.training else self._features
        return compute(images)

    def compile_training(self) -> None:
        """Compile what training calls; judging, with its batches of other sizes, stays as it is."""
        self._compiled = torch.compile(self._features, dynamic=False)

    def _features(self, images: Tensor) -> Tensor:
        x = (images - self.mean) / self.std
        network: Any = self.network
        if isinstance(network, ResNetCifar):
            return network(x)  # type: ignore[no-any-return]
        if self.level is not None:
            features: Tensor = network.forward_intermediates(
                x, indices=[self.level], intermediates_only=True, stop_early=True
            )[0]
            return features
        features = network.forward_features(x)
        if features.dim() == 3:
            prefix = getattr(network, "num_prefix_tokens", int(hasattr(network, "cls_token")))
            return features[:, :1] if self.class_token else features[:, prefix:]
        if features.shape[1] != self.width and features.shape[-1] == self.width:
            return features.permute(0, 3, 1, 2)  # some timm transformers keep channels last
        return features

    def freeze(self) -> Backbone:
        """Make every weight constant and stay in inference mode."""
        self.frozen = True
        self.requires_grad_(False)
        return self.train(False)

    def train(self, mode: bool = True) -> Backbone:
        """Switch mode; what is frozen stays in inference mode."""
        super().train(mode and not self.frozen)
        if self.freeze_batch_norm:
            for norm in self._batch_norms():
                norm.eval()
        return self

    def fingerprint(self) -> str:
        """Return a hash of the weights and of what is read out, to key feature caches by."""
        # The printed network tells strides and the like, which weights alone do not.
        told = f"{self.network}:{self.level}:{self.mean.flatten().tolist()}:{self.std.flatten().tolist()}"
        digest = hashlib.sha256((told + ":class" * self.class_token).encode())
        for key, value in self.state_dict().items():
            digest.update(key.encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def _batch_norms(self) -> list[nn.Module]:
        return [m for m in self.network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
