"""Backbones: networks that turn images into local features."""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from winnow.errors import ConfigError, ModelError, nearest
from winnow.models import bn_inception
from winnow.models.config import BackboneConfig, ModelConfig
from winnow.models.residual import join_frozen_norms
from winnow.models.resnet_cifar import ResNetCifar
from winnow.models.resnetv2_cifar import ResNetV2Cifar
from winnow.models.weights import bundled_weights, load_by_name, load_by_order, read_state
from winnow.pooling import POOLINGS

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
OWN_NETWORKS = ("resnet20", "resnetv2_20", "bn_inception", "resnet50_v1")


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


def build_backbone(config: BackboneConfig, *, load_weights: bool = True) -> Backbone:
    """Build a backbone and load its weights.

    Args:
        config: Which network, which weights, which map.
        load_weights: False leaves them random without a word, for callers that load a whole model next.
    """
    if config.name in ("resnet20", "resnetv2_20", "bn_inception"):
        return _own_backbone(config, load_weights)
    network = _timm_network("resnet50" if config.name == "resnet50_v1" else config.name)
    if config.name == "resnet50_v1":
        for stage in (network.layer2, network.layer3, network.layer4):
            stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    _check_class_token(network, config)
    if load_weights:
        _load(network, config)
    level, width = _level(network, config)
    if level is None:
        with contextlib.suppress(Exception):  # a few networks cannot drop their classifier; it is then not used
            network.reset_classifier(0)
    else:
        network.prune_intermediate_layers([level], prune_head=True)
    cfg = network.default_cfg
    own = config.name == "resnet50_v1"
    return Backbone(
        network,
        level=level,
        width=width,
        mean=IMAGENET_MEAN if own else tuple(cfg["mean"]),
        std=IMAGENET_STD if own else tuple(cfg["std"]),
        freeze_batch_norm=config.freeze_batch_norm,
        class_token=config.tokens == "class",
    )


def _own_backbone(config: BackboneConfig, load_weights: bool) -> Backbone:
    """Build a network that timm does not have."""
    stride = 32 if config.name == "bn_inception" else 4
    if config.stride not in (None, stride):
        raise ConfigError(f"backbone.stride={config.stride}: {config.name}'s map has stride {stride}")
    known = {"resnet20": ResNetCifar, "resnetv2_20": ResNetV2Cifar, "bn_inception": bn_inception.BNInception}
    network: Any = known[config.name]()
    _check_class_token(network, config)
    if load_weights:
        _load(network, config)
    caffe = config.name == "bn_inception"
    return Backbone(
        network,
        level=None,
        width=network.num_features,
        mean=bn_inception.MEAN if caffe else IMAGENET_MEAN,
        std=bn_inception.STD if caffe else IMAGENET_STD,
        freeze_batch_norm=config.freeze_batch_norm,
    )


def _check_class_token(network: Any, config: BackboneConfig) -> None:
    if config.tokens == "class" and (config.stride is not None or getattr(network, "cls_token", None) is None):
        whose = f"a map of stride {config.stride}" if config.stride is not None else config.name
        raise ConfigError(f"backbone.tokens=class: {whose} has no class token; leave it out, or use a vit of timm")


def settle_image(config: ModelConfig) -> ModelConfig:
    """Give a network that takes one image size only that size, unless the config says another."""
    if "crop" in config.image.model_fields_set or config.backbone.name in OWN_NETWORKS:
        return config
    from winnow.models._torchvision import ensure_torchvision

    ensure_torchvision()
    from timm.models import get_pretrained_cfg

    native = get_pretrained_cfg(config.backbone.name)
    if native is None or not native.fixed_input_size:
        return config
    settled = config.model_copy(deep=True)
    settled.image.crop = int(native.input_size[-1])
    if "resize" not in config.image.model_fields_set:
        settled.image.resize = max(config.image.resize, round(settled.image.crop * 8 / 7))
    return settled


