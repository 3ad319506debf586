"""Style of all figures: colors of methods, type, lines, and files that suit light and dark pages."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from winnow.errors import DataError
from winnow.files import write_atomically, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

P = ParamSpec("P")
T = TypeVar("T")

INK = "#1f2933"
MUTED = "#5a6673"
GRID = "#e1e4e8"
GROUND = "#ffffff"
PRETRAINED = "#7f8994"
"""Color of a backbone without training; its bars are hatched."""


@dataclass(frozen=True)
class Look:
    """Color of a method in light figures, with the marker and line that distinguish it without color."""

    color: str
    marker: str = "o"
    line: str = "-"


_GAP = Look("#52606d", "o", "--")
_GMP = Look("#b85000", "^", "-.")
_GSP = Look("#0072b2", "s", "-")
_GSP_ZSR = Look("#007a59", "D", "-")
_MORE = (Look("#8f4a9c", "v"), Look("#8a6400", "P"), Look("#b0305c", "X"))
_LOOKS = {
    "gap": _GAP, "averagepooling": _GAP, "gmp": _GMP, "gmp(projected)": _GMP, "gmp_projected": _GMP, "gsp": _GSP,
    "gsp-only": _GSP, "gsp+zsr": _GSP_ZSR, "gsp-zsr": _GSP_ZSR,
}  # fmt: skip

# Text has a contrast of at least 4.5 on both grounds, marks of 3.0.
_DARK = {
    INK: "#e8ebee", MUTED: "#a3aeb9", GRID: "#313a44", GROUND: "#1c2229", PRETRAINED: "#7a8691",
    "#52606d": "#a3aeb9", "#b85000": "#f08c2e", "#0072b2": "#56b4e9", "#007a59": "#2fc79a", "#8f4a9c": "#d09be0",
    "#8a6400": "#e0bc4a", "#b0305c": "#f58aa9",
}  # fmt: skip

_RC: dict[str, Any] = {
    "figure.facecolor": GROUND,
    "axes.facecolor": "none",
    "figure.dpi": 144,
    "savefig.dpi": 144,
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelsize": 9,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": PRETRAINED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "hatch.color": GROUND,
    "hatch.linewidth": 1.2,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "svg.hashsalt": "winnow",  # equal figures give equal files
}

_FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"


def method_look(name: str) -> Look:
    """Return the fixed look of a method: GAP, GMP, GSP, and GSP+ZSR have one each, all others share GAP's."""
    return _LOOKS.get(name.lower().replace(" ", ""), _GAP)


def method_color(name: str) -> str:
    """Return the fixed color of a method: GAP gray, GMP orange, GSP blue, GSP+ZSR green, all others gray."""
    return method_look(name).color


def method_looks(names: Iterable[str]) -> dict[str, Look]:
    """Return a look for each of several methods that must differ: its fixed one, else the next free one."""
    names = list(names)
    fixed = {name: method_look(name) for name in names if name.lower().replace(" ", "") in _LOOKS}
    taken = set(fixed.values())
    every = (_GAP, _GMP, _GSP, _GSP_ZSR, *_MORE)
    free = [look for look in every if look not in taken] or list(every)
    others = [name for name in dict.fromkeys(names) if name not in fixed]
    rest = {name: free[number % len(free)] for number, name in enumerate(others)}
    return {name: (fixed | rest)[name] for name in names}


def method_colors(names: Iterable[str]) -> dict[str, str]:
    """Return a color for each of several methods that must differ: its fixed one, else the next free one."""
    return {name: look.color for name, look in method_looks(names).items()}


def dark_color(color: str) -> str:
    """Return the color of a dark page that stands for a color of a light one; an unknown color stays."""
    return _DARK.get(color, color)


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Make a function draw in winnow's style, independent of the caller's matplotlib settings."""

    @functools.wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> T:
        import matplotlib

        with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_RC}):
            return draw(*args, **kwargs)

    return inside


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure that belongs to no global state; call it inside a `styled` function.

    Args:
        width: Inches.
        height: Inches.
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def svg(figure: Figure) -> str:
    """Return a figure as an SVG document that follows the reader's light or dark mode.

    Equal figures give equal text. Labels stay text, in the fonts of the reader.
    """
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context(_RC):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue().replace("</style>", f"{_css()}</style>", 1)
    return "\n".join(line.rstrip() for line in text[text.index("<svg") :].splitlines()) + "\n"


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure as .png, .svg, or .pdf, by the extension of the path.

    Raises:
        DataError: If the extension is another one.
        OutputError: If the file cannot be written.
    """
    import matplotlib

    path = Path(path)
    kind = path.suffix.lower()
    if kind == ".svg":
        write_text(path, svg(figure))
        return
    # Dates and versions would make equal figures differ.
    empty = {".png": {"Software": None}, ".pdf": {"CreationDate": None}}
    if kind not in empty:
        raise DataError(f"{path}: unknown format of a figure. End the name in .png, .svg, or .pdf.")
    with matplotlib.rc_context(_RC):
        write_atomically(path, lambda partial: figure.savefig(partial, metadata=empty[kind]))


def _css() -> str:
    """Return rules that replace each color of the palette in dark mode; matplotlib writes colors as `style`."""
    rules = [
        f'[style*="{what}: {light}"]{{{what}:{dark} !important}}'
        for light, dark in _DARK.items()
        for what in ("fill", "stroke")
    ]
    fonts = f"text{{font-family:{_FONTS} !important}}"
    return f"{fonts}\n@media (prefers-color-scheme:dark){{\n" + "\n".join(rules) + "\n}\n"
