"""Draw the picture of README and home page: a query, its pooling weights, and its neighbors under GAP and GSP.

    python scripts/draw_hero.py

Trains GAP and GSP as `winnow demo` does with seed 0 (a minute on two cores), and writes docs/assets/hero.svg and
hero-narrow.svg, which has the query above the rows and fits a phone. They show the one of the six queries of the demo's
report whose numbers of relevant neighbors differ most. All images are collages of the bundled emoji dataset. Colors
follow the reader's light or dark mode.
"""

from __future__ import annotations

import base64
import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from PIL import Image

from winnow.data.emoji import load_emoji
from winnow.demo import METHODS, select_queries, train_method
from winnow.palette import COLORS
from winnow.report.comparison import Neighbor, Query
from winnow.report.heatmaps import FULL_SCALE, SCALE_LABEL, colors, overlay
from winnow.training.build import build_setup, resolve_config
from winnow.training.callbacks import Callback

ASSETS = Path(__file__).resolve().parents[1] / "docs/assets"
SHOWN, STEPS = ("GAP", "GSP"), 600
LABEL = 26
"""Height of a label in pixels."""


@dataclass(frozen=True)
class Layout:
    """Sizes in pixels: side of a picture, distance of pictures, and margin; and where the query is."""

    side: int
    gap: int
    margin: int
    query_above: bool


LAYOUTS = {"hero": Layout(108, 14, 24, query_above=False), "hero-narrow": Layout(52, 6, 12, query_above=True)}
"""File names and their layouts."""


@dataclass(frozen=True)
class Row:
    """One method: its heat map of the query and the query's nearest neighbors."""

    name: str
    heat_map: Image.Image
    neighbors: Sequence[Neighbor]

    @property
    def relevant(self) -> int:
        """Number of neighbors with the class of the query."""
        return sum(one.relevant for one in self.neighbors)


