"""Whether a run was made with some settings, also one that wrote them down before winnow learned some of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from winnow.models.config import Section, section_of
from winnow.training.config import Config, make_config


def differing(asked: Mapping[str, Any], made: Mapping[str, Any]) -> str | None:
    """Return the dotted key of the first setting that a run has otherwise than asked; None where there is none.

    What the run wrote down is read through today's config. A setting that winnow did not have then has its default, and
    the default of a new setting is what was done before there was one.

    Args:
        asked: Settings as nested mappings; sections may leave out what may be anything.
        made: All settings of the run.

    Raises:
        ConfigError: when the run has a setting, or a value of one, that winnow no longer has.
    """
    return _first(Config, asked, make_config(made).model_dump(mode="json"), "")


def _first(section: type[Section] | None, asked: Any, made: Any, key: str) -> str | None:
    if not (isinstance(asked, Mapping) and isinstance(made, Mapping)):
        return None if asked == made else key
    # The settings of a part, or factors by pattern, are asked for as a whole: one that is there beside them counts too.
    for name in asked if section is not None else {**asked, **made}:
        inner = section_of(section.model_fields[name]) if section is not None else None
        found = _first(inner, asked.get(name), made.get(name), f"{key}.{name}" if key else str(name))
        if found is not None:
            return found
    return None
