"""Help screens fit 80 columns and list what exists; unknown words are answered with the nearest known one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from tests.cli.conftest import Winnow
from winnow.cli.help import WIDTH, command_screen, group_screen, label
from winnow.cli.main import app


def tree(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from tree(f"{path} {name}", inner)


COMMANDS = dict(tree("winnow", typer.main.get_command(app)))


@pytest.mark.parametrize("path", COMMANDS)
def test_screens_fit_and_list_every_option_by_its_present_name(path: str) -> None:
    command = COMMANDS[path]
    screen = (group_screen if hasattr(command, "commands") else command_screen)(command, path)
    text = screen.render()
    assert all(len(line) <= WIDTH for line in text.splitlines()), text
    assert screen.usage.startswith(path)
    shown = [entry.label for group in screen.groups.values() for entry in group]
    for one in command.params:
        if one.param_type_name == "option" and not one.hidden:
            assert label(one) in shown


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_every_command_has_help(winnow: Winnow, option: str) -> None:
    for path in COMMANDS:
        said = winnow(*path.split()[1:], option)
        assert said.code == 0, path
        assert said.out.startswith(f"Usage: {path}"), path


def test_narrow_terminals_get_narrow_screens(winnow: Winnow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    said = winnow("datasets", "get", "-h")
    assert max(map(len, said.out.splitlines())) <= 60


def test_the_program_lists_its_commands_and_exit_codes(winnow: Winnow) -> None:
    said = winnow("-h")
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        assert (f"\n  {name} " in said.out) is not command.hidden
    assert "Exit codes:" in said.out
    assert winnow().code == 2  # the screen again, as an error of usage


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("trian", "did you mean 'train'"),
        ("fit", "did you mean 'train'"),
        ("eval", "did you mean 'evaluate'"),
        ("datasets gett", "did you mean 'get'"),
        ("help", "`winnow COMMAND -h`"),
        ("train --rseume x", "did you mean '--resume'"),
        ("train --output x", "did you mean '--out'"),
        ("train --lr 1", "KEY=VALUE"),
        ("demo --seeds x", "--seeds"),
        ("demo --seeds 0", "--seeds"),
        ("demo photos", "photos"),
        ("search", "missing INDEX"),
        ("embed r photos", "missing --out"),
    ],
)
def test_wrong_words_are_answered_in_one_line(winnow: Winnow, words: str, answer: str) -> None:
    said = winnow(*words.split())
    assert said.code == 2
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert answer in said.err
