"""Help screens: plain text of 80 columns with groups and examples.

A command declares its screen where typer expects it. The docstring holds the description, the metavar and help of a
parameter hold its line, and `rich_help_panel` names its group. The docstring may end in further sections:

    Arguments:
        KEY=VALUE  Override a config key

    Examples:
        winnow train data=photos

Lines of a section are "LABEL  meaning", with two spaces or more between the two; examples are printed as written. Of
several names of an option the first long one is shown, so names of earlier versions work without being listed.
"""

from __future__ import annotations

import inspect
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from winnow.errors import ConfigError

WIDTH = 80
LARGEST = 10**9
"""Largest number of an option."""
LONGEST_LABEL = 26
"""Longer labels stand on a line of their own, above their meaning."""


@dataclass(frozen=True)
class Entry:
    """Line of a help screen: a label, such as a command, and its meaning."""

    label: str
    meaning: str


@dataclass(frozen=True)
class Screen:
    """Contents of a help screen."""

    usage: str
    about: tuple[str, ...]  # paragraphs
    groups: Mapping[str, Sequence[Entry]]
    examples: tuple[str, ...] = ()
    epilog: str = ""
    aligned: bool = False  # whether the meanings of all groups start in one column

    def render(self, width: int = WIDTH, *, bold: bool = False) -> str:
        """Return the screen as text, on request with headings in bold, which a pipe drops."""

        blocks = [_heading("Usage: ", bold) + textwrap.fill(self.usage, width - 7, subsequent_indent=" " * 7)]
        blocks += [textwrap.fill(paragraph, width) for paragraph in self.about]
        widest = _column([entry for group in self.groups.values() for entry in group]) if self.aligned else None
        for title, group in self.groups.items():
            blocks.append(render_group(title, group, width, bold=bold, column=widest))
        if self.examples:
            title = "Example" if len(self.examples) == 1 else "Examples"
            blocks.append("\n".join([_heading(title, bold), *(f"  {line}" for line in self.examples)]))
        return "\n\n".join([*blocks, self.epilog] if self.epilog else blocks)


def render_group(
    title: str, entries: Sequence[Entry], width: int = WIDTH, *, bold: bool = False, column: int | None = None
) -> str:
    """Return a heading and its entries, whose meanings start in one column."""
    heading = _heading(textwrap.fill(title, width), bold)
    return "\n".join([heading, *_columns(entries, column or _column(entries), width)])


def screen_width() -> int:
    """Return the width of screens: the width of the terminal, from 40 to 80 columns."""
    return max(40, min(WIDTH, shutil.get_terminal_size().columns))


class Command(TyperCommand):
    """A command with a help screen of this module, and bounded numbers."""

    def invoke(self, ctx: Any) -> Any:
        """Call the command after its numbers were checked."""
        for one in self.params:
            value = ctx.params.get(one.name)
            if isinstance(value, int | float) and not abs(value) <= LARGEST:  # also NaN
                raise ConfigError(f"{label(one).split()[-2]}: expected a number up to {LARGEST:,}, got {value:.6g}.")
        return super().invoke(ctx)

    def get_help(self, ctx: Any) -> str:
        """Return the help screen."""
        return command_screen(self, ctx.command_path).render(screen_width(), bold=True)


