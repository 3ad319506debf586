"""A run config from defaults, a YAML file, and `key=value` overrides."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from winnow.errors import ConfigError, did_you_mean
from winnow.files import read_text
from winnow.losses import LOSSES
from winnow.models.config import Section, present_names, section_of
from winnow.references import REFERENCES
from winnow.registry import RENAMED_KEYS, Registry
from winnow.training.config import REGISTRIES, DataConfig, RunConfig, make_config
from winnow.training.recipes import find_recipe

MAX_CONFIG_BYTES = 2**20
MAX_CONFIG_VALUES = 100_000


@dataclass(frozen=True)
class Overrides:
    """Settings that replace settings of a config.

    `a | b` has the settings of both, and of two values the one in `b`.

    As in a config, naming another component drops the settings of the one it replaces.
    """

    tree: Mapping[str, Any] = field(default_factory=dict)  # nested, with present names

    @classmethod
    def parse(cls, *args: str) -> Overrides:
        """Read arguments such as `loss=c2` and `loss.preset=cub`.

        Raises:
            ConfigError: If an argument has another form.
        """
        tree: dict[str, Any] = {}
        for arg in args:
            _override(tree, arg)
        return cls(tree)

    def __or__(self, other: Overrides) -> Overrides:
        tree = copy.deepcopy(dict(self.tree))
        for arg in other.to_args():
            _override(tree, arg)
        return Overrides(tree)

    def flat(self) -> dict[str, Any]:
        """Return dotted key to value; the name of a component precedes its settings."""
        return dict(_flatten(self.tree, RunConfig, ""))

    def to_args(self) -> list[str]:
        """Return the settings as arguments of a command."""
        return [f"{key}={_as_text(value)}" for key, value in self.flat().items()]


def load_config(file: str | Path | None = None, overrides: Sequence[str] = ()) -> RunConfig:
    """Build a config from defaults, a YAML file, and overrides.

    Raises:
        ConfigError: If the file cannot be read, a key is unknown, or a value has the wrong type.
    """
    tree: dict[str, Any] = {}
    if file is not None:
        tree = present_names(RunConfig, read_yaml(Path(file)))
    for override in overrides:
        _override(tree, override)
    return make_config(with_recipe(Overrides(tree)).tree)


DEPENDENT_KEYS: Mapping[str, tuple[str, ...]] = {
    "train.schedule": ("train.milestones", "train.step_factor", "train.warmup_steps"),
    "train.sampler": ("train.batch_size",),
    "train.unit": ("train.max_steps", "train.freeze_backbone_steps", "train.warmup_steps", "train.milestones"),
}
"""Keys of a recipe that have no meaning once another value of the first key is set."""


def with_recipe(own: Overrides) -> Overrides:
    """Return settings after those of the recipe that they name.

    As with components, a setting that depends on another one is dropped with it: another `train.schedule` drops the
    recipe's milestones.

    Raises:
        ConfigError: If the recipe is unknown.
    """
    name = own.tree.get("recipe")
    if name is None:
        return own
    recipe, given = find_recipe(str(name)), own.flat()
    data = str(given.get("data", DataConfig().path))
    first = Overrides.parse(*recipe.settings_for(data, proxies=False))
    settings = Overrides.parse(*recipe.settings_for(data, proxies=_has_proxies(first | own)))
    values = settings.flat()
    replaced = [key for key in DEPENDENT_KEYS if key in given and given[key] != values.get(key)]
    dropped = {key for one in replaced for key in DEPENDENT_KEYS[one]}
    kept = [one for one in settings.to_args() if one.partition("=")[0] not in dropped]
    return Overrides.parse(*kept) | own


def _has_proxies(settings: Overrides) -> bool:
    """Return whether the loss of a config is compared with proxies."""
    names = settings.flat()
    loss = str(names.get("loss", LOSSES.default))
    references = str(names.get("references", LOSSES[loss].default_references if loss in LOSSES else ""))
    return references in REFERENCES and REFERENCES.first_name(references) == "proxies"


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the mapping in a config file; an empty file sets nothing.

    Raises:
        ConfigError: If the file cannot be read or does not contain a mapping.
    """
    if path.is_dir() or path.suffix.lower() == ".csv":
        raise ConfigError(f"{path}: not a config file. To use it as data, set data={path}.")
    try:
        tree = load_yaml(read_text(path, max_bytes=MAX_CONFIG_BYTES))
    except FileNotFoundError:
        siblings = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        raise ConfigError(f"{path}: config file not found{did_you_mean(path.name, siblings)}") from None
    except (yaml.YAMLError, ValueError, RecursionError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: config file cannot be read: {reason}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected a mapping of config keys, got {type(tree).__name__}.")
    return tree


class _PlainLoader(yaml.SafeLoader):
    """Loader of bounded size that rejects a key that is given twice, of which YAML would silently use the last."""

    def get_single_node(self) -> yaml.Node | None:
        """Return the root, unless aliases repeat it into more values than any config has."""
        root: yaml.Node | None = super().get_single_node()
        if root is not None and _count_values(root, {}) > MAX_CONFIG_VALUES:
            raise ValueError(f"more than {MAX_CONFIG_VALUES:,} values")
        return root

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    line = key.start_mark.line + 1
                    raise yaml.YAMLError(f"the key '{key.value}' is given twice, again in line {line}")
                seen.add(key.value)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def _count_values(node: yaml.Node, counts: dict[int, int]) -> int:
    """Return the number of values of a node with all aliases written out."""
    key = id(node)
    if key not in counts:
        counts[key] = MAX_CONFIG_VALUES + 1  # of a node that contains itself, until it is counted
        children = () if isinstance(node, yaml.ScalarNode) else node.value
        pairs = (child if isinstance(child, tuple) else (child,) for child in children)
        counts[key] = 1 + sum(_count_values(one, counts) for pair in pairs for one in pair)
    return counts[key]


def load_yaml(text: str) -> Any:
    """Read YAML of plain values.

    Raises:
        yaml.YAMLError: If the text is no YAML, or a key is given twice.
        ValueError: If a number has thousands of digits, or aliases repeat values without bounds.
        RecursionError: If the text is nested too deeply.
    """
    return yaml.load(text, _PlainLoader)  # a SafeLoader


def read_value(key: str, text: str) -> Any:
    """Read the value of an override; text that is no YAML is a plain string.

    Raises:
        ConfigError: If a number or the nesting has no bounds, or a key is given twice.
    """
    try:
        return load_yaml(text)
    except yaml.YAMLError as error:
        if "given twice" in str(error):
            raise ConfigError(f"{key}: {error}. Write it once.") from None
        return text
    except (ValueError, RecursionError):
        raise ConfigError(f"{key}: the value has too many digits, repeats, or levels. Write a plain value.") from None


def _override(tree: dict[str, Any], override: str) -> None:
    """Set one dotted key.

    A bare value of a section keeps the other settings of that section.
    """
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError(f"{override!r}: expected KEY=VALUE, such as train.lr=1e-4.")
    value = read_value(key, text)
    if isinstance(value, date):  # a folder may be named 2024-01-01
        value = text
    *path, last = present_key(key).split(".")
    node = tree
    for name in path:
        inner = node.get(name)
        if not isinstance(inner, dict):
            inner = {} if inner is None else {_shorthand(name): inner}
            node[name] = inner
        node = inner
    existing = node.get(last)
    if isinstance(existing, dict) and not isinstance(value, dict) and not path:
        kept = existing if last not in REGISTRIES else _settings_to_keep(REGISTRIES[last], existing, value)
        node[last] = {**kept, _shorthand(last): value}
    else:
        node.pop(last, None)  # of two names of one setting the later entry is used
        node[last] = value


def _flatten(tree: Mapping[str, Any], section: type[Section] | None, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values.

    Only sections and components are flattened; other mappings are values.
    """
    for key, value in tree.items():
        field = None if section is None else section.model_fields.get(key)
        inner = section_of(field) if field is not None else None
        if not isinstance(value, Mapping) or (inner is None and key not in REGISTRIES):
            yield prefix + key, value
            continue
        name = _shorthand(key)
        if name in value and name in ("name", "path"):  # `train=100` would be hard to read
            yield prefix + key, value[name]
        else:
            name = ""
        yield from _flatten({one: each for one, each in value.items() if one != name}, inner, f"{prefix}{key}.")


def _as_text(value: Any) -> str:
    """Return the text that an override reads as a value."""
    if isinstance(value, str) and yaml.safe_load(value) == value:
        return value
    text = yaml.safe_dump(value, default_flow_style=True, width=10**9, sort_keys=False)
    return text.removesuffix("...\n").rstrip("\n")


def present_key(key: str) -> str:
    """Return the present name of a dotted key.

    Registries rename the settings of components.
    """
    section: type[Section] | None = RunConfig
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


def _settings_to_keep(registry: Registry[Any], existing: dict[str, Any], name: Any) -> dict[str, Any]:
    """Return the settings that remain when a component is named after them.

    A new component does not inherit the settings of the one it replaces; the same one keeps its own. Settings that came
    without a name belong to the new component if it has them, and to the default component otherwise.
    """
    if name not in registry:
        return {}
    first = registry.first_name(name)
    if "name" in existing:
        same = existing["name"] in registry and registry.first_name(existing["name"]) == first
        return existing if same else {}
    of_default, of_new = _setting_names(registry, registry.default), _setting_names(registry, first)
    return {key: value for key, value in existing.items() if key in of_new or key not in of_default}


def _setting_names(registry: Registry[Any], name: str) -> set[str]:
    """Return the names of a component's settings, old ones included."""
    return {one.name for one in registry.parameters(name)} | set(getattr(registry[name], "aliases", {}))


def _shorthand(section: str) -> str:
    if section in REGISTRIES:
        return "name"
    field = RunConfig.model_fields.get(section)
    inner = section_of(field) if field is not None else None
    return (inner.shorthand if inner is not None else None) or "name"
