"""Wide tables as cards on phones: each cell gets the heading of its column, which the style sheet shows.

Folded tables of numbers remain tables, because they are read by column; folded claims are read one by one.
"""

from __future__ import annotations

import re
from html import escape, unescape
from typing import Any

LEAST_COLUMNS, MOST_CHARACTERS = 3, 60
"""A table with fewer columns, or of fewer characters in its longest cells, fits a phone."""
_BLOCK = re.compile(r"<details.*?</details>|<table>.*?</table>", re.DOTALL)
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_HEADING = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_CELL = re.compile(r"<td\b[^>]*>(.*?)</td>", re.DOTALL)
_ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
_ROLES = {"table": "table", "thead": "rowgroup", "tbody": "rowgroup", "tr": "row", "th": "columnheader", "td": "cell"}


def cards(table: str) -> str:
    """Return a table whose cells name their column, with the roles that boxes other than tables lose."""
    headings = [_plain(one) for one in _HEADING.findall(table)]
    lines = [headings, *([_plain(cell) for cell in _CELL.findall(row)] for row in _ROW.findall(table))]
    longest = [max(map(len, column)) for column in zip(*filter(None, lines), strict=True)]
    if len(headings) < LEAST_COLUMNS or sum(longest) < MOST_CHARACTERS:
        return table

    def named(row: re.Match[str]) -> str:
        columns = map(escape, headings)
        return re.sub("<td", lambda _: f'<td data-heading="{next(columns)}"', row[0])

    table = _ROW.sub(named, table).replace("<table>", "<table data-cards>", 1)
    return re.sub(r"<(table|thead|tbody|tr|th|td)\b", lambda found: f'<{found[1]} role="{_ROLES[found[1]]}"', table)


def _plain(content: str) -> str:
    return unescape(re.sub("<[^>]*>", "", content)).strip()


def on_page_content(html: str, **_: Any) -> str:
    """Mark the tables of a page that are not folded, and all tables of claims."""

    def mark(found: re.Match[str]) -> str:
        if found[0].startswith("<table"):
            return cards(found[0])
        return _TABLE.sub(
            lambda table: cards(table[0]) if _HEADING.findall(table[0])[0] == "claim" else table[0], found[0]
        )

    return _BLOCK.sub(mark, html)
