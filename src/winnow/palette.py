"""Colors of figures, pages, reports, and documentation.

There is one palette, light and dark.

Text has a contrast of at least 4.5 with both grounds, marks of at least 3.0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Color:
    """Role of a color: its value on light and on dark grounds."""

    light: str
    dark: str


@dataclass(frozen=True)
class Look:
    """Color, marker, and line of a method in light figures.

    Marker and line distinguish it without color.
    """

    color: str
    marker: str = "o"
    line: str = "-"


COLORS = {
    "page": Color("#f7f7f5", "#13171c"),
    "card": Color("#ffffff", "#1c2229"),
    "ink": Color("#1f2933", "#e8ebee"),
    "muted": Color("#5a6673", "#a3aeb9"),
    "line": Color("#e1e4e8", "#313a44"),
    "link": Color("#0b5cad", "#8cc4ff"),
    "right": Color("#0a7347", "#4fcf93"),
    "wrong": Color("#b3261e", "#ff8a80"),
    "gap": Color("#52606d", "#a3aeb9"),
    "gmp": Color("#b85000", "#f08c2e"),
    "gsp": Color("#0072b2", "#56b4e9"),
    "gsp-zsr": Color("#007a59", "#2fc79a"),
    "pretrained": Color("#7f8994", "#7a8691"),
    "method-5": Color("#8f4a9c", "#d09be0"),
    "method-6": Color("#8a6400", "#e0bc4a"),
    "method-7": Color("#b0305c", "#f58aa9"),
}
"""Role to color. Roles are CSS variables on pages; figures use the light values and replace them in dark mode."""

INK = COLORS["ink"].light
MUTED = COLORS["muted"].light
GRID = COLORS["line"].light
GROUND = COLORS["card"].light
PRETRAINED = COLORS["pretrained"].light
"""Color of a backbone without training; its bars are hatched."""

_GAP = Look(COLORS["gap"].light, "o", "--")
_GMP = Look(COLORS["gmp"].light, "^", "-.")
_GSP = Look(COLORS["gsp"].light, "s", "-")
_GSP_ZSR = Look(COLORS["gsp-zsr"].light, "D", "-")
_MORE = tuple(Look(COLORS[f"method-{n}"].light, marker) for n, marker in ((5, "v"), (6, "P"), (7, "X")))
_LOOKS = {
    "gap": _GAP, "averagepooling": _GAP, "gmp": _GMP, "gmp(projected)": _GMP, "gmp_projected": _GMP, "gsp": _GSP,
    "gsp-only": _GSP, "gsp+zsr": _GSP_ZSR, "gsp-zsr": _GSP_ZSR,
}  # fmt: skip
_DARK = {color.light: color.dark for color in COLORS.values()}


def method_look(name: str) -> Look:
    """Return the fixed look of a method.

    GAP, GMP, GSP, and GSP+ZSR have one each. All other methods have GAP's.
    """
    return _LOOKS.get(name.lower().replace(" ", ""), _GAP)


def method_color(name: str) -> str:
    """Return the fixed color of a method.

    GAP gray, GMP orange, GSP blue, GSP+ZSR green, all other methods gray.
    """
    return method_look(name).color


def method_looks(names: Iterable[str]) -> dict[str, Look]:
    """Return a different look for each method: its fixed one, or the next free one."""
    names = list(names)
    fixed = {name: method_look(name) for name in names if name.lower().replace(" ", "") in _LOOKS}
    taken = set(fixed.values())
    every = (_GAP, _GMP, _GSP, _GSP_ZSR, *_MORE)
    free = [look for look in every if look not in taken] or list(every)
    others = [name for name in dict.fromkeys(names) if name not in fixed]
    rest = {name: free[number % len(free)] for number, name in enumerate(others)}
    return {name: (fixed | rest)[name] for name in names}


def method_colors(names: Iterable[str]) -> dict[str, str]:
    """Return a different color for each method: its fixed one, or a free one."""
    return {name: look.color for name, look in method_looks(names).items()}


def dark_color(color: str) -> str:
    """Return the color of dark pages that corresponds to a color of light pages.

    An unknown color is returned unchanged.
    """
    return _DARK.get(color, color)


def dark_colors() -> dict[str, str]:
    """Return the dark color of each light color."""
    return dict(_DARK)


def palette_css(dark: str | None = None) -> str:
    """Return all colors as CSS variables named by roles, such as `--ink`.

    Args:
        dark: Selector of dark mode, such as `[data-md-color-scheme="slate"]`. None follows the reader's system.
    """
    light = " ".join(f"--{role}: {color.light};" for role, color in COLORS.items())
    night = " ".join(f"--{role}: {color.dark};" for role, color in COLORS.items())
    rule = f"@media (prefers-color-scheme: dark) {{ :root {{ {night} }} }}" if dark is None else f"{dark} {{ {night} }}"
    return f":root {{ {light} }}\n{rule}\n"
