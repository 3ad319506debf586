"""Parts by name: what a config section may say, how mistakes are explained, and that every part documents itself."""

import inspect
from typing import Literal

import pytest
from pydantic import BaseModel

from winnow.centres import CENTRES
from winnow.errors import ConfigError, nearest
from winnow.losses import LOSSES, ZeroShotRegularisation
from winnow.mining import MINING
from winnow.pooling import POOLINGS
from winnow.references import REFERENCES
from winnow.registry import Parameter, Registry, argument_docs, parameters


class Crust(BaseModel, extra="forbid"):
    thickness: float = 1.0
    seeds: list[int] = []


class Pie:
    """A pie.

    Args:
        width: Given by the caller.
        guests: Given by the caller too.
        filling: What is inside.
        sugar: How much of it, in grams: none by
            default, because

            most fillings are sweet.
        crust: The crust.
        layers: Weights of the layers.

    Returns:
        nothing: not an argument.
    """

    def __init__(
        self,
        width: int,
        guests: int = 2,
        *,
        filling: Literal["apple", "plum"] = "apple",
        sugar: float = 0.0,
        crust: Crust = Crust(),  # noqa: B008
        layers: dict[str, int] | None = None,
    ) -> None:
        self.given = (width, guests, filling, sugar, crust, layers)


class Bread:
    """A bread, without settings."""


class Cake:
    """A cake.

    Args:
        candles: One per year.
    """

    def __init__(self, *, candles: int) -> None:
        self.candles = candles


FOOD: Registry[object] = Registry("food", {"pie": Pie, "bread": Bread, "cake": Cake}, default="pie")


def test_names_are_listed_in_order_and_looked_up():
    assert list(FOOD) == ["pie", "bread", "cake"]
    assert "pie" in FOOD
    assert "pies" not in FOOD
    assert FOOD["bread"] is Bread


def test_a_part_from_outside_is_as_good_as_any_and_takes_nobodys_name():
    food: Registry[object] = Registry("food", {"pie": Pie}, default="pie")
    food.add("cake", Cake)
    food.add("cake", Cake)  # a file that is read twice
    assert list(food) == ["pie", "cake"]
    assert food.build({"name": "cake", "candles": 3}).candles == 3
    with pytest.raises(ConfigError, match="there is a food 'pie' already: add Bread by another name"):
        food.add("pie", Bread)


