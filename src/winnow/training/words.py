"""A config from what users write: defaults, then a YAML file, then `key=value` words."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from winnow.errors import ConfigError, nearest
from winnow.models.config import Section, present_names, section_of
from winnow.registry import RENAMED_KEYS, Registry
from winnow.training.config import REGISTRIES, Config, make_config


def load_config(file: str | Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """Build a config from defaults, a YAML file and words such as `loss.margin=0.2` or `data=FOLDER`.

    Raises:
        ConfigError: for an unreadable file, an unknown key (with the nearest name) or a value of the wrong type.
    """
    tree: dict[str, Any] = {}
    if file is not None:
        tree = present_names(Config, read_yaml(Path(file)))
    for word in overrides:
        _override(tree, word)
    return make_config(tree)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the mapping a config file holds; an empty file sets nothing.

    Raises:
        ConfigError: for a file that cannot be read or holds something else.
    """
    if path.is_dir() or path.suffix.lower() == ".csv":
        raise ConfigError(f"{path} is no config file: name data by data={path}")
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        siblings = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        raise ConfigError(f"config file {path} does not exist{nearest(path.name, siblings)}") from None
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"config file {path} cannot be read: {' '.join(str(error).split())}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"config file {path} must hold a mapping of keys, not {type(tree).__name__}")
    return tree


def _override(tree: dict[str, Any], word: str) -> None:
    """Set one dotted key; a bare section value stays beside settings given for that section."""
    key, separator, text = word.partition("=")
    if not separator or not key:
        raise ConfigError(f"'{word}' is not of the form key=value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    if isinstance(value, date):  # a folder may be named 2024-01-01
        value = text
    *path, last = _present_key(key).split(".")
    node = tree
    for name in path:
        inner = node.get(name)
        if not isinstance(inner, dict):
            inner = {} if inner is None else {_shorthand(name): inner}
            node[name] = inner
        node = inner
    existing = node.get(last)
    if isinstance(existing, dict) and not isinstance(value, dict) and not path:
        kept = existing if last not in REGISTRIES else _kept(REGISTRIES[last], existing, value)
        node[last] = {**kept, _shorthand(last): value}
    else:
        node.pop(last, None)  # of two names of one setting the later entry is used
        node[last] = value


def _present_key(key: str) -> str:
    """Return the present name of a dotted key; registries rename the settings of components."""
    section: type[Section] | None = Config
    names = []
    for name in key.split("."):
        new = name if section is None else section.aliases.get(name, name)
        field = None if section is None else section.model_fields.get(new)
        section = section_of(field) if field is not None else None
        names.append(new)
    present = ".".join(names)
    if present != key:
        RENAMED_KEYS[key] = present
    return present


def _kept(registry: Registry[Any], existing: dict[str, Any], name: Any) -> dict[str, Any]:
    """Return the settings that stay when a part is named after them.

    A new loss or pooling does not inherit the settings of the one it replaces; the same one keeps its own. Settings
    that came without a name are its own if it has them, or else meant for the default part.
    """
    if name not in registry:
        return {}
    first = registry.first_name(name)
    if "name" in existing:
        same = existing["name"] in registry and registry.first_name(existing["name"]) == first
        return existing if same else {}
    theirs, its = _setting_names(registry, registry.default), _setting_names(registry, first)
    return {key: value for key, value in existing.items() if key in its or key not in theirs}


def _setting_names(registry: Registry[Any], name: str) -> set[str]:
    """Return the names of a component's settings, old ones included."""
    return {one.name for one in registry.parameters(name)} | set(getattr(registry[name], "aliases", {}))


def _shorthand(section: str) -> str:
    if section in REGISTRIES:
        return "name"
    field = Config.model_fields.get(section)
    inner = section_of(field) if field is not None else None
    return (inner.shorthand if inner is not None else None) or "name"
