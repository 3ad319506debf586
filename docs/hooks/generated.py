"""Write the reference pages from the code while the site is built, so that they cannot go stale.

A page asks for a part by a comment such as `<!-- generated: config -->`. Every loss, source of references and choice
of pairs has a page of its own besides, which is nowhere but here.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from winnow.registry import REQUIRED, Registry

RESULTS = Path(__file__).resolve().parents[2] / "results" / "bench"
KERNEL = re.compile("its (.*) kernel alone")
_MARKER = re.compile(r"^<!-- generated: (?P<name>[a-z]+) -->$", re.MULTILINE)


def on_config(config: Any) -> Any:
    """List the page of every part below the page of its kind."""
    for entry in next(one["Reference"] for one in config.nav if "Reference" in one):
        for title, page in entry.items() if isinstance(entry, dict) else ():
            kind = str(page).removeprefix("reference/").removesuffix(".md")
            if kind in PAGED:
                parts = [{name: f"reference/{kind}/{name}.md"} for name in PAGED[kind]()]
                entry[title] = [{f"All {kind}": page}, *parts]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Write the page of every part."""
    from mkdocs.structure.files import File

    for kind, find in PAGED.items():
        registry = find()
        for name in registry:
            text = "\n".join([f"# {name}", "", *_part(registry, name)])
            files.append(File.generated(config, f"reference/{kind}/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the generated parts in their places."""
    return _MARKER.sub(lambda found: WRITERS[found["name"]](), markdown)


def config() -> str:
    """Every key of the config with its default and meaning, a table for each section."""
    from winnow.training.config import Config, describe

    sections: dict[str, list[tuple[str, Any, str]]] = {}
    for key, default, meaning in describe():
        sections.setdefault(key.split(".")[0] if "." in key else "", []).append((key, default, meaning))
    sections[""] = sections.pop("")  # what belongs to no section comes last
    lines: list[str] = []
    for name, keys in sections.items():
        lines += [f"## {name or 'no section'}", ""]
        if name:
            section: Any = Config.model_fields[name].annotation
            lines += [*_about(name, section), ""]
        lines += ["| key | default | meaning |", "|---|---|---|"]
        lines += [f"| `{key}` | {_value(default)} | {_text(meaning)} |" for key, default, meaning in keys]
        lines.append("")
    return "\n".join(lines)


def _about(name: str, section: Any) -> Iterator[str]:
    """What a section is, and what its short form sets."""
    if hasattr(section, "shorthand"):
        yield inspect.getdoc(section) or ""
        short = f"{name}.{section.shorthand}" if section.shorthand else None
    else:
        page = {"loss": "losses", "pooling": "poolings"}.get(name, name)
        yield f"The settings are those of the {name} that is named; see [its page]({page}.md)."
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


def _mining() -> Registry[Any]:
    from winnow.mining import MINING

    return MINING


PAGED: dict[str, Callable[[], Registry[Any]]] = {"losses": _losses, "references": _references, "mining": _mining}
"""Kinds of parts of which each has a page of its own."""


def _list(kind: str) -> str:
    """A table of the parts of a kind, with links to their pages."""
    registry = PAGED[kind]()
    lines = ["| name | what it is |", "|---|---|"]
    for name in registry:
        first = (inspect.getdoc(registry[name]) or "").splitlines()[0].replace("|", "\\|")
        default = " The default." if name == registry.default else ""
        lines.append(f"| [`{registry.kind}={name}`]({kind}/{name}.md) | {first}{default} |")
    return "\n".join(lines)


def centres() -> str:
    """Every centre regulariser, likewise."""
    from winnow.centres import CENTRES

    return _registry(CENTRES, lambda part: "")


def poolings() -> str:
    """Every pooling, likewise."""
    from winnow.pooling import POOLINGS

    def facts(part: Any) -> str:
        which = {"raw": "backbone's map, and is projected after", "projected": "projected map"}[part.pools]
        if part.guided:
            which = "backbone's map by weights from the projected one, and is projected after"
        takes = {
            "set": "maps of any size and tokens",
            "grid": "maps of any size, but no tokens",
            "fixed": "maps and tokens of the one size it was made for",
        }[part.takes]
        weights = "It tells the weight of every place" if part.has_weights else "It has no weights over places"
        attributes = "and its prototypes' attributes." if part.has_attributes else "and no attributes."
        return f"It pools the {which}. It takes {takes}. {weights} {attributes}"

    return _registry(POOLINGS, facts)


def _registry(registry: Registry[Any], facts: Callable[[Any], str]) -> str:
    """A section for every part."""
    lines: list[str] = []
    for name in registry:
        default = " (the default)" if name == registry.default else ""
        lines += [f"## {name}{default} {{ #{name} }}", "", *_part(registry, name, facts(registry[name]))]
    return "\n".join(lines)


def _part(registry: Registry[Any], name: str, facts: str = "") -> Iterator[str]:
    """What a part is, its equation, its reference, its settings and presets."""
    part = registry[name]
    body = (inspect.getdoc(part) or "").split("\nArgs:\n")[0].rstrip()
    body = body.replace("\n\nWhen to use it: ", "\n\n**When to use it:** ")
    module = ".".join(part.__module__.split(".")[:2])
    yield from (f"[`{part.__name__}`][{module}.{part.__name__}]", "", body, "", facts, "")
    settings = registry.parameters(name)
    if not settings:
        yield from ("It has no settings.", "")
        return
    yield from ("| setting | type | default | meaning |", "|---|---|---|---|")
    for one in settings:
        kind = getattr(one.annotation, "__name__", str(one.annotation))
        if get_origin(one.annotation) is Literal:
            kind = " or ".join(map(str, get_args(one.annotation)))
        default = "required" if one.default is REQUIRED else _value(one.default)
        yield f"| `{registry.kind}.{one.name}` | `{_text(kind, code=True)}` | {default} | {_text(one.meaning)} |"
    yield ""
    if presets := registry.presets(name):
        yield from (
            "Presets, the documents' settings for a data set or a comparison:",
            "",
            "| preset | settings |",
            "|---|---|",
        )
        for preset, chosen in presets.items():
            listed = ", ".join(f"`{key}={value}`" for key, value in chosen.items())
            yield f"| `{registry.kind}.preset={preset}` | {listed} |"
        yield ""


def commands() -> str:
    """Every command of the command line with its arguments and options."""
    import typer

    from winnow.cli.main import app

    group: Any = typer.main.get_command(app)
    return "\n".join(_command("winnow", group.commands, "##"))


def _command(program: str, commands: dict[str, Any], level: str) -> Iterator[str]:
    """A section for each command; a command of commands has theirs below it."""
    for name, command in commands.items():
        anchor = f"{program} {name}".removeprefix("winnow ").replace(" ", "-")
        yield from (f"{level} {program} {name} {{ #{anchor} }}", "")
        if inner := getattr(command, "commands", None):
            yield from (_plain(command.help), "")
            yield from _command(f"{program} {name}", inner, f"{level}#")
            continue
        words = [str(one.metavar) for one in command.params if one.param_type_name == "argument"]
        usage = " ".join([program, name, "[OPTIONS]", *words])
        yield from ("```text", usage, "```", "", _plain(command.help), "")
        yield from ("| argument or option | default | meaning |", "|---|---|---|")
        for one in command.params:
            if one.name != "help":
                label = one.metavar if one.param_type_name == "argument" else ", ".join(one.opts)
                needed = "required" if one.required else _value(one.default)
                yield f"| `{_text(label, code=True)}` | {needed} | {_text(one.help or '')} |"
        yield ""


def exits() -> str:
    """The exit codes, from the errors that carry them."""
    from winnow import errors

    kinds = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.WinnowError) and kind.__module__ == errors.__name__
    ]
    lines = ["| code | meaning |", "|---|---|", "| 0 | Done. |"]
    for kind in sorted(kinds, key=lambda kind: kind.exit_code):
        first = (inspect.getdoc(kind) or "").splitlines()[0]
        usage = " A mistake in the command itself, such as an unknown option, ends with this code too."
        more = usage if kind is errors.ConfigError else ""
        lines.append(f"| {kind.exit_code} | [`{kind.__name__}`][winnow.errors.{kind.__name__}]: {first}{more} |")
    return "\n".join([*lines, "| 130 | Interrupted from the keyboard. |"])


