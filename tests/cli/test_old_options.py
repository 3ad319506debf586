"""Option names of version 0.1.0 set the same values as the present names, and no help screen lists them."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from winnow.cli.help import label
from winnow.cli.main import app
from winnow.cli.protocol import chapter_of

ARGUMENTS = {
    "train": ["data=x"],
    "protocol": ["fair", "cub200", "c2"],
    "embed": ["run", "data", "-o", "v.npy"],
    "index": ["run", "data", "-o", "i"],
    "serve": ["i"],
    "datasets get": ["cub200"],
    "datasets verify": ["cub200"],
}
"""Arguments that each command requires."""

RENAMED = [
    ("train", "--each", "--sweep", "seed=0,1"),
    ("train", "--at-once", "--jobs", "2"),
    ("embed", "--batch", "--batch-size", "8"),
    ("index", "--kind", "--index-type", "hnsw"),
    ("index", "--half", "--fp16", None),
    ("index", "--batch", "--batch-size", "8"),
    ("serve", "--batch", "--batch-size", "8"),
    ("serve", "--requests", "--max-requests", "5"),
    ("serve", "--seconds", "--timeout", "3"),
    ("serve", "--upload-mb", "--max-upload-mb", "4"),
    ("serve", "--megapixels", "--max-megapixels", "4"),
    ("protocol", "--chapter", "--paper", "ccp"),
    ("protocol", "--engine", "--executor", "ray"),
    ("protocol", "--at-once", "--jobs", "2"),
    ("protocol", "--gpus", "--gpus-per-run", "0.5"),
    ("protocol", "--address", "--ray-address", "host:1"),
    ("protocol", "--from", "--import-results", "table.json"),
    ("protocol", "--only-finished", "--no-train", None),
    ("datasets get", "--allow-missing", "--accept-missing", None),
    ("datasets verify", "--allow-missing", "--accept-missing", None),
]


def parsed(path: str, *words: str) -> tuple[Any, dict[str, Any]]:
    """Return a command and the values of its parameters for a call."""
    command: Any = typer.main.get_command(app)
    for name in path.split():
        command = command.commands[name]
    return command, command.make_context(path, [*ARGUMENTS[path], *words]).params


@pytest.mark.parametrize(("path", "old", "new", "value"), RENAMED)
def test_old_names_set_the_same_values(path: str, old: str, new: str, value: str | None) -> None:
    words = [] if value is None else [value]
    command, values = parsed(path, new, *words)
    assert parsed(path, old, *words)[1] == values
    assert parsed(path)[1] != values  # the option has an effect
    shown = " ".join(label(one) for one in command.params if one.param_type_name == "option").split()
    assert new in shown
    assert old not in shown


@pytest.mark.parametrize(("old", "new"), [("5", "gsp"), ("3", "ccp")])
def test_chapters_of_version_0_1_0_name_papers(old: str, new: str) -> None:
    assert chapter_of(old) == chapter_of(new) == int(old)
