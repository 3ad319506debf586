"""What the command line says of itself: commands with their options, and exit codes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from markup import escaped, plain, written


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
            yield from (plain(command.help), "")
            yield from _command(f"{program} {name}", inner, f"{level}#")
            continue
        words = [str(one.metavar) for one in command.params if one.param_type_name == "argument"]
        usage = " ".join([program, name, "[OPTIONS]", *words])
        yield from ("```text", usage, "```", "", plain(command.help), "")
        yield from ("| argument or option | default | meaning |", "|---|---|---|")
        for one in command.params:
            if one.name != "help":
                label = one.metavar if one.param_type_name == "argument" else ", ".join(one.opts)
                needed = "required" if one.required else written(one.default)
                yield f"| `{escaped(label, code=True)}` | {needed} | {escaped(one.help or '')} |"
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