MISTAKES = {
    "unknown part": (
        {"name": "pied"},
        "there is no food 'pied' (did you mean 'pie'?); known: pie, bread, cake",
    ),
    "unknown part like no other": ({"name": "zzz"}, "there is no food 'zzz'; known: pie, bread, cake"),
    "a part that is not a name": ({"name": None}, "there is no food 'None'; known: pie, bread, cake"),
    "unknown setting": (
        {"name": "pie", "suger": 1},
        "food 'pie' has no setting 'suger' (did you mean 'sugar'?); its settings: filling, sugar, crust, layers",
    ),
    "what only the caller gives": (
        {"name": "pie", "width": 3},
        "food 'pie' has no setting 'width'; its settings: filling, sugar, crust, layers",
    ),
    "setting of a part without any": (
        {"name": "bread", "sugar": 1},
        "food 'bread' has no setting 'sugar'; its settings: none",
    ),
    "wrong type": (
        {"name": "pie", "sugar": "much"},
        "food.sugar='much': input should be a valid number, unable to parse string as a number",
    ),
    "wrong choice": (
        {"name": "pie", "filling": "aple"},
        "food.filling='aple': input should be 'apple' or 'plum'",
    ),
    "wrong nested value": (
        {"name": "pie", "crust": {"thickness": "thin"}},
        "food.crust.thickness='thin': input should be a valid number, unable to parse string as a number",
    ),
    "wrong value in a nested list": (
        {"name": "pie", "crust": {"seeds": [1, 2.5]}},
        "food.crust.seeds.1=2.5: input should be a valid integer, got a number with a fractional part",
    ),
    "unknown nested setting": (
        {"name": "pie", "crust": {"thicknes": 2}},
        "food.crust.thicknes=2: extra inputs are not permitted",
    ),
    "missing setting": ({"name": "cake"}, "food 'cake' needs a value for its setting 'candles'"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_explained(case):
    section, message = MISTAKES[case]
    with pytest.raises(ConfigError) as caught:
        FOOD.resolve(section)
    assert str(caught.value) == message


def test_nearest_is_silent_when_nothing_is_near():
    assert nearest("margn", ["margin", "mu"]) == " (did you mean 'margin'?)"
    assert nearest("qqq", ["margin", "mu"]) == ""
    assert nearest("margin", []) == ""


def test_defaults_are_filled_in_and_the_section_is_left_alone():
    section = {"name": "pie", "sugar": 2, "crust": {"seeds": [1]}}
    resolved = FOOD.resolve(section)
    assert resolved == {
        "name": "pie",
        "filling": "apple",
        "sugar": 2.0,
        "crust": {"thickness": 1.0, "seeds": [1]},
        "layers": None,
    }
    assert type(resolved["sugar"]) is float
    assert section == {"name": "pie", "sugar": 2, "crust": {"seeds": [1]}}


def test_default_part_is_meant_where_none_is_named():
    assert FOOD.resolve({"sugar": 1}) == FOOD.resolve({"name": "pie", "sugar": 1})
    assert type(FOOD.build({}, width=1)) is Pie


def test_resolving_again_changes_nothing():
    resolved = FOOD.resolve({"name": "pie", "layers": {"top": 1}})
    assert FOOD.resolve(resolved) == resolved


@pytest.mark.parametrize(("text", "value"), [("0.25", 0.25), ("3", 3.0), ("1e-3", 1e-3)])
def test_numbers_may_come_as_text(text, value):
    assert FOOD.resolve({"name": "pie", "sugar": text})["sugar"] == value


def test_build_passes_on_only_the_context_that_is_asked_for():
    pie = FOOD.build({"name": "pie", "sugar": 3}, width=7, classes=100)
    assert pie.given[:4] == (7, 2, "apple", 3.0)
    assert FOOD.build({"name": "pie"}, width=7, guests=5).given[:2] == (7, 5)
    assert type(FOOD.build({"name": "bread"}, width=7, classes=100)) is Bread
    assert FOOD.build({"name": "cake", "candles": "4"}).candles == 4


def test_build_checks_the_section():
    with pytest.raises(ConfigError, match="did you mean 'sugar'"):
        FOOD.build({"name": "pie", "sugr": 3}, width=7)


def test_parameters_are_the_keyword_only_arguments_with_their_docs():
    assert FOOD.parameters("cake") == [Parameter("candles", int, inspect.Parameter.empty, "One per year.")]
    assert FOOD.parameters("bread") == []
    assert [p.name for p in FOOD.parameters("pie")] == ["filling", "sugar", "crust", "layers"]
    sugar = FOOD.parameters("pie")[1]
    assert (sugar.annotation, sugar.default) == (float, 0.0)


def test_argument_docs_join_lines_and_stop_at_the_next_section():
    docs = argument_docs(Pie)
    assert list(docs) == ["width", "guests", "filling", "sugar", "crust", "layers"]
    assert docs["sugar"] == "How much of it, in grams: none by default, because most fillings are sweet."
    assert docs["layers"] == "Weights of the layers."
    assert argument_docs(Bread) == {}


REGISTRIES = [LOSSES, REFERENCES, MINING, POOLINGS, CENTRES]
EVERY_PART = [registry[name] for registry in REGISTRIES for name in registry] + [ZeroShotRegularisation]
every_part = pytest.mark.parametrize("part", EVERY_PART, ids=lambda part: part.__name__)


@every_part
def test_every_part_documents_every_setting(part):
    undocumented = [p.name for p in parameters(part) if not p.meaning]
    assert undocumented == []
    arguments = [name for name, p in inspect.signature(part).parameters.items() if p.kind is p.KEYWORD_ONLY]
    positional = [name for name, p in inspect.signature(part).parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert list(argument_docs(part)) == positional + arguments


@pytest.mark.parametrize("registry", [LOSSES, REFERENCES, MINING], ids=lambda registry: registry.kind)
def test_every_part_that_is_chosen_by_hand_says_when(registry):
    for name in registry:
        assert "\n\nWhen to use it: " in inspect.getdoc(registry[name]), name


@every_part
def test_every_part_writes_its_equation(part):
    assert inspect.getdoc(part).count("$$") >= 2


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.kind)
def test_every_part_is_built_from_its_name_alone(registry):
    assert registry.default in registry
    for name in registry:
        section = registry.resolve({"name": name})
        assert set(section) == {"name"} | {p.name for p in registry.parameters(name)}
        assert type(registry.build(section, width=8, dim=8, positions=4, num_classes=3, batch=6)) is registry[name]


def test_a_preset_fills_settings_that_words_still_override():
    assert LOSSES.resolve({"name": "c2", "preset": "cars"}) == {
        "name": "c2", "positive_margin": 0.2652, "negative_margin": 0.5409,
    }  # fmt: skip
    chosen = LOSSES.resolve({"name": "c2", "preset": "cars", "negative_margin": 0.9})
    assert (chosen["positive_margin"], chosen["negative_margin"]) == (0.2652, 0.9)
    assert LOSSES.resolve({"name": "c2", "preset": None}) == LOSSES.resolve("c2")


def test_an_unknown_preset_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"no preset 'cubs' \(did you mean 'cub'\?\); its presets: cub, cars"):
        LOSSES.resolve({"name": "c2", "preset": "cubs"})
    with pytest.raises(ConfigError, match="loss 'npair' has no preset 'cub'; its presets: none"):
        LOSSES.resolve({"name": "npair", "preset": "cub"})


@pytest.mark.parametrize("name", list(LOSSES))
def test_every_preset_is_made_of_settings_of_its_part(name):
    for preset in LOSSES.presets(name):
        assert LOSSES.resolve({"name": name, "preset": preset})["name"] == name
