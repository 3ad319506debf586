"""The palette: contrast on both backgrounds, and one source for figures and pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from winnow.palette import COLORS, method_colors, palette_css

ROOT = Path(__file__).resolve().parents[1]
TEXT = {"ink", "muted", "link", "right", "wrong"}
GROUNDS = {"page", "card"}
INFERNO_AND_SHADOWS = re.compile(r"linear-gradient\([^;]*\)|rgb\([^)]*\)")
STYLES = [
    ROOT / "src/winnow/serve/website/style.css",
    ROOT / "src/winnow/report/templates/page.css",
    *sorted((ROOT / "docs/assets").glob("*.css")),
]


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_by_its_definition() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.478, abs=1e-3)


@pytest.mark.parametrize("role", sorted(set(COLORS) - GROUNDS - {"line"}))
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_roles_are_visible_on_both_grounds(role: str, mode: str) -> None:
    least = 3.0 if role == "pretrained" else 4.5
    for ground in GROUNDS:
        ratio = contrast(getattr(COLORS[role], mode), getattr(COLORS[ground], mode))
        assert ratio >= least - 0.05, f"{role} on {ground}: {ratio:.2f}"


@pytest.mark.parametrize("dark", [None, '[data-md-color-scheme="slate"]'])
def test_css_holds_both_modes(dark: str | None) -> None:
    css = palette_css(dark)
    found = re.findall(r"--([\w-]+): (#[0-9a-f]{6});", css)
    half = len(found) // 2
    assert dict(found[:half]) == {role: color.light for role, color in COLORS.items()}
    assert dict(found[half:]) == {role: color.dark for role, color in COLORS.items()}
    assert (dark or "prefers-color-scheme: dark") in css[css.index("\n") :]


@pytest.mark.parametrize("path", STYLES, ids=lambda path: path.name)
def test_styles_name_no_color_of_their_own(path: Path) -> None:
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b", INFERNO_AND_SHADOWS.sub("", path.read_text())) == []


def test_methods_have_fixed_and_distinct_colors() -> None:
    assert method_colors(["GSP + ZSR", "DeLF", "GAP"])["GSP + ZSR"] == COLORS["gsp-zsr"].light
    several = method_colors(["GAP", "GMP", "GSP", "GSP + ZSR", "DeLF", "CBAM"])
    assert len(set(several.values())) == 6
