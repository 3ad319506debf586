"""Tooltips of abbreviations from the glossary, at the first use on a page."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

GLOSSARY = Path(__file__).resolve().parents[1] / "glossary.md"
PAGES = ("concepts/", "tutorials/", "faq.md", "index.md", "python.md", "quickstart.md", "results.md")
"""Pages with tooltips: beginnings of their paths."""
_ROW = re.compile(r"^\| \*\*(.+?)\*\*(?:, (\S+)| \((.+?)\))? \| (.+) \|$", re.MULTILINE)
_ABBR = re.compile(r'<abbr title="[^"]*">(.*?)</abbr>')
_NEVER = re.compile(r"<(h\d|a|th)\b.*?</\1>", re.DOTALL)


@cache
def abbreviations() -> dict[str, str]:
    """Return the definition of each term that is an abbreviation, such as GSP or MAP@R."""
    found = {}
    for *terms, definition in _ROW.findall(GLOSSARY.read_text(encoding="utf-8")):
        text = re.sub(r" \[\[.+?\)\]|[`*]", "", definition)  # without citations and markup
        found |= {term: text for term in terms if re.fullmatch(r"[A-Z]{3,}|[A-Z]+@[1Rk]", term)}
    return found


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Define the abbreviations on a page."""
    if not page.file.src_uri.startswith(PAGES):
        return markdown
    return "\n".join([markdown, "", *(f"*[{term}]: {text}" for term, text in abbreviations().items())])


def on_page_content(html: str, **_: Any) -> str:
    """Show a tooltip once, outside of headings and links."""
    html = _NEVER.sub(lambda found: _ABBR.sub(r"\1", found[0]), html)
    seen: set[str] = set()

    def first(found: re.Match[str]) -> str:
        if found[1] in seen:
            return found[1]
        seen.add(found[1])
        return found[0]

    return _ABBR.sub(first, html)
