"""What a search was begun with, as its memory keeps it, and whether it may go on with what is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from winnow.errors import ConfigError
from winnow.models.config import Section, section_of
from winnow.training.build import resolve_config
from winnow.training.config import RunConfig, first_difference, make_config


def flat(config: RunConfig) -> dict[str, Any]:
    """Return a config's set values by dotted key."""
    found: dict[str, Any] = {}

    def walk(tree: Any, prefix: str) -> None:
        if isinstance(tree, dict) and tree:
            for key, value in tree.items():
                walk(value, f"{prefix}.{key}" if prefix else str(key))
        else:
            found[prefix] = tree

    walk(config.model_dump(mode="json", exclude_unset=True), "")
    return found


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Undo `flat`: only sections are parted at dots, since patterns of parameters have dots of their own."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        section: type[Section] | None = RunConfig
        place, rest = tree, key
        while section is not None:
            name, _, rest = rest.partition(".")
            field = section.model_fields.get(name)
            section = section_of(field) if field is not None and rest else None
            if rest:
                place = place.setdefault(name, {})
            else:
                place[name] = value
        if rest:
            place[rest] = value
    return tree


def changed(asked: RunConfig, begun: Mapping[str, Any]) -> str | None:
    """Return, in words, the first setting that a search was begun with otherwise; None where it may go on.

    What winnow did not have then has its default.

    Args:
        asked: The settings, with some values of the searched keys.
        begun: The set values by dotted key, with the same values of the searched keys.
    """
    try:
        made = make_config(nested(begun))
    except ConfigError as error:
        return f"settings, which winnow no longer takes ({error})"
    # The second is for image.crop and the like: set to their default they are not what they are when left to the data.
    key = first_difference(_all(asked), _all(made)) or first_difference(
        _all(resolve_config(asked)), _all(resolve_config(made))
    )
    return None if key is None else f"settings, first of all {key}"


def _all(config: RunConfig) -> dict[str, Any]:
    return config.model_dump(mode="json")
