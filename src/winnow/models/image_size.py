"""Whether a network and its pooling take the images they are to get, and which size suits it."""

from __future__ import annotations

import torch

from winnow.errors import ConfigError
from winnow.models.backbone import Backbone
from winnow.models.config import ModelConfig
from winnow.models.networks import OWN_NETWORKS
from winnow.pooling import POOLINGS


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
