"""Weights of timm: with a network they are downloaded, without one they are read from the cache or explained."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from torch import nn

from winnow.errors import ModelError
from winnow.models import download, ensure_torchvision
from winnow.models.download import download_weights, is_reachable, offline_hub, was_downloaded

ensure_torchvision()

import timm.models  # noqa: E402

PROXIES = [f"{scheme}_proxy" for scheme in ("http", "https", "all")]


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Return a port on which this machine listens."""
    for name in (*PROXIES, *map(str.upper, PROXIES)):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.default_cfg = {"hf_hub_id": "timm/any.in1k"}


def test_a_host_is_reachable_while_it_listens(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_reachable(f"http://127.0.0.1:{port}/page")
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    assert not is_reachable(f"http://127.0.0.1:{closed}/page")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # only the proxy knows
    assert is_reachable(f"http://127.0.0.1:{closed}/page")


def test_a_slow_name_server_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    monkeypatch.setattr(download.Thread, "join", lambda self, timeout: None)  # the answer never comes in time
    monkeypatch.setattr(download.Thread, "start", lambda self: None)
    assert not is_reachable(f"http://127.0.0.1:{port}/page")


@pytest.mark.parametrize("reachable", [True, False])
def test_without_a_network_only_the_cache_is_read(reachable: bool, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(download, "is_reachable", lambda address: reachable)
    monkeypatch.setattr(timm.models, "load_pretrained", lambda network: seen.append(constants.HF_HUB_OFFLINE))
    download_weights(Network(), "any")
    assert seen == [not reachable]
    assert not constants.HF_HUB_OFFLINE


def test_the_error_names_the_file_and_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(network: nn.Module) -> None:
        raise OSError("not in the cache")

    monkeypatch.setattr(download, "is_reachable", lambda address: False)
    monkeypatch.setattr(timm.models, "load_pretrained", fail)
    with pytest.raises(ModelError, match=r"model\.safetensors of \S+/timm/any\.in1k .*state dict .* parameter names"):
        download_weights(Network(), "any")


def test_offline_mode_ends_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(KeyError), offline_hub():
        raise KeyError
    assert not constants.HF_HUB_OFFLINE


def test_files_of_an_earlier_download_are_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    hub, page = {"hf_hub_id": "timm/any.in1k"}, {"url": "https://example.org/files/any-1.pth"}
    assert not was_downloaded(hub)
    assert not was_downloaded(page)
    assert not was_downloaded({})
    for path in ("models--timm--any.in1k/snapshots/0/model.safetensors", "checkpoints/any-1.pth"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).touch()
    assert was_downloaded(hub)
    assert was_downloaded(page)
