"""The backbone: a network that maps images to local features."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from winnow.errors import ConfigError
from winnow.models.config import ModelConfig
from winnow.models.residual import fuse_frozen_norms
from winnow.pooling import POOLINGS

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Backbone(nn.Module):
    """Map images (B, 3, H, W) in [0, 1] to a map (B, C, h, w) or tokens (B, N, C).

    The backbone subtracts the mean and divides by the standard deviation of its network. Class and register tokens of
    transformers are dropped, unless the class token is requested.

    Args:
        network: A timm model, or a module with `forward_features` and `num_features`. With `call_network`, any module.
        out_index: Index of the intermediate map to return; None for the last map.
        num_features: Channels C of the local features.
        mean: Per-channel mean that is subtracted.
        std: Per-channel standard deviation that divides.
        freeze_batch_norm: Keep batch norm in inference mode and do not train its scales.
        class_token: Return the class token (B, 1, C) of a transformer instead of its local features.
        call_network: Call the network itself instead of its `forward_features`. It returns a map, tokens, or
            vectors (B, C), which become one token per image.
        num_prefix_tokens: Tokens to drop in front, if `call_network` is set and the network returns tokens.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        network: nn.Module,
        *,
        out_index: int | None,
        num_features: int,
        mean: tuple[float, ...] = IMAGENET_MEAN,
        std: tuple[float, ...] = IMAGENET_STD,
        freeze_batch_norm: bool = True,
        class_token: bool = False,
        call_network: bool = False,
        num_prefix_tokens: int = 0,
    ) -> None:
        super().__init__()
        self.network, self.out_index, self.num_features, self.class_token = (
            network,
            out_index,
            num_features,
            class_token,
        )
        self.call_network, self.num_prefix_tokens = call_network, num_prefix_tokens
        self.freeze_batch_norm = freeze_batch_norm
        self.frozen = False
        self._compiled: Callable[[Tensor], Tensor] | None = None
        self.register_buffer("mean", torch.tensor(mean).reshape(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).reshape(1, -1, 1, 1), persistent=False)
        if not call_network:  # the memory layout and the submodules of a user's network stay as they are
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # fastest for convolutions
            if freeze_batch_norm:
                fuse_frozen_norms(network)
        if freeze_batch_norm:
            for norm in self._batch_norms():
                norm.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the local features of a batch of images."""
        if not self.call_network:
            images = images.contiguous(memory_format=torch.channels_last)
        compute = self._compiled if self._compiled is not None and self.training else self._features
        return compute(images)

    def compile_training(self) -> None:
        """Compile the forward pass of training.

        Evaluation, with its other batch sizes, is not compiled.
        """
        self._compiled = torch.compile(self._features, dynamic=False)

    def _features(self, images: Tensor) -> Tensor:
        x = (images - self.mean) / self.std
        network: Any = self.network
        if self.call_network:
            return self._as_local(network(x))
        if self.out_index is not None:
            features: Tensor = network.forward_intermediates(
                x, indices=[self.out_index], intermediates_only=True, stop_early=True
            )[0]
            return features
        features = network.forward_features(x)
        if features.dim() == 3:
            prefix = getattr(network, "num_prefix_tokens", int(hasattr(network, "cls_token")))
            return features[:, :1] if self.class_token else features[:, prefix:]
        if features.shape[1] != self.num_features and features.shape[-1] == self.num_features:
            return features.permute(0, 3, 1, 2)  # several timm transformers return channels last
        return features

    def _as_local(self, output: Tensor) -> Tensor:
        """Return the output of a user's network as a map or tokens."""
        if not isinstance(output, Tensor) or output.dim() not in (2, 3, 4):
            kind = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
            raise TypeError(f"expected a tensor (B, C, H, W), (B, N, C), or (B, C), got {kind}")
        if output.dim() == 2:
            return output[:, None]
        return output[:, self.num_prefix_tokens :] if output.dim() == 3 else output

    def freeze(self) -> Backbone:
        """Disable gradients and stay in inference mode."""
        self.frozen = True
        self.requires_grad_(False)
        return self.train(False)

    def train(self, mode: bool = True) -> Backbone:
        """Set the training mode; frozen parts stay in inference mode."""
        super().train(mode and not self.frozen)
        if self.freeze_batch_norm:
            for norm in self._batch_norms():
                norm.eval()
        return self

    def fingerprint(self) -> str:
        """Return a hash of weights and selected output, a key of feature caches."""
        # The printed network adds strides and padding, which weights do not contain.
        # Class names are hashed as version 0.1.0 spelled them, so its feature caches stay valid.
        network = str(self.network).replace("CIFAR(", "Cifar(")
        description = f"{network}:{self.out_index}:{self.mean.flatten().tolist()}:{self.std.flatten().tolist()}"
        if self.call_network:
            description += f":{type(self.network).__qualname__}:{self.num_prefix_tokens}"
        digest = hashlib.sha256((description + ":class" * self.class_token).encode())
        for key, value in self.state_dict().items():
            digest.update(key.encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def _batch_norms(self) -> list[nn.Module]:
        return [m for m in self.network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


@torch.no_grad()
def probe_features(backbone: Backbone, config: ModelConfig) -> tuple[int, ...]:
    """Run a backbone on one blank image and return the shape of its local features.

    Returns:
        (1, C, h, w) for a map, (1, N, C) for tokens.

    Raises:
        ConfigError: If the network rejects the image size, returns other channels than declared, or returns tokens
            while the pooling needs a map.
    """
    crop, name = config.image.crop, config.backbone.name
    modes = [(module, module.training) for module in backbone.modules()]
    backbone.eval()
    problem = ""
    try:
        parameter = next(backbone.parameters(), backbone.mean)
        features = backbone(torch.zeros(1, 3, crop, crop, device=parameter.device, dtype=parameter.dtype))
        channels = features.shape[1] if features.dim() == 4 else features.shape[-1]
        if features.dim() not in (3, 4):
            problem = f"it returned shape {tuple(features.shape)}"
        elif channels != backbone.num_features:
            problem = f"it returned {channels} channels instead of {backbone.num_features}"
    except Exception as error:  # networks raise errors of many types
        problem = first_line(error)
    finally:
        for module, training in modes:
            module.training = training
    if problem:
        raise ConfigError(
            f"image.crop: backbone {name} returned no local features for images of {crop} pixels ({problem}). "
            "Set image.crop to a size that the network accepts (224 fits most), or choose another backbone."
        )
    pooling = config.pooling.name
    if features.dim() == 3 and POOLINGS[pooling].layout == "grid":
        others = ", ".join(other for other in POOLINGS if POOLINGS[other].layout != "grid")
        raise ConfigError(
            f"pooling={pooling}: expected a map with rows and columns, but backbone {name} returns tokens. "
            f"Choose another pooling ({others}) or another backbone."
        )
    return tuple(features.shape)


def first_line(error: Exception) -> str:
    """Return the first line of an error message, or the name of its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
