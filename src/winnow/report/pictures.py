"""The sections of a comparison's page that are looked at: neighbours, heat maps, prototypes."""

from __future__ import annotations

import numpy as np

from winnow.report import page
from winnow.report.content import HeatMap, Neighbour, Prototype, Query
from winnow.report.heatmaps import FULL_SCALE, colors, is_uniform, overlay, relative_weights
from winnow.report.numbers import percent
from winnow.report.page import Html, Section, element, text


def gallery(queries: list[Query]) -> Section:
    """Return every query once, with a row of neighbours per method."""
    blocks = []
    for query in queries:
        rows = []
        for method, found in query.neighbours.items():
            right = f"{sum(one.right for one in found)} of {len(found)} right"
            title = element("h4", text(method), element("small", text(right)))
            columns = f"--columns: {max(1, len(found))}; --narrow: {page.balanced(len(found), 4)}"
            listed = element("ol", *map(_neighbour, found), style=columns)
            rows.append(element("div", title, listed, css="found"))
        seen = page.captioned(page.picture(query.image, f"query: {query.name}"), text(f"Query: {query.name}"))
        blocks.append(element("article", seen, element("div", *rows), css="query"))
    says = (
        "The nearest images first, with their distance. A tick and a full frame: of the query's class. A cross and a "
        "dashed frame: of another."
    )
    return Section("neighbours", "What each method finds", [page.paragraphs(says), *blocks])


def _neighbour(one: Neighbour) -> Html:
    says, mark, css = ("right", "✓", "neighbour") if one.right else ("wrong", "✗", "neighbour wrong")
    return element(
        "li",
        page.picture(one.image, f"{says}: {one.name}, distance {one.distance:.2f}", side=160),
        Html(f'<span class="mark" aria-hidden="true">{mark}</span>'),
        element("small", text(f"{one.distance:.2f}")),
        css=css,
    )


def heat_maps(maps: list[HeatMap]) -> Section:
    """Return the images beside their heat maps; poolings that weigh all places alike are shown once."""
    names = list(dict.fromkeys(name for one in maps for name in one.weights))
    flat = [name for name in names if all(is_uniform(one.weights[name]) for one in maps if name in one.weights)]
    key = [_scale()]
    if flat:
        example = next(one for one in maps if flat[0] in one.weights)
        alt = f"{flat[0]} over {example.name}: evenly coloured"
        even = page.picture(overlay(example.image, example.weights[flat[0]]), alt)
        says = f"{' and '.join(flat)}: every place weighs the same, clutter as much as what matters. For reference."
        key.append(element("div", even, element("p", text(says)), css="reference"))
    blocks = []
    columns = 1 + max(sum(name not in flat for name in one.weights) for one in maps)
    for one in maps:
        row = [page.captioned(page.picture(one.image, one.name), text("Image"))]
        for name, weights in one.weights.items():
            if name not in flat:
                alt = (
                    f"{name} over {one.name}: heat map, at most {relative_weights(weights).max():.1f} times the average"
                )
                row.append(page.captioned(page.picture(overlay(one.image, weights), alt), text(name)))
        body = element("div", *row, css="row", style=f"--columns: {columns}")
        blocks.append(element("div", element("h3", text(one.name)), body))
    says = "Pooling weights over the image: dark places are dropped, bright ones make the embedding."
    width = f"--width: {min(8 * columns, 32)}rem"
    return Section(
        "weights",
        "Where each pooling looks",
        [page.paragraphs(says), element("div", *key, css="key"), element("div", *blocks, css="maps", style=width)],
    )


def _scale() -> Html:
    stops = [
        f"rgb({', '.join(str(round(255 * part)) for part in colour)})"
        for colour in colors(np.linspace(0, FULL_SCALE, 9))
    ]
    ticks = [
        element("li", text(f"{tick}×"), style=f"--at: {100 * tick / FULL_SCALE:g}%")
        for tick in range(int(FULL_SCALE) + 1)
    ]
    return element(
        "figure",
        element("figcaption", text(f"Times the average weight; {FULL_SCALE:g}× and more look alike")),
        element("div", style=f"background: linear-gradient(to right, {', '.join(stops)})"),
        element("ol", *ticks),
        css="scale",
    )


def prototypes(found: list[Prototype]) -> Section:
    """Return what each prototype likes best and how much of the kept weight goes to it."""
    longest = max(one.share for one in found) or 1.0
    blocks = []
    for one in found:
        patches = [
            page.picture(patch, f"patch {number} that prototype {one.index} likes", side=128)
            for number, patch in enumerate(one.patches, 1)
        ]
        share = element("span", text(f"{percent(one.share)} % of the weight"))
        bar = element("i", style=f"width: {100 * one.share / longest:.1f}%")
        title = element("h3", element("span", text(f"Prototype {one.index}")), element("small", share))
        listed = element("div", *patches, css="patches", style=f"--columns: {page.balanced(len(patches), 6)}")
        blocks.append(element("div", title, element("div", bar, css="share"), listed))
    says = "Each prototype attracts the local features that resemble it. The patches nearest to each, best first."
    return Section(
        "prototypes", "What the prototypes like", [page.paragraphs(says), element("div", *blocks, css="prototypes")]
    )
