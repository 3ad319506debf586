"""Networks by name, of timm and of winnow, made into backbones with their weights."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any

from winnow.errors import ConfigError, ModelError, nearest
from winnow.models import bn_inception
from winnow.models.backbone import IMAGENET_MEAN, IMAGENET_STD, Backbone
from winnow.models.config import BackboneConfig
from winnow.models.resnet_cifar import ResNetCifar
from winnow.models.resnetv2_cifar import ResNetV2Cifar
from winnow.models.weights import bundled_weights, load_by_name, load_by_order, read_state

OWN_NETWORKS = ("resnet20", "resnetv2_20", "bn_inception", "resnet50_v1")


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
