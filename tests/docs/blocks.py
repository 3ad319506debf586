"""Code blocks of the documentation, read from its source.

A block that the tests cannot run has a comment in front with the reason:

    <!-- not run: needs four GPUs -->
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?:(?P<before> *)<!-- not run: (?P<reason>.+?) -->\n\s*?)?"
    r'^(?P<indent> *)```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<body>.*?)^(?P=indent)```$',
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """Code block of a page.

    Attributes:
        line: Line where its text starts, from 1.
        title: File that it is saved as; None for none.
        reason: Why the tests do not run it; None if they do.
    """

    page: Path
    line: int
    language: str
    title: str | None
    text: str
    reason: str | None

    def commands(self) -> list[str]:
        """Return the commands of a console block, without their output."""
        lines = self.text.replace("\\\n", " ").splitlines() if self.language == "console" else []
        return [line[2:] for line in lines if line.startswith("$ ")]


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    """Return all blocks of a page that name their language."""
    text = page.read_text(encoding="utf-8")
    found = []
    for fence in FENCE.finditer(text):
        indent = len(fence["indent"])
        body = "".join(line[indent:] for line in fence["body"].splitlines(keepends=True))
        line = text.count("\n", 0, fence.start("body")) + 1
        found.append(Block(page, line, fence["language"], fence["title"], body, fence["reason"]))
    return tuple(found)


def words_of(line: str) -> tuple[list[str], str | None]:
    """Return the words of a command, without a comment, and the file of its output or None."""
    words = shlex.split(line, comments=True)
    return (words[:-2], words[-1]) if len(words) > 2 and words[-2] == ">" else (words, None)


def name(value: object) -> str:
    """Return the name of a page in test ids."""
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else str(value)
