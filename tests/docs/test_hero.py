"""The picture of README and home page: what it marks, and that it needs nothing from outside."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from winnow.palette import COLORS
from winnow.report.comparison import Neighbor

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def hero(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("draw_hero", ROOT / "scripts/draw_hero.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["hero", "hero-narrow"])
def test_each_neighbor_has_the_mark_of_its_relevance(hero: Any, name: str) -> None:
    image = Image.new("RGB", (16, 16), "teal")
    rows = [
        hero.Row(method, image, [Neighbor(image, relevant, 0.1, "a") for relevant in marks])
        for method, marks in (("GAP", (False, False, True)), ("GSP", (True, True, True)))
    ]
    root = ElementTree.fromstring(hero.draw(image, "a <b> & c", rows, layout := hero.LAYOUTS[name]))
    frames = [one for one in root.iter(f"{SVG}rect") if "frame" in one.get("class", "")]
    lines = sorted({float(one.get("y", 0)) for one in frames})
    marks = [[one.get("class") for one in frames if float(one.get("y", 0)) == y] for y in lines]
    assert marks == [["frame wrong", "frame wrong", "frame right"], ["frame right"] * 3]
    assert len(root.findall(f"{SVG}image")) == 1 + 2 * (1 + 3)
    assert "1 of 3 under GAP, 3 of 3 under GSP" in root.get("aria-label", "")
    _, _, width, height = (float(value) for value in root.get("viewBox", "").split())
    for one in frames:
        assert float(one.get("x", 0)) + layout.side < width
        assert float(one.get("y", 0)) + layout.side < height


@pytest.mark.parametrize("name", ["hero", "hero-narrow"])
def test_the_picture_is_small_complete_and_for_both_modes(name: str) -> None:
    text = (ROOT / f"docs/assets/{name}.svg").read_text()
    root = ElementTree.fromstring(text)
    assert len(text) < 200_000
    assert all(one.get("href", "").startswith("data:image/webp;base64,") for one in root.iter(f"{SVG}image"))
    assert not re.search(r"(?:href|src)=\"https?:|url\((?!#)", text)
    light, _, dark = text.partition("prefers-color-scheme:dark")
    for role in ("card", "ink", "muted", "gsp", "right", "wrong"):
        assert COLORS[role].light in light
        assert COLORS[role].dark in dark
