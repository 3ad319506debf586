"""`winnow recipes`, and recipes in the other commands."""

from __future__ import annotations

import pytest
import yaml

from tests.cli.conftest import Winnow
from winnow.cli import recipes as command
from winnow.training.recipes import RECIPES, MeasuredRecall


@pytest.fixture
def recipes(winnow: Winnow, monkeypatch: pytest.MonkeyPatch) -> Winnow:
    """Call `winnow recipes`, and check that its lines fit a terminal."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words: object) -> object:
        said = winnow("recipes", *words)
        assert all(len(line) <= 80 for line in said.out.splitlines()), said.out
        return said

    return call  # type: ignore[return-value]


def test_the_table_lists_every_recipe_with_its_published_numbers(recipes: Winnow) -> None:
    lines = recipes().out.splitlines()
    for recipe in RECIPES.values():
        row = next(line for line in lines if line.startswith(f"{recipe.name} "))
        published = [cell.partition("/")[0] for cell in row[command.NAME :].split() if "/" in cell]
        assert published == [command.published_text(recipe.published.get(data)) for data in command.DATASETS]


def test_measured_numbers_stand_beside_the_published_ones(recipes: Winnow, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = MeasuredRecall(69.31, 69.0, 0.25, 3, 12.4, "NVIDIA H200", "results/protocols/table.json")
    one = ours._replace(value=85.24, runs=1, std=None)
    found = {
        "recipe=proxy-anchor": {"cub200": ours, "sop": one},
        "recipe=common,loss=potential_field": {"cub200": ours},
    }
    monkeypatch.setattr("winnow.training.recipes._measured", lambda: found)
    out = recipes().out
    row = next(line for line in out.splitlines() if line.startswith("proxy-anchor "))
    assert "69.9/69.3 " in row
    assert "80.0/85.2 (1)" in row
    assert row.endswith(" 12")
    assert "common,loss=potential_field\n" in out
    details = recipes("proxy-anchor").out
    assert "winnow protocol conventional cub200 recipe=proxy-anchor" not in details
    assert "winnow protocol conventional cars196 recipe=proxy-anchor" in details
    assert "results/protocols/table.json" in details


@pytest.mark.parametrize("name", RECIPES)
def test_details_list_every_setting(recipes: Winnow, name: str) -> None:
    recipe = RECIPES[name]
    out = recipes(name).out
    for data in ("", *recipe.by_dataset):
        for setting in recipe.explained(data, proxies=True):
            assert f"\n  {setting.text}" in out
    for one in recipe.published.values():
        assert f"{one.value:.1f} (" in out


def test_an_unknown_recipe_is_an_error_of_usage(recipes: Winnow) -> None:
    said = recipes("proxy-ancor")
    assert said.code == 2
    assert "did you mean 'proxy-anchor'?" in said.err


def test_config_shows_the_settings_of_a_recipe(winnow: Winnow) -> None:
    config = yaml.safe_load(winnow("config", "--yaml", "recipe=proxy-anchor", "data=cars196", "train.lr=2e-4").out)
    assert (config["recipe"], config["loss"]["name"]) == ("proxy-anchor", "proxy_anchor")
    assert (config["train"]["milestones"], config["train"]["lr"]) == (10, 2e-4)
