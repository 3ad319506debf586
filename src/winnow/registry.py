"""Parts by name: losses and poolings.

What a part is called, which parameters it takes, their defaults and their meaning are written once, on the part: its
keyword-only constructor arguments and the `Args:` of its docstring. The config, the command line, the table-driven
tests and the documentation read them from here.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_type_hints

from pydantic import ConfigDict, ValidationError, create_model

from winnow.errors import ConfigError, UnknownPartError, nearest

T = TypeVar("T")
REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Parameter:
    """One setting of a part: its name, type, default and meaning."""

    name: str
    annotation: Any
    default: Any
    meaning: str


class Registry(Generic[T]):
    """A table of named parts of one kind.

    Args:
        kind: What the parts are, as users call it ("loss", "pooling").
        parts: Name to class.
        default: The part that is meant where none is named.
    """

    def __init__(self, kind: str, parts: Mapping[str, type[T]], *, default: str) -> None:
        self.kind, self.default = kind, default
        self._parts = dict(parts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def __getitem__(self, name: str) -> type[T]:
        if name not in self._parts:
            known = ", ".join(self._parts)
            raise UnknownPartError(f"there is no {self.kind} '{name}'{nearest(name, self)}; known: {known}")
        return self._parts[name]

    def add(self, name: str, part: type[T]) -> None:
        """Add a part from outside winnow, for as long as this process runs; settings are read off it as off all others.

        Raises:
            ConfigError: when another part has the name.
        """
        if self._parts.setdefault(name, part) is not part:
            raise ConfigError(f"there is a {self.kind} '{name}' already: add {part.__name__} by another name")

    def parameters(self, name: str) -> list[Parameter]:
        """Return the settings of a part: its keyword-only arguments, in order."""
        return parameters(self[name])

    def resolve(self, section: Any) -> dict[str, Any]:
        """Check a name or a section such as `{"name": "c2", "negative_margin": 0.5}` and fill in the defaults.

        Raises:
            ConfigError: for an unknown part, an unknown setting (with the nearest name) or a value of the wrong type.
        """
        if not isinstance(section, str | Mapping):
            raise ConfigError(f"{self.kind}={section!r}: give a name, one of {', '.join(self)}")
        settings = {"name": section} if isinstance(section, str) else dict(section)
        name = str(settings.pop("name", self.default))
        part = self[name]
        settings = {**self._preset(name, settings.pop("preset", None)), **settings}
        known = {p.name: p for p in parameters(part)}
        for key in settings:
            if key not in known:
                options = ", ".join(known) or "none"
                raise ConfigError(
                    f"{self.kind} '{name}' has no setting '{key}'{nearest(key, known)}; its settings: {options}"
                )
        fields: dict[str, Any] = {
            p.name: (p.annotation, ... if p.default is REQUIRED else p.default) for p in known.values()
        }
        model = create_model(f"{part.__name__}Settings", __config__=ConfigDict(extra="forbid"), **fields)
        try:
            checked = model(**settings)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            if first["type"] == "missing":
                raise ConfigError(f"{self.kind} '{name}' needs a value for its setting '{where}'") from None
            raise ConfigError(f"{self.kind}.{where}={first['input']!r}: {first['msg'].lower()}") from None
        return {"name": name, **checked.model_dump()}

    def presets(self, name: str) -> Mapping[str, Mapping[str, Any]]:
        """Return the named settings of a part, such as those of the documents for a data set."""
        found: Mapping[str, Mapping[str, Any]] = getattr(self[name], "presets", {})
        return found

    def _preset(self, name: str, preset: Any) -> Mapping[str, Any]:
        known = self.presets(name)
        if preset is None:
            return {}
        if preset not in known:
            options = ", ".join(known) or "none"
            raise ConfigError(
                f"{self.kind} '{name}' has no preset '{preset}'{nearest(str(preset), known)}; its presets: {options}"
            )
        return known[preset]

    def build(self, section: Mapping[str, Any], **context: Any) -> T:
        """Construct a part from its section; `context` offers what only the caller knows (widths, class counts).

        Of the context only what the constructor asks for is passed on.
        """
        settings = self.resolve(section)
        part_name = settings.pop("name")
        part = self[part_name]
        wanted = inspect.signature(part).parameters
        try:
            return part(**{key: value for key, value in context.items() if key in wanted}, **settings)
        except ValueError as error:
            raise ConfigError(f"{self.kind} '{part_name}': {error}") from None


def parameters(part: type) -> list[Parameter]:
    """Return the keyword-only constructor arguments of a class, with the meanings in its docstring."""
    signature = inspect.signature(part)
    hints = get_type_hints(part.__init__)  # type: ignore[misc]
    meanings = argument_docs(part)
    return [
        Parameter(p.name, hints.get(p.name, Any), p.default, meanings.get(p.name, ""))
        for p in signature.parameters.values()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    ]


def argument_docs(part: type) -> dict[str, str]:
    """Read the `Args:` section of a docstring: argument name to meaning, on one line each."""
    doc = inspect.getdoc(part) or ""
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
