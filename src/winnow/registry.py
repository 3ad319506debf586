"""Components by name: losses, miners, references, regularizers, and poolings.

The name of a component, its settings, their defaults, and their meanings are written once, on its class: the
keyword-only constructor arguments and the `Args:` of the docstring. The config, the command line, the table-driven
tests, and the documentation read them from there.
"""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model, model_validator

from winnow.errors import ConfigError, UnknownComponentError, did_you_mean

T = TypeVar("T")
REQUIRED = inspect.Parameter.empty

LARGEST = 10**9
"""Largest whole number that a setting other than a seed may have."""
RENAMED_KEYS: dict[str, str] = {}
"""Old names of settings that were read in this process, with their present names."""


@dataclass(frozen=True)
class Parameter:
    """One setting of a component: its name, type, default, and meaning."""

    name: str
    annotation: Any
    default: Any
    meaning: str


class ComponentSettings(BaseModel):
    """Settings of one component.

    Each component has a subclass with a field for every setting.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    name: str

    @model_validator(mode="after")
    def _limit_sizes(self) -> ComponentSettings:
        check_sizes(self)
        return self

    def arguments(self) -> dict[str, Any]:
        """Return the settings as constructor arguments."""
        return {key: value for key, value in self.model_dump().items() if key != "name"}


class Registry(Generic[T]):
    """Table of named components of one kind.

    Args:
        kind: What users call the components ("loss", "pooling").
        components: Class of each name.
        default: Component that is used if none is named.
        aliases: Further names of components; files and tables use the first name.
    """

    def __init__(
        self, kind: str, components: Mapping[str, type[T]], *, default: str, aliases: Mapping[str, str] | None = None
    ) -> None:
        self.kind, self.default = kind, default
        self.aliases = dict(aliases or {})
        self._components = dict(components)

    def __iter__(self) -> Iterator[str]:
        return iter(self._components)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self._components or name in self.aliases)

    def __getitem__(self, name: str) -> type[T]:
        return self._components[self.first_name(name)]

    def first_name(self, name: str) -> str:
        """Return the name that files and tables use for a component.

        Raises:
            UnknownComponentError: If no component has the name.
        """
        first = self.aliases.get(name, name)
        if first not in self._components:
            hint = did_you_mean(name, [*self._components, *self.aliases])
            raise UnknownComponentError(f"{self.kind}: unknown name '{name}'{hint} Available: {', '.join(self)}.")
        return first

    def add(self, name: str, component: type[T]) -> None:
        """Add a component from outside winnow for the lifetime of this process.

        Raises:
            ConfigError: If another component has the name.
        """
        if name in self.aliases or self._components.setdefault(name, component) is not component:
            raise ConfigError(
                f"{self.kind}: the name '{name}' is already in use. Add {component.__name__} under another name."
            )

    def parameters(self, name: str) -> list[Parameter]:
        """Return the settings of a component: its keyword-only arguments, in order."""
        return parameters(self[name])

    def settings(self, name: str) -> type[ComponentSettings]:
        """Return the settings model of a component."""
        first = self.first_name(name)
        component: type = self._components[first]
        return _settings_model(component, first)

    def resolve(self, section: object) -> ComponentSettings:
        """Validate a name or a section, and fill in the defaults.

        A section is a mapping such as `{"name": "c2", "neg_margin": 0.5}`.

        Raises:
            ConfigError: If the component or a setting is unknown, or a value has the wrong type.
        """
        if isinstance(section, ComponentSettings):
            return section
        if not isinstance(section, str | Mapping):
            raise ConfigError(f"{self.kind}: expected a name, got {section!r}. Available: {', '.join(self)}.")
        given = {"name": section} if isinstance(section, str) else dict(section)
        name = self.first_name(str(given.pop("name", self.default)))
        preset = preset_settings(self.presets(name), given.pop("preset", None), self.kind, name)
        settings = {**preset, **rename_keys(given, self[name], f"{self.kind}.")}
        model = self.settings(name)
        known = [key for key in model.model_fields if key != "name"]
        for key in settings:
            if key not in known:
                raise ConfigError(
                    f"{self.kind}.{key}: unknown setting of '{name}'{did_you_mean(key, known)} "
                    f"Available: {', '.join(known) or 'none'}."
                )
        try:
            checked = model(name=name, **settings)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join([self.kind, *(str(key) for key in first["loc"])])
            if first["type"] == "missing":
                raise ConfigError(f"{where}: '{name}' requires a value. Set it.") from None
            if not first["loc"]:  # from `check_sizes`, which names the key
                raise ConfigError(f"{where}.{first['msg'].removeprefix('Value error, ')}. Lower it.") from None
            raise ConfigError(f"{where}={first['input']!r}: {first['msg'].lower()}") from None
        return model(**checked.model_dump())  # all fields count as set, so a written config names every one

    def presets(self, name: str) -> Mapping[str, Mapping[str, Any]]:
        """Return the named settings of a component, such as values of a paper."""
        presets: Mapping[str, Mapping[str, Any]] = getattr(self[name], "presets", {})
        return presets

    def build(self, section: str | Mapping[str, Any] | ComponentSettings, **context: Any) -> T:
        """Construct a component from its section.

        Args:
            section: Name, or name and settings.
            context: Values that only the caller has, such as widths and class counts. The constructor gets those that
                it has an argument for, except for `not_settings`.
        """
        settings = self.resolve(section)
        component = self[settings.name]
        accepted = set(inspect.signature(component).parameters) - set(getattr(component, "not_settings", ()))
        try:
            return component(
                **{key: value for key, value in context.items() if key in accepted}, **settings.arguments()
            )
        except ValueError as error:
            raise ConfigError(f"{self.kind} '{settings.name}': {error}") from None


def preset_settings(
    presets: Mapping[str, Mapping[str, Any]], preset: Any, section: str, name: str
) -> Mapping[str, Any]:
    """Return the settings of a preset of a component or section; none for None.

    Raises:
        ConfigError: If no preset has the name.
    """
    if preset is None:
        return {}
    if not isinstance(preset, str) or preset not in presets:
        raise ConfigError(
            f"{section}.preset: unknown preset '{preset}' of '{name}'{did_you_mean(str(preset), presets)} "
            f"Available: {', '.join(presets) or 'none'}."
        )
    return presets[preset]


def check_sizes(section: BaseModel) -> None:
    """Check the numbers of a section.

    Raises:
        ValueError: If a whole number is above `LARGEST`, which no size or count of a run reaches.
    """
    for key, value in section:
        if isinstance(value, int) and abs(value) > LARGEST and key != "seed":
            raise ValueError(f"{key}: expected at most {LARGEST:,}, got a number of {len(str(value))} digits")


def rename_keys(given: Mapping[str, Any], kind: type, prefix: str) -> dict[str, Any]:
    """Return settings under their present names and values.

    Of two names of one setting the later entry is used.

    Args:
        given: Settings as written.
        kind: Class with `aliases` (old name to new) and `value_aliases` (new name to old value to new).
        prefix: Section for the notice, such as "train.".
    """
    names: Mapping[str, str] = getattr(kind, "aliases", {})
    values: Mapping[str, Mapping[Any, Any]] = getattr(kind, "value_aliases", {})
    renamed: dict[str, Any] = {}
    for key, value in given.items():
        new = names.get(str(key), str(key))
        if new != str(key):
            RENAMED_KEYS[f"{prefix}{key}"] = f"{prefix}{new}"
        known = values.get(new, {})
        if isinstance(value, str) and value in known:
            RENAMED_KEYS[f"{prefix}{key}={value}"] = f"{prefix}{new}={known[value]}"
            value = known[value]
        renamed.pop(new, None)
        renamed[new] = value
    return renamed


def first_names(settings: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return settings under first names and values; inverts `rename_keys`."""
    names: dict[str, str] = {}
    for old, new in getattr(kind, "aliases", {}).items():
        names.setdefault(new, old)
    values: Mapping[str, Mapping[Any, Any]] = getattr(kind, "value_aliases", {})
    first: dict[str, Any] = {}
    for key, value in settings.items():
        olds = [old for old, new in values.get(key, {}).items() if new == value and isinstance(value, str)]
        first[names.get(key, key)] = olds[0] if olds else value
    return first


