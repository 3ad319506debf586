"""Overrides: merged as a config merges them, and written as arguments that read back the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.limits import repeated
from winnow.errors import ConfigError
from winnow.training import load_config
from winnow.training.overrides import Overrides

ARGS = [
    "pooling=gsp", "pooling.mu=0.05", "train.lr=1e-3", "train.max_steps=3", "zsr=0.1", "augment.scale=[1, 1]",
    "train.lr_multipliers={'references.proxies': 100}", "data=emoji", "data.train_classes=1-40", "augment.hflip=false",
    "backbone=resnet20", "backbone.weights=random", "backbone.stride=null",
]  # fmt: skip


def test_arguments_read_back_to_the_same_config() -> None:
    overrides = Overrides.parse(*ARGS)
    assert Overrides.parse(*overrides.to_args()) == overrides
    assert load_config(None, overrides.to_args()) == load_config(None, ARGS)
    assert overrides.flat()["train.max_steps"] == 3
    assert "train" not in overrides.flat(), "a whole section is not one key"


def test_the_right_side_of_a_union_is_used() -> None:
    left = Overrides.parse("pooling=gsp", "pooling.mu=0.3", "train.lr=1e-3")
    assert (left | Overrides.parse("pooling.mu=0.5", "dim=8")).flat() == {
        "pooling": "gsp", "pooling.mu": 0.5, "train.lr": "1e-3", "dim": 8,
    }  # fmt: skip
    assert (left | Overrides.parse("pooling=gap")).flat() == {"pooling": "gap", "train.lr": "1e-3"}
    assert left.flat()["pooling.mu"] == 0.3, "the left side is not changed"


def test_old_names_become_present_ones() -> None:
    assert Overrides.parse("train.steps=5", "centres=r1").to_args() == ["train.max_steps=5", "regularizer=r1"]


def test_an_argument_without_a_value_is_rejected() -> None:
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        Overrides.parse("train.lr")


@pytest.mark.parametrize("key", ["loss", "dim", "data.path", "pooling.mu", "seed"])
def test_aliases_cannot_multiply_values(key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=key):
        load_config(None, [f"{key}={repeated(9)}"])
    with pytest.raises(ConfigError, match=key):
        load_config(None, [f"{key}=&a [*a]"])
    section, _, name = key.partition(".")
    value = repeated(9)
    (tmp_path / "bomb.yaml").write_text(f"{section}: {{{name}: {value}}}\n" if name else f"{section}: {value}\n")
    with pytest.raises(ConfigError, match="values"):
        load_config(tmp_path / "bomb.yaml")


def test_aliases_of_ordinary_configs_still_work(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("dim: &size 64\nseed: *size\n")
    config = load_config(tmp_path / "config.yaml")
    assert (config.dim, config.seed) == (64, 64)
