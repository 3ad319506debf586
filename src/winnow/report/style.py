"""One look for every figure: type, lines, the colours of methods, and how a figure becomes SVG or a file."""

from __future__ import annotations

import functools
import hashlib
import io
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from winnow.errors import DataError
from winnow.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

P = ParamSpec("P")
T = TypeVar("T")

INK = "#1f2933"
MUTED = "#616e7c"
GRID = "#e4e7eb"
UNTRAINED = "#c3cad3"

# Okabe and Ito's colours, which people with any kind of colour blindness tell apart; the first method, to which the
# others are compared, is a neutral slate.
_METHODS = ("#52606d", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")

_RC: dict[str, Any] = {
    "figure.facecolor": "white",
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
    "axes.edgecolor": "#9aa5b1",
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
    # A dollar sign in a name is a dollar sign.
    "text.parse_math": False,
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
}

_SVG_RC: dict[str, Any] = {"svg.fonttype": "none", "svg.hashsalt": "winnow"}

_FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"


def method_colours(names: Iterable[str]) -> dict[str, str]:
    """Give every method its colour, by order: the first is slate, the others stand out against it."""
    return {name: _METHODS[number % len(_METHODS)] for number, name in enumerate(names)}


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Let a function draw in winnow's style, whatever the caller's matplotlib settings are."""

    @functools.wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> T:
        import matplotlib

        with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_RC}):
            return draw(*args, **kwargs)

    return inside


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure that belongs to no global state; call it inside a `styled` function.

    Args:
        width: In inches.
        height: In inches.
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def svg(figure: Figure, *, key: str = "") -> str:
    """Return a figure as an SVG element to stand inside an HTML page.

    The same figure always gives the same text. Its ids are its own: they begin with a hash of what it shows, so that
    several figures share a page. Its text stays text, in the fonts of the page's reader.

    Args:
        figure: A matplotlib figure.
        key: Tells two equal figures of one page apart.
    """
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({**_RC, **_SVG_RC}):
        # Without a ground of its own, so that the page's paper shows.
        figure.savefig(
            buffer,
            format="svg",
            facecolor="none",
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*</defs>", "", text)
    text = re.sub(r"font-family: [^;\"]*|font: ([\d.]+px) [^;\"]*", _font, text)
    box = re.search(r'viewBox="([^"]+)"', text)
    assert box is not None, "matplotlib writes the view box"
    root = f'<svg viewBox="{box[1]}" style="stroke-linejoin: round; stroke-linecap: butt">'
    text = re.sub(r"<svg[^>]*>", root, text, count=1)
    prefix = "f" + hashlib.sha256((key + text).encode()).hexdigest()[:8]
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(xlink:)?href="#', f'href="#{prefix}-', text)
    text = text.replace("url(#", f"url(#{prefix}-")
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip()) + "\n"


def _font(match: re.Match[str]) -> str:
    return f"font: {match[1]} {_FONTS}" if match[1] else f"font-family: {_FONTS}"


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure to a file whose ending says how: .png, .svg or .pdf."""
    import matplotlib

    path = Path(path)
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise DataError(f"cannot save a figure as {path.name!r}: end the name in .png, .svg or .pdf")
    # Without the dates and versions that would make two equal figures differ.
    empty = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with matplotlib.rc_context({**_RC, "svg.hashsalt": "winnow"}):
        write_atomically(path, lambda partial: figure.savefig(partial, metadata=empty[path.suffix.lower()]))