def draw(query: Image.Image, name: str, rows: list[Row], layout: Layout = LAYOUTS["hero"]) -> str:
    """Return the picture as SVG."""
    side, gap, margin = layout.side, layout.gap, layout.margin
    count = len(rows[0].neighbors)
    step = side + LABEL + gap
    above = side + LABEL + gap if layout.query_above else 0
    first = margin if layout.query_above else margin + side + 3 * gap  # left edge of the heat maps
    second = first + side + 3 * gap  # left edge of the neighbors
    width = second + count * (side + gap) - gap + margin
    height = 2 * margin + above + len(rows) * step + LABEL
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(describe(name, rows))}">',
        f"<style>{style()}</style>",
        f'<rect class="card" width="{width}" height="{height}" rx="10"/>',
    ]
    middle = margin + LABEL + (0 if layout.query_above else (len(rows) * step - gap - LABEL - side) // 2)
    parts += [text(margin, middle - 10, "Query", "head"), picture(query, margin, middle, side)]
    beside = layout.query_above
    for number, line in enumerate([name] if beside else textwrap.wrap(name, 15)):
        x, y = (second, middle + side // 2 + 5) if beside else (margin, middle + side + 20)
        parts.append(text(x, y + 18 * number, line, "note"))
    for number, row in enumerate(rows):
        top = margin + LABEL + above + number * step
        look = row.name.lower().replace("+", "-")
        parts += [text(first, top - 10, row.name, f"head {look}"), picture(row.heat_map, first, top, side)]
        parts.append(text(second, top - 10, f"{row.relevant} of the {count} nearest are relevant", "note"))
        for position, one in enumerate(row.neighbors):
            left = second + position * (side + gap)
            parts += [picture(one.image, left, top, side), mark(one.relevant, left, top, side)]
    parts += color_bar(first, height - margin - LABEL + 6, side)
    return "\n".join([*parts, "</svg>", ""])


def describe(name: str, rows: list[Row]) -> str:
    """Return what the picture shows, for readers who do not see it."""
    found = ", ".join(f"{row.relevant} of {len(row.neighbors)} under {row.name}" for row in rows)
    return (
        f"A collage with the target emoji {name}, its pooling weights, and its nearest neighbors: {found} are relevant"
    )


def style() -> str:
    """Return the colors of all classes in light and dark mode."""
    roles = {".card": "card", "text": "ink", ".note": "muted", ".gap": "gap", ".gsp": "gsp"}
    marks = {".right": "right", ".wrong": "wrong"}

    def rules(mode: str) -> str:
        fills = "".join(f"{one}{{fill:{getattr(COLORS[role], mode)}}}" for one, role in roles.items())
        return fills + "".join(
            f"rect{one}{{stroke:{(color := getattr(COLORS[role], mode))}}}circle{one}{{fill:{color}}}"
            f"path{one}{{stroke:{COLORS['card'].light if mode == 'light' else COLORS['card'].dark}}}"
            for one, role in marks.items()
        )

    base = "text{font:14px system-ui,sans-serif}.head{font-weight:700;font-size:16px}.frame{fill:none;stroke-width:3}"
    return f"{base}{rules('light')}@media(prefers-color-scheme:dark){{{rules('dark')}}}"


def text(x: int, y: int, value: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(value)}</text>'


def picture(image: Image.Image, x: int, y: int, side: int) -> str:
    buffer = io.BytesIO()
    image.convert("RGB").resize((2 * side, 2 * side)).save(buffer, "WEBP", quality=72, method=6)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<image x="{x}" y="{y}" width="{side}" height="{side}" href="data:image/webp;base64,{data}"/>'


def mark(relevant: bool, x: int, y: int, side: int) -> str:
    """Return a frame and a sign, so a neighbor's relevance does not depend on color."""
    kind, stroke = ("right", "M-5,0l4,4l7,-8") if relevant else ("wrong", "M-4,-4l8,8M4,-4l-8,8")
    scale = 1 if side > 80 else 0.75
    return (
        f'<rect class="frame {kind}" x="{x}" y="{y}" width="{side}" height="{side}" rx="2"/>'
        f'<g transform="translate({x + side - 4},{y + 4}) scale({scale})"><circle class="{kind}" r="11"/>'
        f'<path class="{kind}" d="{stroke}" fill="none" stroke-width="2.5"/></g>'
    )


def color_bar(x: int, y: int, side: int) -> list[str]:
    """Return the scale of the heat maps."""
    import numpy as np

    stops = np.linspace(0, FULL_SCALE, 9)
    found = [
        f'<stop offset="{value / FULL_SCALE:.3f}" stop-color="#{"".join(f"{round(255 * c):02x}" for c in color)}"/>'
        for value, color in zip(stops, colors(stops), strict=True)
    ]
    return [
        f'<defs><linearGradient id="heat">{"".join(found)}</linearGradient></defs>',
        f'<rect x="{x}" y="{y}" width="{side}" height="10" fill="url(#heat)"/>',
        text(x + side + 10, y + 10, f"{SCALE_LABEL}, 0 to {FULL_SCALE:.0f}", "note"),
    ]


def collect(steps: int = STEPS) -> tuple[Query, list[Row]]:
    """Train the methods, and return the query with the largest difference and its rows."""
    methods = {one.name: one for one in METHODS if one.name in SHOWN}
    splits = load_emoji()
    assert splits.test is not None, "the bundled dataset has test classes"
    setup = build_setup(resolve_config(METHODS[0].config(seed=0, steps=steps)), splits, Callback())
    trained = {name: train_method(setup, methods[name].config(seed=0, steps=steps))[0] for name in SHOWN}
    queries = select_queries(splits.test, trained)

    def difference(query: Query) -> int:
        low, high = (sum(one.relevant for one in query.neighbors[name]) for name in SHOWN)
        return high - low

    query = max(queries, key=difference)
    rows = []
    for name, one in trained.items():
        (found,) = one.embedder.explain([query.image])
        assert found.weights is not None
        rows.append(Row(name, overlay(found.image, found.weights), query.neighbors[name]))
    return query, rows


def main() -> None:
    query, rows = collect()
    for name, layout in LAYOUTS.items():
        path = ASSETS / f"{name}.svg"
        path.write_text(draw(query.image, query.name, rows, layout), encoding="utf-8")
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB; {describe(query.name, rows)}")


if __name__ == "__main__":
    main()
