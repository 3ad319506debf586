"""Download of a timm model's weights; without a network, the cache of earlier downloads."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from torch import nn

from winnow.errors import ModelError
from winnow.models.backbone import first_line

CONNECT_S = 1.5
"""Seconds to wait for the host of the weights. Download clients retry for a minute."""


def download_weights(network: nn.Module, name: str) -> None:
    """Load the ImageNet weights of a timm model, downloaded now or earlier.

    Raises:
        ModelError: If they are not in the cache and cannot be downloaded.
    """
    from timm.models import load_pretrained

    config: Any = network.default_cfg
    page = weights_page(config)
    offline = bool(page) and not is_reachable(page)
    try:
        if offline:
            with offline_hub():
                load_pretrained(network)
        else:
            load_pretrained(network)
    except Exception as error:  # download clients raise errors of many types
        reason = f"{urlsplit(page).hostname} cannot be reached" if offline else first_line(error)[:120]
        raise _failure(name, config, reason) from None


def check_download(name: str) -> None:
    """Raise `ModelError` if the weights of a timm model are neither in the cache nor within reach."""
    from timm.models import get_pretrained_cfg

    cfg = get_pretrained_cfg(name)
    config = {} if cfg is None else cfg.to_dict()
    page = weights_page(config)
    if page and not config.get("file") and not was_downloaded(config) and not is_reachable(page):
        raise _failure(name, config, f"{urlsplit(page).hostname} cannot be reached")


def weights_page(config: Mapping[str, Any]) -> str:
    """Return the address of a timm model's weights; "" if there are none."""
    from huggingface_hub import constants

    repository = config.get("hf_hub_id")
    return f"{constants.ENDPOINT}/{repository}" if repository else config.get("url") or ""


def was_downloaded(config: Mapping[str, Any]) -> bool:
    """Return whether the caches hold a file of a timm model's weights; `download_weights` finds out which."""
    import torch
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    if repository := config.get("hf_hub_id"):
        folder = repo_folder_name(repo_id=repository.partition("@")[0], repo_type="model")
        return any((Path(constants.HF_HUB_CACHE) / folder / "snapshots").glob("*/*"))
    return (Path(torch.hub.get_dir()) / "checkpoints" / Path(urlsplit(config.get("url") or "").path).name).is_file()


def _failure(name: str, config: Mapping[str, Any], reason: str) -> ModelError:
    """Return the error of a failed download: where the file is, and what it must contain."""
    page = weights_page(config)
    source = f"model.safetensors of {page}" if config.get("hf_hub_id") else page or f"a state dict of {name}"
    return ModelError(
        f"backbone.weights: download for {name} failed ({reason}). Copy {source} to this machine and set "
        f"backbone.weights to the file: a state dict (.safetensors, .pt, .pth) with the parameter names of timm's "
        f"{name}. Or set backbone=tf_efficientnet_lite0, which needs no download."
    )


def is_reachable(address: str, timeout: float = CONNECT_S) -> bool:
    """Whether the host of an address accepts connections; with a proxy the answer is always yes."""
    parts = urlsplit(address)
    if parts.scheme in getproxies() or "all" in getproxies():
        return True
    answers: list[bool] = []

    def connect() -> None:
        try:
            socket.create_connection((parts.hostname, parts.port or 443), timeout).close()
            answers.append(True)
        except OSError:
            answers.append(False)

    thread = Thread(target=connect, daemon=True)  # name resolution has no timeout
    thread.start()
    thread.join(timeout)
    return answers == [True]


@contextmanager
def offline_hub() -> Iterator[None]:
    """Read weights from the cache only."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
