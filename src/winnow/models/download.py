"""Download of a timm model's weights; without a network, the cache of earlier downloads."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
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
    from huggingface_hub import constants
    from timm.models import load_pretrained

    config: Any = network.default_cfg
    repository = config.get("hf_hub_id")
    page = f"{constants.ENDPOINT}/{repository}" if repository else config.get("url") or ""
    offline = bool(page) and not is_reachable(page)
    try:
        if offline:
            with offline_hub():
                load_pretrained(network)
        else:
            load_pretrained(network)
    except Exception as error:  # download clients raise errors of many types
        reason = f"{urlsplit(page).hostname} cannot be reached" if offline else first_line(error)[:120]
        source = f"model.safetensors of {page}" if repository else page or f"a state dict of {name}"
        raise ModelError(
            f"backbone.weights: download for {name} failed ({reason}). Copy {source} to this machine and set "
            f"backbone.weights to the file: a state dict (.safetensors, .pt, .pth) with the parameter names of timm's "
            f"{name}. Or use tf_efficientnet_lite0, which needs no download."
        ) from None


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
