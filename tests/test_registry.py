"""Components by name: sections of a config, error messages, and documented settings."""

import inspect
import re
from collections.abc import Mapping
from typing import ClassVar, Literal

import pytest
from pydantic import BaseModel

from winnow.errors import ConfigError, did_you_mean
from winnow.losses import LOSSES, ZeroShotRegularizer
from winnow.miners import MINERS
from winnow.pooling import POOLINGS
from winnow.references import REFERENCES
from winnow.registry import RENAMED_KEYS, Parameter, Registry, argument_docs, first_names, parameters, rename_keys
from winnow.regularizers import REGULARIZERS


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
    with pytest.raises(ConfigError, match=r"'pie'.*Bread"):
        food.add("pie", Bread)


MISTAKES = {
    "unknown component": ({"name": "pied"}, ["food", "'pied'", "'pie'?", "pie, bread, cake"]),
    "unknown component like no other": ({"name": "zzz"}, ["food", "'zzz'", "pie, bread, cake"]),
    "a component that is not a name": ({"name": None}, ["food", "'None'", "pie, bread, cake"]),
    "a section that is not a mapping": (3, ["food", "got 3", "pie, bread, cake"]),
    "unknown setting": ({"name": "pie", "suger": 1}, ["food.suger", "'sugar'?", "filling, sugar, crust, layers"]),
    "an argument that only the caller has": ({"name": "pie", "width": 3}, ["food.width", "filling, sugar"]),
    "setting of a component without any": ({"name": "bread", "sugar": 1}, ["food.sugar", "'bread'", "none"]),
    "wrong type": ({"name": "pie", "sugar": "much"}, ["food.sugar='much'", "number"]),
    "wrong choice": ({"name": "pie", "filling": "aple"}, ["food.filling='aple'", "'apple' or 'plum'"]),
    "wrong nested value": ({"name": "pie", "crust": {"thickness": "thin"}}, ["food.crust.thickness='thin'", "number"]),
    "wrong value in a nested list": ({"name": "pie", "crust": {"seeds": [1, 2.5]}}, ["food.crust.seeds.1=2.5"]),
    "unknown nested setting": ({"name": "pie", "crust": {"thicknes": 2}}, ["food.crust.thicknes=2"]),
    "missing setting": ({"name": "cake"}, ["food.candles", "'cake'"]),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_name_the_key_and_the_choices(case):
    section, fragments = MISTAKES[case]
    with pytest.raises(ConfigError) as caught:
        FOOD.resolve(section)
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_did_you_mean_names_only_close_matches():
    assert "'margin'" in did_you_mean("margn", ["margin", "mu"])
    assert did_you_mean("qqq", ["margin", "mu"]) == "."
    assert did_you_mean("margin", []) == "."


class Soup:
    """Soup, with settings that were renamed.

    Args:
        heat: Heat of the soup.
        kind: Kind of soup.
    """

    aliases: ClassVar[Mapping[str, str]] = {"warmth": "heat", "sort": "kind"}
    value_aliases: ClassVar[Mapping[str, Mapping[str, str]]] = {"kind": {"potage": "cream"}}

    def __init__(self, *, heat: float = 1.0, kind: Literal["clear", "cream"] = "clear") -> None:
        self.heat, self.kind = heat, kind


SOUPS: Registry[object] = Registry("soup", {"soup": Soup}, default="soup", aliases={"broth": "soup"})


def test_old_names_of_settings_values_and_components_load():
    assert SOUPS.resolve({"name": "broth", "warmth": 3, "sort": "potage"}) == SOUPS.resolve(
        {"name": "soup", "heat": 3, "kind": "cream"}
    )
    assert SOUPS.resolve("broth").name == "soup"
    assert RENAMED_KEYS["soup.warmth"] == "soup.heat"


@pytest.mark.parametrize("order", [("warmth", "heat"), ("heat", "warmth")])
def test_of_an_old_and_a_new_name_the_later_entry_is_used(order):
    section = {order[0]: 1.0, order[1]: 2.0}
    assert SOUPS.resolve(section).heat == 2.0


def test_first_names_invert_the_renames():
    renamed = rename_keys({"warmth": 3, "sort": "potage"}, Soup, "soup.")
    assert renamed == {"heat": 3, "kind": "cream"}
    assert first_names(renamed, Soup) == {"warmth": 3, "sort": "potage"}


def test_an_alias_cannot_be_taken_by_another_component():
    with pytest.raises(ConfigError, match="broth"):
        SOUPS.add("broth", Bread)


def test_defaults_are_filled_in_and_the_section_is_left_alone():
    section = {"name": "pie", "sugar": 2, "crust": {"seeds": [1]}}
    resolved = FOOD.resolve(section)
    assert resolved.model_dump() == {
        "name": "pie",
        "filling": "apple",
        "sugar": 2.0,
        "crust": {"thickness": 1.0, "seeds": [1]},
        "layers": None,
    }
    assert type(resolved.sugar) is float
    assert section == {"name": "pie", "sugar": 2, "crust": {"seeds": [1]}}


def test_default_part_is_meant_where_none_is_named():
    assert FOOD.resolve({"sugar": 1}) == FOOD.resolve({"name": "pie", "sugar": 1})
    assert type(FOOD.build({}, width=1)) is Pie


def test_resolving_again_changes_nothing():
    resolved = FOOD.resolve({"name": "pie", "layers": {"top": 1}})
    assert FOOD.resolve(resolved) == resolved


@pytest.mark.parametrize(("text", "value"), [("0.25", 0.25), ("3", 3.0), ("1e-3", 1e-3)])
def test_numbers_may_come_as_text(text, value):
    assert FOOD.resolve({"name": "pie", "sugar": text}).sugar == value


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


REGISTRIES = [LOSSES, REFERENCES, MINERS, POOLINGS, REGULARIZERS]
EVERY_PART = [registry[name] for registry in REGISTRIES for name in registry] + [ZeroShotRegularizer]
every_part = pytest.mark.parametrize("part", EVERY_PART, ids=lambda part: part.__name__)


@every_part
def test_every_part_documents_every_setting(part):
    undocumented = [p.name for p in parameters(part) if not p.meaning]
    assert undocumented == []
    arguments = [name for name, p in inspect.signature(part).parameters.items() if p.kind is p.KEYWORD_ONLY]
    positional = [name for name, p in inspect.signature(part).parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert list(argument_docs(part)) == positional + arguments


@pytest.mark.parametrize("registry", [LOSSES, REFERENCES, MINERS], ids=lambda registry: registry.kind)
def test_every_part_that_is_chosen_by_hand_says_when(registry):
    for name in registry:
        assert re.search(r"(?m)^(Use when|When to use it): ", inspect.getdoc(registry[name])), name


@every_part
def test_every_part_writes_its_equation(part):
    assert inspect.getdoc(part).count("$$") >= 2


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.kind)
def test_every_part_is_built_from_its_name_alone(registry):
    assert registry.default in registry
    for name in registry:
        section = registry.resolve({"name": name})
        assert set(section.model_dump()) == {"name"} | {p.name for p in registry.parameters(name)}
        assert (
            type(
                registry.build(
                    section, width=8, in_features=8, dim=8, positions=4, num_classes=3, embedding_size=8, batch_size=6
                )
            )
            is registry[name]
        )


def test_a_preset_fills_settings_that_words_still_override():
    assert LOSSES.resolve({"name": "c2", "preset": "cars"}).model_dump() == {
        "name": "c2", "pos_margin": 0.2652, "neg_margin": 0.5409,
    }  # fmt: skip
    chosen = LOSSES.resolve({"name": "c2", "preset": "cars", "neg_margin": 0.9})
    assert (chosen.pos_margin, chosen.neg_margin) == (0.2652, 0.9)
    assert LOSSES.resolve({"name": "c2", "preset": None}) == LOSSES.resolve("c2")


def test_an_unknown_preset_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"'cubs'.*'cub'\?.*cub, cars"):
        LOSSES.resolve({"name": "c2", "preset": "cubs"})
    with pytest.raises(ConfigError, match=r"loss.preset.*'npair'.*none"):
        LOSSES.resolve({"name": "npair", "preset": "cub"})


@pytest.mark.parametrize("name", list(LOSSES))
def test_every_preset_is_made_of_settings_of_its_part(name):
    for preset in LOSSES.presets(name):
        assert LOSSES.resolve({"name": name, "preset": preset}).name == name
