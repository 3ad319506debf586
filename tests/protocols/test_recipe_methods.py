"""Recipes as methods of a protocol: their settings, folders, columns, and published numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeFolder
from tests.protocols.finished import finish
from tests.protocols.finished import make_request as finished_request
from tests.protocols.test_plan import SMALL, make_request
from winnow.errors import ConfigError
from winnow.protocols import MethodSpec, find_backbone, find_dataset, find_protocol, local_executor, make_table
from winnow.protocols.methods import is_method, is_recipe
from winnow.protocols.render import render_markdown
from winnow.protocols.table import published_number
from winnow.training import RunConfig, make_config
from winnow.training.recipes import RECIPES

CONVENTIONAL = find_protocol("conventional")
RESNET50 = find_backbone("resnet50")


def config_of(method: str, dataset: str = "cub200", chapter: int = 5) -> RunConfig:
    on, protocol = find_dataset(dataset), find_protocol("conventional", chapter)
    return make_config((MethodSpec.parse(method).of_run(on, protocol, RESNET50) | on.settings(protocol, 1, None)).tree)


def test_a_recipe_is_a_method_with_its_own_settings_and_budget() -> None:
    config = config_of("recipe=proxy-anchor", "cars196")
    assert config.recipe == "proxy-anchor"
    assert (config.backbone.name, config.dim, config.image.crop) == ("resnet50_v1", 512, 224)
    assert (config.train.unit, config.train.max_steps, config.train.milestones) == ("epochs", 60, 10)
    assert (config.train.monitor, config.data.val_classes, config.data.path) == ("P@1", "test", "cars196")
    assert config.train.eval_steps is None  # once per epoch


def test_the_loss_of_a_recipe_can_be_named() -> None:
    spec = MethodSpec.parse("recipe=common,loss=ms")
    assert (str(spec), spec.folder, spec.recipe) == ("recipe=common,loss=ms", "recipe=common,loss=ms", "common")
    pair, proxies = config_of("recipe=common,loss=ms"), config_of("recipe=common,loss=arcface")
    assert (pair.loss.name, pair.train.lr_multipliers) == ("ms", {})
    assert (proxies.loss.name, proxies.references.name) == ("arcface", "proxies")
    assert proxies.train.lr_multipliers
    same = {"loss", "references", "train"}
    assert pair.model_dump(exclude=same) == proxies.model_dump(exclude=same)
    assert pair.train.model_copy(update={"lr_multipliers": proxies.train.lr_multipliers}) == proxies.train


def test_words_are_recipes_methods_or_settings() -> None:
    assert is_method("recipe=best")
    assert is_recipe("recipe=best,train.lr=1e-3")
    assert not is_method("train.lr=1e-3")
    with pytest.raises(ConfigError, match="did you mean 'best'"):
        MethodSpec.parse("recipe=bes")
    with pytest.raises(ConfigError, match="sets seed"):
        _ = MethodSpec.parse("recipe=best,seed=1").own


BUDGET = {"max_steps", "patience", "precision", "average"}
"""Settings of training in which a recipe of [Thesis] differs from the protocol: a fixed budget in 16 bits."""
METHODS = {
    "ms+ccp": ("ms+ccp", 3),
    "c2+ccp": ("c2+ccp", 3),
    "c1+xbm": ("c1+xbm", 5),
    "c1+xbm+gsp": ("c1+xbm+gsp-zsr", 5),
}


@pytest.mark.parametrize("dataset", ["cub200", "cars196", "sop", "inshop"])
@pytest.mark.parametrize("name", METHODS)
def test_recipes_of_the_thesis_are_the_methods_of_its_protocol(name: str, dataset: str) -> None:
    method, chapter = METHODS[name]
    ours, theirs = (config_of(one, dataset, chapter).model_dump(mode="json") for one in (f"recipe={name}", method))
    ours["recipe"] = None
    for tree in (ours, theirs):
        for key in BUDGET:
            del tree["train"][key]
    theirs["references"].pop("start_from", None)  # the protocol keeps the literal form
    ours["references"].pop("start_from", None)
    if name == "c2+ccp":  # new proxies for margins that the first ones leave
        assert ours["references"]["max_steps"] is not None
        ours["references"]["max_steps"] = theirs["references"]["max_steps"]
    assert ours == theirs


def test_published_numbers_belong_to_the_recipe_as_it_is() -> None:
    def number(method: str, **more: Any) -> Any:
        where = {"dataset": "cub200", "backbone": "resnet50", "dim": 512, "metric": "P@1"} | more
        return published_number(CONVENTIONAL, method=method, **where)

    assert number("recipe=proxy-anchor").value == RECIPES["proxy-anchor"].published["cub200"].value
    assert number("recipe=proxy-anchor", metric="MAP@R") is None
    assert number("recipe=proxy-anchor", backbone="bn_inception") is None
    assert number("recipe=proxy-anchor,train.lr=1") is None
    assert number("recipe=common,loss=ms") is None


def test_numbers_of_the_thesis_are_those_of_its_tables() -> None:
    for name, (method, chapter) in METHODS.items():
        for dataset, ours in RECIPES[name].published.items():
            theirs = published_number(find_protocol("conventional", chapter), dataset, method, "resnet50", 512, "P@1")
            assert theirs is not None
            assert ours.value == theirs.value
            assert theirs.table in ours.source


def test_the_table_shows_images_and_weights_of_recipes(tmp_path: Path) -> None:
    overrides = ("backbone=resnet20", "dim=4")
    request = finished_request(
        "conventional", tmp_path, "recipe=proxy-anchor", "recipe=common,loss=ms", "c2", overrides=overrides
    )
    for run in request.plan():
        finish(run, 0.2, config=run.planned.config.model_dump(mode="json"))
    table = make_table(request, request.plan())
    text = render_markdown(table)
    assert "| method | runs | best step | image | weights |" in text
    assert "| recipe=proxy-anchor | 3 of 3 | 100 | 224 of 256 | best on test |" in text
    assert "| recipe=common,loss=ms | 3 of 3 | 100 | 224 of 256 | last, averaged |" in text
    assert "| c2 | 3 of 3 | 100 | 227 of 256 | best on test |" in text
    plain = finished_request("conventional", tmp_path, "c2", overrides=overrides)
    assert "image" not in render_markdown(make_table(plain, plain.plan())).splitlines()[2]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")
def test_recipes_are_trained_restarted_and_compared_on_a_folder(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder("photos", classes=12, images=4)
    methods = ["recipe=best,train.freeze_backbone_steps=1", "recipe=common,loss=ms"]
    small = [*SMALL, "train.unit=steps", "train.max_steps=4"]
    request = make_request(photos, tmp_path / "out", *methods, protocol="conventional", overrides=small, runs=[1])
    outcomes = request.train(request.plan(), local_executor(jobs=2))
    assert [outcome.error for outcome in outcomes] == [None] * 2
    assert request.train(request.plan(), local_executor(jobs=2)) == []  # finished runs are only read
    table = make_table(request, request.plan())
    assert [row.finished for row in table.rows] == [1, 1]
    assert {pair.method for pair in table.pairs} == {"recipe=common,loss=ms"}
