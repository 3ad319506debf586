"""Wide tables of the site, which are cards on phones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.reader import load_hook

ROOT = Path(__file__).resolve().parents[2]
WIDE = [["method", "MAP@R &amp; n", "difference", "source"], ["GSP, a frozen network", "30.2", "<b>+28.4</b>", "demo"],
        ["GAP", "", "the baseline of all other methods", "demo"]]  # fmt: skip


@pytest.fixture(scope="module")
def hook() -> Any:
    return load_hook("cards")


def table(lines: list[list[str]]) -> str:
    head, *rows = lines
    cells = "".join(f"<th>{one}</th>" for one in head)
    body = "".join(f"<tr>{''.join(f'<td>{one}</td>' for one in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


def test_each_cell_names_its_column_and_keeps_its_role(hook: Any) -> None:
    html = hook.on_page_content(f"<p>a</p>{table(WIDE)}<p>b</p>")
    found = re.findall(r'<td role="cell" data-heading="([^"]*)">(.*?)</td>', html)
    assert [heading for heading, _ in found] == 2 * WIDE[0]
    assert [cell for _, cell in found] == WIDE[1] + WIDE[2]
    assert html.count('role="columnheader"') == 4
    assert re.sub(r' (?:role|data-heading)="[^"]*"| data-cards', "", html) == f"<p>a</p>{table(WIDE)}<p>b</p>"


def test_folded_claims_are_cards(hook: Any) -> None:
    claims = [["claim", *WIDE[0][1:]], *WIDE[1:]]
    html = hook.on_page_content(f"<details>{table(claims)}{table(WIDE)}</details>")
    assert html.count("data-cards") == 1
    assert html.endswith(f"{table(WIDE)}</details>")


@pytest.mark.parametrize(
    "html",
    [
        f"<details><summary>s</summary>{table(WIDE)}</details>",
        table([line[:2] for line in WIDE]),
        table([["a", "b", "c", "d", "e"], ["1", "2", "3", "4", "5"]]),
    ],
    ids=["folded", "few columns", "short cells"],
)
def test_other_tables_remain_tables(hook: Any, html: str) -> None:
    assert hook.on_page_content(html) == html
