"""The command line as a user calls it, in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from winnow.cli import run
from winnow.registry import RENAMED_KEYS


class Said(NamedTuple):
    code: int
    out: str
    err: str


Winnow = Callable[..., Said]


@pytest.fixture
def winnow(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Winnow:
    """Call the command line in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("WINNOW_CACHE", str(tmp_path / "cache"))

    def call(*words: object) -> Said:
        RENAMED_KEYS.clear()  # a command is a new process
        monkeypatch.setattr(sys, "argv", ["winnow", *map(str, words)])
        code = 0
        try:
            run()
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return call
