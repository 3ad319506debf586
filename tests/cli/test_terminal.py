"""Names of files reach the terminal without control characters."""

from __future__ import annotations

import io
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from winnow.cli.console import at_words
from winnow.cli.terminal import PlainConsole, printable


@given(st.text(st.characters(), max_size=20))
def test_any_text_becomes_printable(text: str) -> None:
    shown = printable(text)
    shown.encode()
    assert not [one for one in shown if unicodedata.category(one) == "Cc" and one not in "\t\n"]
    assert not [one for one in shown if unicodedata.bidirectional(one) in ("LRE", "RLE", "LRO", "RLO", "PDF", "RLI")]


def test_ordinary_text_is_unchanged() -> None:
    text = "Müll\t[b]日本語 ± é.png\n"
    assert printable(text) == text


def test_lines_and_tables_show_escapes() -> None:
    target = io.StringIO()
    console = PlainConsole(file=target, width=80, force_terminal=True)
    console.print("a\x1b]0;title\x07", markup=False, highlight=False)
    table = Table(title="t\x1b[2J")
    table.add_column("h\x9b")
    table.add_row("\udcff.png")
    console.print(table)
    shown = target.getvalue()
    for escape in (r"\x1b]0;title\x07", r"t\x1b[2J", r"h\x9b", r"\udcff.png"):
        assert escape in shown


def test_commands_escape_names(winnow, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a\x1b[2Jb"
    folder.mkdir()
    for words in (["train", f"data={folder}"], ["verify", folder], ["datasets", "get", "cub200", "--from", folder]):
        said = winnow(*words)
        assert said.code > 1
        assert "\x1b" not in said.out + said.err
        assert r"a\x1b[2Jb" in said.err


def test_sentences_break_between_words_on_a_terminal_only() -> None:
    text = "winnow prints long sentences, and /a/path/that/is/longer/than/the/terminal stays whole"
    narrow = PlainConsole(file=io.StringIO(), width=20, force_terminal=True)
    assert at_words(text, PlainConsole(file=io.StringIO(), width=20)) == text
    lines = at_words(text, narrow).splitlines()
    assert " ".join(lines) == text
    assert all(len(line) <= 20 or " " not in line for line in lines)