class Group(TyperGroup):
    """A command of commands with a help screen of this module.

    `panels` orders the groups of commands.
    """

    panels: tuple[str, ...] = ()

    def get_help(self, ctx: Any) -> str:
        """Return the help screen."""
        return group_screen(self, ctx.command_path).render(screen_width(), bold=True)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the called command.

        The error about an unknown command suggests the nearest name.
        """
        from winnow.cli.errors import unknown_command

        if args[0] not in self.commands:
            raise ConfigError(
                unknown_command(
                    ctx.command_path, args[0], [name for name, one in self.commands.items() if not one.hidden]
                )
            )
        return super().resolve_command(ctx, args)


def command_screen(command: Any, path: str) -> Screen:
    """Return the help screen of a command.

    Args:
        command: Command of typer, after its options were read.
        path: Words that call it, such as "winnow train".
    """
    about, sections = _read(command.help or "")
    examples = tuple(sections.pop("Examples", ()))
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    groups: dict[str, list[Entry]] = {"Arguments": [Entry(metavar(one), one.help) for one in arguments if one.help]}
    for title, lines in sections.items():
        groups.setdefault(title, []).extend(_entry(line) for line in lines)
    for one in sorted(options, key=lambda one: one.rich_help_panel is None):  # stable: the group "Options" is last
        groups.setdefault(one.rich_help_panel or "Options", []).append(Entry(label(one), _with_default(one)))
    usage = " ".join([path, *(metavar(one) for one in arguments), *(["[OPTIONS]"] if options else [])])
    return Screen(usage, about, {title: group for title, group in groups.items() if group}, examples)


def group_screen(group: Any, path: str) -> Screen:
    """Return the help screen of a command of commands."""
    about, sections = _read(group.help or "")
    groups: dict[str, list[Entry]] = {title: [] for title in getattr(group, "panels", ())}
    for name, command in group.commands.items():
        if not command.hidden:
            summary = _read(command.help or "")[0][:1]
            entry = Entry(name, "".join(summary).removesuffix("."))
            groups.setdefault(command.rich_help_panel or "Commands", []).append(entry)
    own = [Entry(label(one), one.help or "") for one in group.params if one.param_type_name == "option"]
    groups["Options"] = [*own, Entry("-h, --help", f"Print help; `{path} COMMAND -h` describes one command")]
    return Screen(
        f"{path} COMMAND [OPTIONS]", about, {title: entries for title, entries in groups.items() if entries},
        tuple(sections.get("Examples", ())), group.epilog or "", aligned=True,
    )  # fmt: skip


def label(option: Any) -> str:
    """Return the names of an option and its value.

    The names are the short one, and the first long one with its opposite.
    """
    short = [name for name in option.opts if not name.startswith("--")][:1]
    long = [name for name in option.opts if name.startswith("--")][:1]
    names = ", ".join([*short, *long])
    if option.secondary_opts:
        names += f" / {option.secondary_opts[0]}"
    return names if getattr(option, "is_flag", False) else f"{names} {metavar(option)}"


def metavar(parameter: Any) -> str:
    """Return the placeholder of a parameter's value."""
    if parameter.metavar:
        return str(parameter.metavar)
    is_number = isinstance(parameter.default, int | float) or getattr(parameter, "min", None) is not None
    return "N" if is_number else str(parameter.name).upper()


def default_of(parameter: Any) -> str:
    """Return the default of a parameter as text.

    The text is empty without a default, or if the help states it.
    """
    value = parameter.default
    if value is None or isinstance(value, bool | list | tuple) or callable(value) or value == "":
        return ""
    return "" if "default" in (parameter.help or "") else str(value)


def _with_default(option: Any) -> str:
    default = default_of(option)
    return f"{option.help or ''} [default: {default}]" if default else option.help or ""


def _read(text: str) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """Return the paragraphs of a docstring and the lines of its sections."""
    about: list[str] = []
    sections: dict[str, list[str]] = {}
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        first, *rest = block.splitlines() or [""]
        if rest and re.fullmatch(r"[A-Z][\w ]*:", first) and all(line.startswith(" ") for line in rest):
            lines = textwrap.dedent("\n".join(rest)).splitlines()
            sections[first.removesuffix(":")] = _joined(lines)
        elif first:
            about.append(" ".join(block.split()))
    return tuple(about), sections


def _joined(lines: list[str]) -> list[str]:
    """Append continuation lines, which are indented, to the line they continue."""
    joined: list[str] = []
    for line in lines:
        if line.startswith(" ") and joined:
            joined[-1] += f" {line.strip()}"
        else:
            joined.append(line)
    return joined


def _entry(line: str) -> Entry:
    label, _, meaning = re.sub(r"\s{2,}", "\0", line, count=1).partition("\0")
    return Entry(label, meaning)


def _column(entries: Sequence[Entry]) -> int:
    """Return the column in which the meanings start."""
    return 4 + max((len(one.label) for one in entries if len(one.label) <= LONGEST_LABEL), default=LONGEST_LABEL)


def _columns(entries: Sequence[Entry], column: int, width: int) -> Iterator[str]:
    for one in entries:
        meaning = textwrap.wrap(one.meaning, max(20, width - column), break_on_hyphens=False)
        if len(one.label) > LONGEST_LABEL or not meaning:
            yield f"  {one.label}"
        else:
            yield f"  {one.label:<{column - 2}}{meaning.pop(0)}"
        yield from (" " * column + line for line in meaning)


def _heading(text: str, bold: bool) -> str:
    return typer.style(text, bold=True) if bold else text