def datasets() -> str:
    """Every benchmark set: its images and classes, ranks and terms."""
    from winnow.data.sets import DATASETS

    lines = ["| name | set | images | R@k at | terms |", "|---|---|---|---|---|"]
    for name, one in DATASETS.items():
        images = ", ".join(f"{part} {count:,}" for part, count in one.counts.items())
        cells = [f"[{one.title}]({one.home.split()[0]}): {one.about}", images, ", ".join(map(str, one.ks)), one.terms]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def studies() -> str:
    """Every study: what it is, its command, and what it found where that is kept."""
    from winnow.studies import STUDIES
    from winnow.studies.base import cost

    lines: list[str] = []
    for name, study in STUDIES.items():
        first = (inspect.getdoc(study) or "").splitlines()[0]
        told = f"{first} Cost: {cost(study)}" if cost(study) else first
        lines += [f"## {name} {{ #{name} }}", "", told, "", "```console", f"$ winnow study {name}", "```", ""]
        kept = RESULTS.parent / f"{name.replace('-', '_')}.md"
        if kept.is_file():
            lines += [kept.read_text(encoding="utf-8").partition("\n")[2].strip(), ""]
            picture = kept.with_suffix(".svg").read_text(encoding="utf-8")
            inner = picture[picture.index("<svg") :]
            # As an image its ids and styles are its own.
            lines += [f'<img alt="{first}" src="data:image/svg+xml;base64,{b64encode(inner.encode()).decode()}">', ""]
    return "\n".join(lines)