@functools.cache
def _settings_model(component: type, name: str) -> type[ComponentSettings]:
    fields: dict[str, Any] = {"name": (Literal[name], name)}
    for p in parameters(component):
        fields[p.name] = (p.annotation, ... if p.default is REQUIRED else p.default)
    return create_model(f"{component.__name__}Settings", __base__=ComponentSettings, **fields)


def parameters(component: type) -> list[Parameter]:
    """Return the keyword-only constructor arguments of a class, with meanings.

    Arguments that the class lists in `not_settings` take objects instead of settings and are left to Python code.
    `setting_defaults` of the class replaces defaults of the constructor that differ in a config.
    """
    signature = inspect.signature(component)
    hints = get_type_hints(component.__init__)  # type: ignore[misc]
    meanings = argument_docs(component)
    objects: tuple[str, ...] = getattr(component, "not_settings", ())
    defaults: Mapping[str, Any] = getattr(component, "setting_defaults", {})
    return [
        Parameter(p.name, hints.get(p.name, Any), defaults.get(p.name, p.default), meanings.get(p.name, ""))
        for p in signature.parameters.values()
        if p.kind is inspect.Parameter.KEYWORD_ONLY and p.name not in objects
    ]


def show_settings(component: object) -> str:
    """Return the settings of a component as constructor arguments.

    It is the `extra_repr` of components.
    """
    shown = [one.name for one in parameters(type(component)) if hasattr(component, one.name)]
    return ", ".join(f"{name}={getattr(component, name)!r}" for name in shown)


def argument_docs(component: type) -> dict[str, str]:
    """Read the `Args:` of a docstring: argument name to meaning on one line."""
    doc = inspect.getdoc(component) or ""
    if "\nArgs:\n" not in doc:
        return {}
    block: list[str] = []
    for line in doc.split("\nArgs:\n", 1)[1].splitlines():
        if line and not line.startswith(" "):
            break
        block.append(line)
    docs: dict[str, str] = {}
    current = ""
    for line in textwrap.dedent("\n".join(block)).splitlines():
        if line and not line.startswith(" "):
            current, _, text = line.partition(":")
            docs[current] = text.strip()
        elif current and line.strip():
            docs[current] += " " + line.strip()
    return docs
