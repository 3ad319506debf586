"""Style of all figures: type, lines, and files for light and dark pages."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from winnow.errors import DataError
from winnow.files import write_atomically, write_text
from winnow.palette import (
    GRID,
    GROUND,
    INK,
    MUTED,
    PRETRAINED,
    Look,
    dark_color,
    dark_colors,
    method_color,
    method_colors,
    method_look,
    method_looks,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "GRID",
    "GROUND",
    "INK",
    "MUTED",
    "PRETRAINED",
    "Look",
    "dark_color",
    "method_color",
    "method_colors",
    "method_look",
    "method_looks",
    "new_figure",
    "save",
    "styled",
    "svg",
]

P = ParamSpec("P")
T = TypeVar("T")

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


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Make a function draw in winnow's style, regardless of matplotlib settings."""

    @functools.wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> T:
        import matplotlib

        with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_RC}):
            return draw(*args, **kwargs)

    return inside


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure that belongs to no global state.

    Call it inside a `styled` function.

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
    """Return rules that replace each color of the palette in dark mode.

    Matplotlib writes colors as `style`.
    """
    rules = [
        f'[style*="{what}: {light}"]{{{what}:{dark} !important}}'
        for light, dark in dark_colors().items()
        for what in ("fill", "stroke")
    ]
    fonts = f"text{{font-family:{_FONTS} !important}}"
    return f"{fonts}\n@media (prefers-color-scheme:dark){{\n" + "\n".join(rules) + "\n}\n"