def _figures(name: str) -> str:
    """The kept figures of a benchmark, a table for each device it was run on; nothing where there are none."""
    from winnow.bench.record import show_bytes, show_seconds

    lines: list[str] = []
    for path in sorted(RESULTS.glob(f"{name}-*.json")):
        kept = json.loads(path.read_text())
        machine = kept["machine"]
        where = machine["gpu"] if kept["settings"]["device"] == "cuda" else f"{machine['threads']} cores"
        facts = list(dict.fromkeys(fact for row in kept["rows"] for fact in row.get("facts", {})))
        lines += [f"`{kept['command']}` on {where} ({path.name}):", ""]
        lines += ["| " + " | ".join(["case", "rival", "median", "ratio", "memory", *facts]) + " |"]
        lines += ["|---|---|" + "--:|" * (3 + len(facts))]
        for row in kept["rows"]:
            if KERNEL.fullmatch(row["rival"]):
                continue
            ratio, memory = row["ratio"], row["peak_bytes"]
            cells = [row["case"], row["rival"], show_seconds(row["seconds"]["median"])]
            cells += ["" if ratio is None else f"{ratio:.2f}", "" if memory is None else show_bytes(memory)]
            cells += [f"{row['facts'][fact]:.4g}" if fact in row.get("facts", {}) else "" for fact in facts]
            lines.append("| " + " | ".join(map(_text, cells)) + " |")
        lines += ["", f"Ratios are to {kept['against']}.", *kept["notes"], ""]
    return "\n".join(lines)


def profile() -> str:
    """What each kernel of the fused pooling takes, case by case."""
    kept = json.loads((RESULTS / "pooling-cuda.json").read_text())
    cases: dict[str, dict[str, float]] = {}
    for row in kept["rows"]:
        if found := KERNEL.fullmatch(row["rival"]):
            cases.setdefault(row["case"], {})[found[1]] = row["seconds"]["median"]
        elif row["rival"] in ("winnow", "winnow, replayed", "memory floor"):
            cases.setdefault(row["case"], {})[row["rival"]] = row["seconds"]["median"]
    names = ["prototypes", "scores", "pool", "weights gradient", "gradient", "unclip"]
    names = ["winnow", "winnow, replayed", *names, "memory floor"]
    lines = ["Microseconds:", "", "| " + " | ".join(["case", *names]) + " |", "|---|" + "--:|" * len(names)]
    for case, found in cases.items():
        cells = [f"{found[name] * 1e6:.3g}" if name in found else "" for name in names]
        lines.append("| " + " | ".join([case, *cells]) + " |")
    return "\n".join(lines)


def _plain(text: str | None) -> str:
    """Return help text without its console markup, as Markdown."""
    text = inspect.cleandoc(text or "")
    return re.sub(r"\[(?:dim|bold)\](.*?)\[/\]", r"`\1`", text)


def _value(value: Any) -> str:
    """Show a default as one would write it in a config."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        return f"`{value!r}`" if len(repr(value)) < 7 else f"`{value:.4g}`"
    if isinstance(value, tuple):
        return "`[" + ", ".join(_value(one).strip("`") for one in value) + "]`"
    return f"`{value}`"


def _text(text: str, *, code: bool = False) -> str:
    """Escape what Markdown or a table would take for markup; code spans keep all but the bars."""
    text = text.replace("|", "\\|")
    if code:
        return text
    pieces = text.split("`")
    for index in range(0, len(pieces), 2):
        pieces[index] = re.sub(r"([*_\[\]<>])", r"\\\1", pieces[index])
    return "`".join(pieces)


WRITERS: dict[str, Callable[[], str]] = {
    "config": config,
    **{kind: partial(_list, kind) for kind in PAGED},
    "centres": centres,
    "poolings": poolings,
    "commands": commands,
    "exits": exits,
    "evaluation": lambda: _figures("evaluate"),
    "manyclasses": lambda: _figures("losses"),
    "index": lambda: _figures("index"),
    "pooling": lambda: _figures("pooling"),
    "profile": profile,
    "datasets": datasets,
    "studies": studies,
    "training": lambda: _figures("train"),
}
