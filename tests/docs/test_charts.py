"""Charts of the site: positions on the axis, against their definition."""

from __future__ import annotations

import re
from math import log10
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.docs.reader import load_hook

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def charts() -> Any:
    return load_hook("charts")


def positions(html: str, kind: str) -> list[float]:
    return [float(found) for found in re.findall(rf'class="{kind}" style="left:([-\d.]+)%', html)]


def ticks(html: str) -> dict[float, float]:
    found = re.findall(r'class="tick" style="left:([-\d.]+)%">([−\d.e+]+)×?<', html)
    return {float(text.replace("−", "-")): float(left) for left, text in found}


VALUES = st.floats(-100, 100, allow_nan=False).map(lambda value: round(value, 3))


@given(st.lists(st.tuples(VALUES, VALUES, VALUES).map(sorted), min_size=1, max_size=8))
def test_dots_lie_between_their_ends_on_one_linear_axis_with_zero(charts: Any, numbers: list[list[float]]) -> None:
    marks = [charts.Mark("a", value, low, high, "t") for low, value, high in numbers]
    html = charts.chart(marks, label="l", unit="points")
    axis = ticks(html)
    (least, left), (most, right) = min(axis.items()), max(axis.items())
    assert 0 <= left < right <= 100

    def at(value: float) -> float:
        return left + (right - left) * (value - least) / (most - least)

    assert positions(html, "dot") == pytest.approx([at(mark.value) for mark in marks], abs=0.03)
    assert positions(html, "range") == pytest.approx([at(mark.low) for mark in marks], abs=0.03)
    assert positions(html, "zero") == pytest.approx([at(0)] * len(marks), abs=0.03)
    assert all(0 <= one <= 100 for kind in ("dot", "range", "zero") for one in positions(html, kind))
    assert 2 <= len(axis) <= 6


@pytest.mark.parametrize("ratios", [[0.5, 1.0, 2.0], [0.0037, 1.0, 57.0], [1.0, 1.05]])
def test_ratios_are_on_a_logarithmic_axis_with_one(charts: Any, ratios: list[float]) -> None:
    html = charts.chart([charts.Mark("a", r, None, None, "t") for r in ratios], label="l", unit="x", logarithmic=True)
    one = positions(html, "zero")[0]
    dots = positions(html, "dot")
    scale = (dots[-1] - dots[0]) / (log10(ratios[-1]) - log10(ratios[0]))
    assert dots == pytest.approx([one + scale * log10(ratio) for ratio in ratios], abs=0.05)
    assert positions(html, "range") == []
    assert all(0 <= dot <= 100 for dot in dots)
    assert len(ticks(html)) <= 5


def test_names_are_escaped_and_readers_without_sight_get_the_values(charts: Any) -> None:
    html = charts.chart([charts.Mark('<b> & "c"', 1.0, None, None, "+1.0")], label="Differences", unit="points")
    assert "<b>" not in html
    assert 'aria-label="Differences: &lt;b&gt; &amp; &quot;c&quot; +1.0"' in html
