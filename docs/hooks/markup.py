"""Values and texts as Markdown shows them."""

from __future__ import annotations

import inspect
import re
from typing import Any


def plain(text: str | None) -> str:
    """Return help text without its console markup, as Markdown."""
    text = inspect.cleandoc(text or "")
    return re.sub(r"\[(?:dim|bold)\](.*?)\[/\]", r"`\1`", text)


def written(value: Any) -> str:
    """Show a default as one would write it in a config."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        return f"`{value!r}`" if len(repr(value)) < 7 else f"`{value:.4g}`"
    if isinstance(value, tuple):
        return "`[" + ", ".join(written(one).strip("`") for one in value) + "]`"
    return f"`{value}`"


def escaped(text: str, *, code: bool = False) -> str:
    """Escape what Markdown or a table would take for markup; code spans keep all but the bars."""
    text = text.replace("|", "\\|")
    if code:
        return text
    pieces = text.split("`")
    for index in range(0, len(pieces), 2):
        pieces[index] = re.sub(r"([*_\[\]<>])", r"\\\1", pieces[index])
    return "`".join(pieces)
