"""Reference pages of the config, the components, and the benchmark datasets, generated from the code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args, get_origin

from markup import escaped, written

from winnow.registry import REQUIRED, Registry


def config() -> str:
    """Return every config key with its default and meaning, as one table for each section."""
    from winnow.training.config import ConfigKey, RunConfig, config_keys

    sections: dict[str, list[ConfigKey]] = {}
    for key in config_keys():
        sections.setdefault(key.name.split(".")[0] if "." in key.name else "", []).append(key)
    sections[""] = sections.pop("")  # keys outside sections come last
    lines: list[str] = []
    for name, keys in sections.items():
        lines += [f"## {name or 'Other keys'}", ""]
        if name:
            section: Any = RunConfig.model_fields[name].annotation
            lines += [*_about(name, section), ""]
        lines += ["| key | default | meaning |", "|---|---|---|"]
        for key in keys:
            owner = f"({key.component}) " if key.component else ""
            lines.append(f"| `{key.name}` | {written(key.default)} | {escaped(owner + key.meaning)} |")
        lines.append("")
    return "\n".join(lines)


def _about(name: str, section: Any) -> Iterator[str]:
    """Yield the description of a section, and the key that its short form sets."""
    if hasattr(section, "shorthand"):
        yield inspect.getdoc(section) or ""
        short = f"{name}.{section.shorthand}" if section.shorthand else None
    else:
        page = {"loss": "losses", "pooling": "poolings", "miner": "miners", "regularizer": "regularizers"}.get(
            name, name
        )
        noun = "source of references" if name == "references" else name
        yield f"Each {noun} has its own settings; see [{page}]({page}.md)."
        short = f"{name}.name"
    if short:
        yield ""
        yield f"`{name}=VALUE` is short for `{short}=VALUE`."


def _losses() -> Registry[Any]:
    from winnow.losses import LOSSES

    return LOSSES


def _references() -> Registry[Any]:
    from winnow.references import REFERENCES

    return REFERENCES


def _miners() -> Registry[Any]:
    from winnow.miners import MINERS

    return MINERS


PAGED: dict[str, Callable[[], Registry[Any]]] = {"losses": _losses, "references": _references, "miners": _miners}
"""Kinds of components that have one page for each component."""


def listed(kind: str) -> str:
    """Return a table of the components of a kind, with links to their pages."""
    registry = PAGED[kind]()
    lines = ["| name | description |", "|---|---|"]
    for name in registry:
        first = (inspect.getdoc(registry[name]) or "").splitlines()[0].replace("|", "\\|")
        default = " The default." if name == registry.default else ""
        lines.append(f"| [`{registry.kind}={name}`]({kind}/{name}.md) | {first}{default} |")
    return "\n".join(lines)


def regularizers() -> str:
    """Return a section for every center regularizer."""
    from winnow.regularizers import REGULARIZERS

    return _registry(REGULARIZERS, lambda part: "")


def poolings() -> str:
    """Return a section for every pooling, with its input and output."""
    from winnow.pooling import POOLINGS

    def facts(part: Any) -> str:
        stage = {"raw": "backbone's map, before the projection", "projected": "projected map"}[part.stage]
        if part.needs_guide:
            stage = "backbone's map, before the projection, by weights computed from the projected map"
        layout = {
            "set": "maps of any size, and tokens",
            "grid": "maps of any size, not tokens",
            "fixed": "maps or tokens of one fixed size",
        }[part.layout]
        weights = "a weight for each location" if part.has_weights else "no weights of locations"
        attributes = ", and attributes" if part.has_attributes else ""
        return f"Pools the {stage}. Input: {layout}. Details: {weights}{attributes}."

    return _registry(POOLINGS, facts)


def _registry(registry: Registry[Any], facts: Callable[[Any], str]) -> str:
    """Return a section for every component."""
    lines: list[str] = []
    for name in registry:
        default = " (the default)" if name == registry.default else ""
        lines += [f"## {name}{default} {{ #{name} }}", "", *part_page(registry, name, facts(registry[name]))]
    return "\n".join(lines)


def part_page(registry: Registry[Any], name: str, facts: str = "") -> Iterator[str]:
    """Yield description, equation, reference, settings, and presets of a component."""
    part = registry[name]
    body = (inspect.getdoc(part) or "").split("\nArgs:\n")[0].rstrip()
    body = re.sub(r"(?m)^(Reference|Use when|When to use it|Differences): ", r"\n**\1:** ", body)
    module = ".".join(part.__module__.split(".")[:2])
    yield from (f"[`{part.__name__}`][{module}.{part.__name__}]", "", body, "", facts, "")
    settings = registry.parameters(name)
    if not settings:
        yield from ("No settings.", "")
        return
    yield from ("| setting | type | default | meaning |", "|---|---|---|---|")
    for one in settings:
        kind = getattr(one.annotation, "__name__", str(one.annotation))
        if get_origin(one.annotation) is Literal:
            kind = " or ".join(map(str, get_args(one.annotation)))
        default = "required" if one.default is REQUIRED else written(one.default)
        yield f"| `{registry.kind}.{one.name}` | `{escaped(kind, code=True)}` | {default} | {escaped(one.meaning)} |"
    yield ""
    if presets := registry.presets(name):
        yield from (
            "Presets, the settings of a paper for a dataset or a comparison:",
            "",
            "| preset | settings |",
            "|---|---|",
        )
        for preset, chosen in presets.items():
            listed = ", ".join(f"`{key}={value}`" for key, value in chosen.items())
            yield f"| `{registry.kind}.preset={preset}` | {listed} |"
        yield ""


def recipes() -> str:
    """Return the table of recipes: published and measured R@1 by dataset."""
    from winnow.cli.recipes import DATASETS, measured_text, published_text
    from winnow.training.recipes import RECIPES, measured_recalls

    lines = ["| recipe | " + " | ".join(DATASETS.values()) + " | content |", "|---" * (len(DATASETS) + 2) + "|"]
    for name, one in RECIPES.items():
        ours = measured_recalls().get(f"recipe={name}", {})
        cells = [f"{published_text(one.published.get(data))} / {measured_text(ours.get(data))}" for data in DATASETS]
        lines.append(f"| `{name}` | " + " | ".join(cells) + f" | {one.about} |")
    return "\n".join(lines)


def recipe_sources() -> str:
    """Return the sources of the settings and of the published numbers."""
    from winnow.training.recipes import RECIPES

    lines = []
    for name, one in RECIPES.items():
        numbers = "; ".join(dict.fromkeys(each.source for each in one.published.values()))
        lines.append(f"- `{name}`: {one.citation}." + (f" Numbers: {numbers}." if numbers else ""))
    return "\n".join(lines)


def datasets() -> str:
    """Return a table of the benchmark datasets: images, classes, ranks of R@k, and terms of use."""
    from winnow.data.datasets import DATASETS

    lines = ["| name | dataset | images | R@k at | terms |", "|---|---|---|---|---|"]
    for name, one in DATASETS.items():
        images = ", ".join(f"{part} {count:,}" for part, count in one.counts.items())
        cells = [f"[{one.title}]({one.home.split()[0]}): {one.about}", images, ", ".join(map(str, one.ks)), one.terms]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)
