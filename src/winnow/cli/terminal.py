"""Consoles that print no control characters, which names of files may contain."""

from __future__ import annotations

import re
from typing import Any

from rich.console import Console
from rich.text import Text

# C0 and C1 controls except tab and newline, marks that reorder text, and bytes of names that are not UTF-8.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Return a text with every character that a terminal would obey as an escape such as `\x1b`."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class PlainConsole(Console):
    """Console of lines and tables; styles come from markup, never from the text."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text of printable characters; lines and cells of tables pass here."""
        return super().render_str(printable(text), **options)
