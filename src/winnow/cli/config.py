"""`winnow config`: keys, defaults, and meanings as text of at most 80 columns."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from winnow.cli.help import Entry, render_group, screen_width
from winnow.errors import ConfigError

if TYPE_CHECKING:
    from winnow.training.config import ConfigKey, RunConfig

SECTIONS = {
    "Start": ("recipe",),
    "Data": ("data", "image", "augment"),
    "Model": ("backbone", "pooling", "dim", "head", "normalize"),
    "Objective": ("loss", "references", "miner", "regularizer", "zsr", "libc", "distill"),
    "Training": ("train", "plateau", "seed"),
}
"""Sections of the config by group, in the order of the overview."""

HINT = """`winnow config train` lists the keys of a section, `winnow config pooling=gsp`
the settings of a component. `winnow config margin` searches names and meanings."""


def config(
    words: list[str] | None = typer.Argument(None, metavar="[SECTION | WORD | KEY=VALUE | CONFIG.yaml]..."),
    as_yaml: bool = typer.Option(False, "--yaml", help="Print the full config as YAML, with all defaults"),
) -> None:
    """List config keys and defaults, or print a full YAML config.

    Settings are validated as in `winnow train`.

    Arguments:
        SECTION      List the keys of a section, such as train or loss
        WORD         List the keys with this word in their name or meaning
        KEY=VALUE    Describe a setting; pooling=gsp lists the settings of GSP
        CONFIG.yaml  Print the full config of a file

    Examples:
        winnow config train
        winnow config margin
        winnow config pooling=gsp
        winnow config --yaml data=photos pooling=gsp > photos.yaml
    """
    from winnow.training.overrides import present_key

    words = words or []
    files = [word for word in words if word.endswith((".yaml", ".yml"))]
    overrides = [word for word in words if "=" in word and word not in files]
    queries = [word for word in words if word not in files and word not in overrides]
    if as_yaml or files:
        if queries:
            raise ConfigError(f"{queries[0]}: expected CONFIG.yaml or KEY=VALUE. Remove it, or --yaml and the file.")
        print(config_yaml([*files, *overrides]), end="")
        return
    if not words:
        print(f"{overview()}\n\n{HINT}")
        return
    chosen = validated(overrides)
    keys = [present_key(one.partition("=")[0]).removesuffix(".name") for one in overrides]
    keys = [key for key in dict.fromkeys(keys) if not any(key.startswith(f"{other}.") for other in keys)]
    blocks = [override_block(chosen, key) for key in keys]
    blocks += [block for query in queries for block in query_blocks(query)]
    print("\n\n".join(blocks))


def validated(words: Sequence[str]) -> RunConfig:
    """Read a config file and overrides, and validate them as training does."""
    from winnow.cli.train import read_config
    from winnow.training.build import resolve_config

    config = read_config(list(words))
    if words:
        resolve_config(config)
    return config


def config_yaml(words: Sequence[str]) -> str:
    """Return a full config as YAML."""
    import yaml

    return yaml.safe_dump(validated(words).model_dump(mode="json"), sort_keys=False)


def overview() -> str:
    """Return all sections with one line each."""
    from winnow.training.config import REGISTRIES, RunConfig

    groups = {title: [Entry(_named_default(name), section_summary(name)) for name in names]
              for title, names in SECTIONS.items()}  # fmt: skip
    other = [name for name in RunConfig.model_fields if not any(name in names for names in SECTIONS.values())]
    if other:
        groups["Other"] = [Entry(_named_default(name), section_summary(name)) for name in other]
    column = 4 + max(len(_named_default(name)) for name in REGISTRIES)  # these labels are the longest
    return "\n\n".join(_group(title, entries, column) for title, entries in groups.items())


def section_summary(name: str) -> str:
    """Return one line on a section, component, or plain key."""
    from winnow.models.config import section_of
    from winnow.training.config import RunConfig

    field = RunConfig.model_fields[name]
    section = section_of(field)
    text = _summary(section) if section is not None else (field.description or "").partition(":")[0]
    return text[:1].upper() + text[1:]


def query_blocks(query: str) -> list[str]:
    """Return the keys of a section, or the matches of a search.

    Raises:
        ConfigError: If there is neither.
    """
    from winnow.models.factory import network_names
    from winnow.training.config import REGISTRIES, RunConfig, config_keys

    keys = list(config_keys())
    if query in REGISTRIES:
        return [registry_block(query)]
    if query in RunConfig.model_fields:
        return [_group(f"{query}: {section_summary(query)}", [_entry(one) for one in keys if _section(one) == query])]
    word = query.lower().replace("-", "_")
    groups: dict[str, list[Entry]] = {"Keys": []}
    for one in keys:
        names_components = one.name.removesuffix(".name") in REGISTRIES  # its meaning lists all components
        in_meaning = word.replace("_", " ") in one.meaning.lower() and not names_components
        if word in one.name.lower() or in_meaning or one.name == RunConfig.synonyms.get(word):
            groups.setdefault(one.component or "Keys", []).append(_entry(one))
    for kind, registry in REGISTRIES.items():
        for name in (*registry, *registry.aliases):
            first = f"{kind}={registry.first_name(name)}"
            if word in name and first not in groups:
                groups[first] = [Entry(f"{kind}={name}", _summary(registry[name]))]
    if not any(groups.values()):
        groups["Backbones"] = [Entry(f"backbone={name}", "") for name in network_names(word)]
    if not any(groups.values()):
        hint = RunConfig.suggest(word, [*RunConfig.model_fields, *(one.name for one in keys)])
        raise ConfigError(f"config: no key, meaning, or backbone contains '{query}'{hint} Sections: "
                          f"{', '.join(sorted(RunConfig.model_fields))}.")  # fmt: skip
    return [_group(title, entries) for title, entries in groups.items() if entries]


def registry_block(kind: str) -> str:
    """Return the components of a kind with one line each."""
    from winnow.training.config import REGISTRIES, RunConfig

    registry = REGISTRIES[kind]
    entries = [Entry(f"{kind}={name}", _summary(registry[name])) for name in registry]
    text = _group(f"{kind}: {RunConfig.model_fields[kind].description} [default: {registry.default}]", entries)
    return f"{text}\n\n`winnow config {kind}={registry.default}` lists the settings of a component."


def override_block(config: RunConfig, key: str) -> str:
    """Return a setting with its value, or the settings of the chosen component."""
    from winnow.training.config import REGISTRIES, config_keys

    tree = config.model_dump(mode="json")
    if key in REGISTRIES:
        chosen = tree[key]["name"]
        keys = [one for one in config_keys() if one.component == f"{key}={chosen}"]
        title = f"{key}={chosen}: {_summary(REGISTRIES[key][chosen])}"
    else:
        owner = f"{key.partition('.')[0]}={tree[key.partition('.')[0]]['name']}" if _owned(key) else ""
        keys = [one for one in config_keys() if one.component == owner and f"{one.name}.".startswith(f"{key}.")]
        title = owner or "Keys"
    entries = [_entry(one, _value(tree, one)) for one in keys]
    return _group(title, entries or [Entry("(no settings)", "")])


def _owned(key: str) -> bool:
    from winnow.training.config import REGISTRIES

    return key.partition(".")[0] in REGISTRIES


def _value(tree: Mapping[str, Any], key: ConfigKey) -> Any:
    """Return the value of a key in a config.

    A preset, which only sets other keys, has none.
    """
    node: Any = tree
    for name in key.name.split("."):
        node = node.get(name) if isinstance(node, Mapping) else None
    return node


def _entry(key: ConfigKey, value: Any = ...) -> Entry:
    shown = key.default if value is ... else value
    meaning = key.meaning.removesuffix(".")
    if value is not ... and value != key.default and key.default is not None:
        meaning += f" [default: {_text(key.default)}]"
    return Entry(key.name if _text(shown) == "" else f"{key.name}={_text(shown)}", meaning)


def _text(value: Any) -> str:
    """Return a value as it is written in an override; "" for none."""
    if value is None or value is inspect.Parameter.empty:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _section(key: ConfigKey) -> str:
    return key.name.partition(".")[0]


def _named_default(name: str) -> str:
    from winnow.training.config import REGISTRIES

    return f"{name}={REGISTRIES[name].default}" if name in REGISTRIES else name


def _summary(kind: type) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0].removesuffix(".")


def _group(title: str, entries: Sequence[Entry], column: int | None = None) -> str:
    return render_group(title, entries, screen_width(), column=column)
