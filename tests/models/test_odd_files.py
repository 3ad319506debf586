"""Odd configs and weight files of a saved model are a `ModelError` or `ConfigError`: never another exception."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from winnow.errors import ConfigError, ModelError
from winnow.integrity import SUMS
from winnow.models import Embedder, build_backbone
from winnow.models.config import BackboneConfig

CONFIG, WEIGHTS = "config.json", "model.safetensors"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a small model without checksums, which would find every change first."""
    folder = tmp_path_factory.mktemp("saved")
    config = {"backbone": "resnet20", "pooling": "gap", "dim": 8}
    Embedder.create(config, load_weights=False).save_pretrained(folder)
    (folder / SUMS).unlink()
    return folder


def load_changed(saved: Path, folder: Path, name: str, content: bytes) -> Embedder:
    for file in (CONFIG, WEIGHTS):
        (folder / file).write_bytes(content if file == name else (saved / file).read_bytes())
    return Embedder.from_pretrained(folder)


@pytest.mark.parametrize(
    "text",
    ["", "null", "[1]", '"a"', "{}x", "[" * 100_000, '{"a":' * 100_000, '{"dim": ' + "9" * 5000 + "}", "\udcff", "NaN"],
    ids=lambda text: text[:12],
)
def test_odd_config_files(saved: Path, tmp_path: Path, text: str) -> None:
    with pytest.raises(ModelError, match=CONFIG):
        load_changed(saved, tmp_path, CONFIG, text.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize(
    ("key", "value"),
    [("dim", 10**30), ("dim", -1), ("dim", None), ("pooling", 5), ("pooling", ["gap"]), ("image", {"resize": 10**30}),
     ("network", {"x": 1}), ("backbone", None), ("backbone", 5),
     *(("backbone", {"name": name}) for name in (
         "", "\0", "a" * 10_000, "../../etc", "hf-hub:x/y", "local-dir:/tmp", "resnet50.nope", "resnet50.a/../x",
         "resnet50\n", "%s",
     ))],
)  # fmt: skip
def test_odd_values_in_a_config(saved: Path, tmp_path: Path, key: str, value: object) -> None:
    tree = json.loads((saved / CONFIG).read_text())
    with pytest.raises((ModelError, ConfigError)):
        load_changed(saved, tmp_path, CONFIG, json.dumps({**tree, key: value}).encode())


def test_an_unknown_tag_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"resnet50 has no weights 'a1_in1kk'; did you mean 'a1_in1k'"):
        build_backbone(BackboneConfig(name="resnet50.a1_in1kk"), load_weights=False)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: {},
        lambda state: {**state, "x": torch.zeros(1)},
        lambda state: {key: value.to(torch.int8) for key, value in state.items()},
        lambda state: {key: value.reshape(1, *value.shape) for key, value in state.items()},
        lambda state: {key: value * torch.nan if value.is_floating_point() else value for key, value in state.items()},
    ],
    ids=["empty", "more", "integers", "shapes", "nan"],
)
def test_odd_weights(saved: Path, tmp_path: Path, change: Callable[[dict], dict]) -> None:
    save_file(change(load_file(saved / WEIGHTS)), tmp_path / "odd.safetensors")
    with pytest.raises(ModelError, match=r"weights|NaN"):
        load_changed(saved, tmp_path, WEIGHTS, (tmp_path / "odd.safetensors").read_bytes())


@pytest.mark.parametrize(
    "content", [{0: torch.zeros(1)}, {"a": torch.zeros(1), (1, 2): torch.zeros(1)}, [torch.zeros(1)], None, {"a": 1}],
    ids=["integers", "tuples", "list", "none", "numbers"],
)  # fmt: skip
def test_odd_state_dicts(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "odd.pt")
    with pytest.raises(ModelError, match=r"odd\.pt"):
        build_backbone(BackboneConfig(name="resnet20", weights=str(tmp_path / "odd.pt")))
