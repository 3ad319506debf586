"""Recipes: their settings reach the config, can be replaced, and train on any data."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import MakeFolder
from tests.data import synthetic_datasets
from winnow.data.datasets import CUB200, DATASETS, SOP, Cars196, Dataset, InShop
from winnow.errors import ConfigError
from winnow.training import RunDir, load_config, train
from winnow.training.build import resolve_config
from winnow.training.recipes import RECIPES, measured_recalls

BENCHMARKS = ("cub200", "cars196", "sop", "inshop")
SMALL = [
    "backbone=resnet20", "backbone.weights=random", "image.resize=32", "image.crop=32", "dim=8", "train.device=cpu",
    "train.precision=32-true",
]  # fmt: skip


# Settings


@pytest.mark.parametrize("data", [*BENCHMARKS, "photos"])
@pytest.mark.parametrize("name", RECIPES)
def test_every_setting_reaches_a_valid_config(name: str, data: str) -> None:
    config = load_config(None, [f"recipe={name}", f"data={data}"])
    resolve_config(config)
    assert (config.recipe, config.data.path) == (name, data)
    proxies = config.references.name == "proxies"
    settings = RECIPES[name].settings_for(data, proxies=proxies)
    assert settings
    assert load_config(None, [f"recipe={name}", f"data={data}", *settings]) == config
    assert load_config(None, [f"data={data}", *settings]).model_copy(update={"recipe": name}) == config


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_every_setting_has_a_reason_and_every_recipe_a_source(recipe: Any) -> None:
    groups = [recipe.settings, recipe.with_proxies, *recipe.by_dataset.values()]
    for text, reason in (one for group in groups for one in group):
        assert "=" in text
        assert reason
    assert recipe.about
    assert recipe.citation
    assert set(recipe.published) <= set(BENCHMARKS)
    assert set(recipe.by_dataset) <= set(BENCHMARKS)
    assert all(0 < one.value < 100 and one.source for one in recipe.published.values())


def test_own_settings_replace_those_of_the_recipe_in_any_order() -> None:
    own = ["train.lr=1e-3", "loss.alpha=16", "augment.scale=[0.5,1]"]
    first, last = (load_config(None, words) for words in (["recipe=best", *own], [*own, "recipe=best"]))
    assert first == last
    assert (first.train.lr, first.loss.alpha, first.augment.scale) == (1e-3, 16, (0.5, 1))  # type: ignore[attr-defined]
    assert first.loss.name == "proxy_anchor"


def test_authors_settings_by_dataset_need_the_dataset() -> None:
    milestones = {data: load_config(None, ["recipe=proxy-anchor", f"data={data}"]).train.milestones
                  for data in ("cub200", "cars196", "sop", "photos")}  # fmt: skip
    assert milestones == {"cub200": 5, "cars196": 10, "sop": 20, "photos": 5}
    ms: Any = [load_config(None, ["recipe=ms+ccp", f"data={data}"]).loss for data in ("cub200", "cars196")]
    assert [one.alpha for one in ms] == [2.0, 14.35]


def test_rates_of_proxies_come_with_losses_that_have_proxies() -> None:
    assert "references.proxies" in load_config(None, ["recipe=common", "loss=arcface"]).train.lr_multipliers
    assert load_config(None, ["recipe=common", "loss=ms"]).train.lr_multipliers == {}
    assert load_config(None, ["recipe=common", "loss=c2", "references=memory"]).train.lr_multipliers == {}
    assert load_config(None, ["recipe=common", "loss=ms", "references=proxies"]).train.lr_multipliers != {}


def test_another_schedule_or_unit_drops_what_depends_on_it() -> None:
    cosine = load_config(None, ["recipe=proxy-anchor", "train.schedule=cosine"])
    assert (cosine.train.schedule, cosine.train.milestones, cosine.train.max_steps) == ("cosine", [], 60)
    steps = load_config(None, ["recipe=best", "train.unit=steps", "train.max_steps=2"]).train
    assert (steps.max_steps, steps.freeze_backbone_steps) == (2, 0)
    same = load_config(None, ["recipe=proxy-anchor", "train.schedule=step", "train.unit=epochs"])
    assert same.train.milestones == 5


def test_an_unknown_recipe_gives_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"^recipe: unknown name 'proxyanchor'; did you mean 'proxy-anchor'\?"):
        load_config(None, ["recipe=proxyanchor"])


def test_a_recorded_config_stays_as_it_is(tmp_path: Path) -> None:
    config = resolve_config(load_config(None, ["recipe=c2+ccp", "data=cars196", "loss=triplet"]))
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")), encoding="utf-8")
    assert load_config(file) == config


def test_a_recipe_can_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("recipe: common\nloss: supcon\n", encoding="utf-8")
    assert load_config(file) == load_config(None, ["recipe=common", "loss=supcon"])


# Training

CARS = tuple(f"Car {number}" for number in range(8))
COPIES: dict[str, tuple[Callable[[Path], None], Dataset]] = {
    "cub200": (lambda root: synthetic_datasets.cub(root, classes=8, images=4), CUB200(train=16, test=16, classes=4)),
    "cars196": (
        lambda root: synthetic_datasets.cars(root, CARS, images=4), Cars196(train=16, test=16, class_names=CARS),
    ),
    "sop": (synthetic_datasets.sop, SOP(train=6, test=4, train_classes=3, test_classes=2)),
    "inshop": (
        synthetic_datasets.inshop, InShop(train=32, queries=12, gallery=12, train_classes=8, test_classes=6),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights", "ignore:references")
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_trains_two_steps_on_a_folder(name: str, make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder("photos", classes=8, images=3)
    check_two_steps([f"recipe={name}", f"data={photos}"], tmp_path / "run", name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights", "ignore:references")
@pytest.mark.parametrize("data", BENCHMARKS)
def test_every_recipe_trains_two_steps_on_copies_of_the_benchmarks(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / data
    make, dataset = COPIES[data]
    make(root)
    monkeypatch.setitem(DATASETS._datasets, data, dataset)
    for name in RECIPES:
        words = [f"recipe={name}", f"data={data}", f"data.root={root}", "data.val_classes=test"]
        check_two_steps(words, tmp_path / name, name)


def check_two_steps(words: list[str], folder: Path, name: str) -> None:
    budget = ["train.unit=steps", "train.max_steps=2", "train.eval_steps=2"]
    if "train.schedule=step" in RECIPES[name].settings_for("", proxies=True):
        budget.append("train.milestones=1")
    result = train(load_config(None, [*words, *SMALL, *budget]), RunDir(folder))
    assert result.steps == 2
    assert result.config["recipe"] == name
    assert RunDir(folder).read_config().recipe == name


# Measured numbers


def test_measured_numbers_are_those_of_the_tables() -> None:
    root = Path(__file__).resolve().parents[2]
    path = root / "scripts/recipe_results.py"
    spec = importlib.util.spec_from_file_location("recipe_results", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    collected = script.collect()
    assert json.loads((root / script.OUTPUT).read_text(encoding="utf-8")) == collected
    assert set(measured_recalls()) == set(collected["methods"])
