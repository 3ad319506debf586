"""Reference of the command line: commands with their options, and exit codes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from markup import escaped


def commands() -> str:
    """Return a section for every command with its arguments, options, and examples."""
    import typer

    from winnow.cli.main import app

    group: Any = typer.main.get_command(app)
    return "\n".join(_command("winnow", group.commands, "##"))


def _command(program: str, commands: dict[str, Any], level: str) -> Iterator[str]:
    """Yield the lines of a section for each command; a command of commands has theirs below it."""
    from winnow.cli.help import command_screen, group_screen

    for name, command in commands.items():
        if command.hidden:
            continue
        path = f"{program} {name}"
        anchor = path.removeprefix("winnow ").replace(" ", "-")
        yield from (f"{level} {path} {{ #{anchor} }}", "")
        if inner := getattr(command, "commands", None):
            yield from ("\n\n".join(map(escaped, group_screen(command, path).about)), "")
            yield from _command(path, inner, f"{level}#")
            continue
        screen = command_screen(command, path)
        yield from ("```text", screen.usage, "```", "", "\n\n".join(map(escaped, screen.about)), "")
        for title, entries in screen.groups.items():
            yield from (f"| {title.lower()} | meaning |", "|---|---|")
            yield from (f"| `{escaped(one.label, code=True)}` | {escaped(one.meaning)} |" for one in entries)
            yield ""
        if screen.examples:
            yield from ("```console", *(f"$ {line}" for line in screen.examples), "```", "")


def exits() -> str:
    """Return the table of exit codes, from the errors that carry them."""
    from winnow import errors

    kinds = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.WinnowError) and kind.__module__ == errors.__name__
    ]
    lines = ["| code | meaning |", "|---|---|", "| 0 | Success. |"]
    for kind in sorted(kinds, key=lambda kind: kind.exit_code):
        first = (inspect.getdoc(kind) or "").splitlines()[0]
        usage = " Also an unknown command or option."
        more = usage if kind is errors.ConfigError else ""
        lines.append(f"| {kind.exit_code} | [`{kind.__name__}`][winnow.errors.{kind.__name__}]: {first}{more} |")
    return "\n".join([*lines, "| 130 | Interrupted from the keyboard. |"])
