"""`winnow config`: sections, components, search, and YAML, within 80 columns."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Winnow
from winnow.training import load_config
from winnow.training.config import REGISTRIES, RunConfig, config_keys


@pytest.fixture
def config(winnow: Winnow, monkeypatch: pytest.MonkeyPatch) -> Winnow:
    """Call `winnow config`, and check that its lines fit a terminal."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words: object) -> object:
        said = winnow("config", *words)
        assert all(len(line) <= 80 for line in said.out.splitlines()), said.out
        return said

    return call  # type: ignore[return-value]


def test_the_overview_names_every_section(config: Winnow) -> None:
    out = config().out
    for name in RunConfig.model_fields:
        assert f"\n  {name}" in out, name


def test_sections_and_components_list_all_their_keys(config: Winnow) -> None:
    keys = list(config_keys())
    for section in RunConfig.model_fields:
        out = config(section).out
        if section in REGISTRIES:
            assert all(f"\n  {section}={name}" in out for name in REGISTRIES[section])
        else:
            assert all(f"\n  {key.name}" in out for key in keys if key.name.split(".")[0] == section)
    for name in REGISTRIES["pooling"]:
        out = config(f"pooling={name}").out
        assert all(f"\n  {key.name}" in out for key in keys if key.component == f"pooling={name}")


def test_a_search_finds_names_meanings_components_and_networks(config: Winnow) -> None:
    out = config("margin").out
    found = {line.split("=")[0].strip() for line in out.splitlines() if line.startswith("  ")}
    assert {key.name for key in config_keys() if "margin" in key.name} <= found
    assert "train.max_grad_norm" in config("gradient norm").out
    assert "train.classes_per_batch" in config("batch_size").out  # the name of other tools
    assert "pooling=gemean" in config("gem").out
    assert "backbone=vit_small_patch14_dinov2" in config("dinov2").out


def test_overrides_are_shown_with_their_values(config: Winnow) -> None:
    out = config("pooling=gsp", "pooling.mu=0.5", "train.lr=1e-3").out
    assert "pooling.mu=0.5" in out
    assert "[default: 0.3]" in out
    assert out.count("pooling.mu=") == 1
    assert "train.lr=0.001" in out


def test_the_yaml_is_read_back(config: Winnow, tmp_path: Path) -> None:
    out = config("--yaml", "loss=triplet", "loss.margin=0.3").out
    (tmp_path / "c.yaml").write_text(out)
    assert yaml.safe_load(config("c.yaml").out) == yaml.safe_load(out)
    assert yaml.safe_load(config("--yaml").out) == load_config().model_dump(mode="json")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("trian", "did you mean 'train'"),
        ("train.stpes=3", "did you mean 'train.max_steps'"),
        ("pooling.mu=7", "expected a fraction"),
        ("pooling=gap zsr=0.1", "has no attributes"),
        ("train.milestones=5 train.schedule=plateau --yaml", "milestones"),
        ("--yaml train", "expected CONFIG.yaml or KEY=VALUE"),
    ],
)
def test_what_training_rejects_is_rejected(config: Winnow, words: str, answer: str) -> None:
    said = config(*words.split())
    assert said.code == 2
    assert said.out == ""
    assert answer in said.err


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("lr=1", "train.lr"),
        ("learning_rate=1", "train.lr"),
        ("train.learning_rate=1", "train.lr"),
        ("batch_size=8", "train.classes_per_batch"),
        ("epochs=3", "train.unit=epochs"),
        ("steps=3", "train.max_steps"),
        ("clip=1", "train.max_grad_norm"),
        ("gem=1", "pooling=gem"),
        ("gem", "pooling=gem"),
        ("dinov2", "winnow config dinov2"),
        ("backbone=dinov2", "vit_base_patch14_dinov2"),
        ("pooling=gemm", "'gem'"),
    ],
)
def test_names_of_other_tools_are_answered_with_ours(winnow: Winnow, word: str, answer: str) -> None:
    said = winnow("train", word, "data=emoji") if "=" in word else winnow("train", word)
    assert said.code == 2
    assert answer in said.err
    assert said.err.count("\n") == 1