@torch.no_grad()
def check_input(backbone: Backbone, config: ModelConfig) -> tuple[int, ...]:
    """Show a network one image of the size it will get, and refuse it here if it cannot make local features of it.

    Returns:
        The shape of what it makes of the image: (1, C, h, w), or (1, N, C) for tokens.
    """
    crop = config.image.crop
    mode = backbone.training
    backbone.eval()
    try:
        features = backbone(torch.zeros(1, 3, crop, crop))
        made = "" if features.dim() in (3, 4) else f"it returns a tensor of shape {tuple(features.shape)}"
        channels = features.shape[1] if features.dim() == 4 else features.shape[-1]
        if not made and channels != backbone.width:
            made = f"it returns {channels} channels where {backbone.width} are declared"
    except Exception as error:  # networks complain in all kinds of ways
        made = (str(error).splitlines() or [type(error).__name__])[0]
    finally:
        backbone.train(mode)
    if made:
        raise ConfigError(
            f"backbone {config.backbone.name} makes no local features of {crop}-pixel crops ({made}): "
            "set image.crop to a size it takes (224 suits most), or choose another"
        )
    name = config.pooling["name"]
    if features.dim() == 3 and POOLINGS[name].takes == "grid":
        others = ", ".join(other for other in POOLINGS if POOLINGS[other].takes != "grid")
        raise ConfigError(
            f"pooling '{name}' needs a map with rows and columns, and {config.backbone.name} makes tokens: choose "
            f"another pooling ({others}), or another backbone"
        )
    return tuple(features.shape)


def _timm_network(name: str) -> Any:
    from winnow.models._torchvision import ensure_torchvision

    ensure_torchvision()
    import timm

    known = timm.list_models()
    base = name.split(".")[0]
    if base not in known and base not in timm.list_models(module="", exclude_filters=""):
        hint = nearest(base, [*known, *OWN_NETWORKS])
        raise ConfigError(f"backbone.name={name}: timm has no such model{hint}")
    try:  # transformers that can interpolate their positions then take any multiple of their patch
        return timm.create_model(name, pretrained=False, dynamic_img_size=True)
    except TypeError:
        return timm.create_model(name, pretrained=False)


def _level(network: Any, config: BackboneConfig) -> tuple[int | None, int]:
    """Find the intermediate map with the stride asked for: its index and channels."""
    if config.stride is None:
        return None, int(network.num_features)
    levels = list(network.feature_info)
    strides = [int(info["reduction"]) for info in levels]
    if config.stride not in strides or not hasattr(network, "forward_intermediates"):
        raise ConfigError(f"backbone.stride={config.stride}: {config.name} has maps of stride {sorted(set(strides))}")
    level = len(strides) - 1 - strides[::-1].index(config.stride)
    return level, int(levels[level]["num_chs"])


def _load(network: Any, config: BackboneConfig) -> None:
    """Load the weights a config asks for, and warn where they stay random."""
    bundled = bundled_weights(config.name)
    if config.weights == "random":
        warnings.warn(f"the backbone {config.name} starts from random weights, as asked", stacklevel=3)
    elif config.weights != "auto":
        path = Path(config.weights).expanduser()
        state = read_state(path)
        load_by_name(network, bn_inception.published(state) if config.name == "bn_inception" else state, str(path))
    elif bundled is not None:
        load_by_order(network, read_state(bundled), str(bundled))
    elif config.name in OWN_NETWORKS:
        raise ModelError(
            f"winnow ships no weights for {config.name}: give backbone.weights=FILE, or backbone.weights=random"
        )
    else:
        _download(network, config.name)


def _download(network: Any, name: str) -> None:
    from timm.models import load_pretrained

    try:
        load_pretrained(network)
    except Exception as error:  # hub clients raise whatever they like; the user needs one sentence
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"the weights of {name} could not be fetched ({reason[:120]}): give backbone.weights=FILE, "
            "or use tf_efficientnet_lite0, whose weights are installed with winnow"
        ) from None
