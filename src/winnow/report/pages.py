"""Self-contained HTML pages of a comparison and of search results.

A page loads nothing: pictures and figures are data URIs. Templates escape all text.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from winnow.files import write_text
from winnow.palette import palette_css
from winnow.report.comparison import (
    Comparison,
    HeatMap,
    Method,
    best_other,
    comparison_table,
    display_table,
    evidence,
    headline,
    mean_map,
    percent,
    table_note,
)
from winnow.report.figures import METRICS, has_validation, metric_bars, series_of, training_curves
from winnow.report.heatmaps import FULL_SCALE, SCALE_LABEL, colors, heat_image, is_uniform, overlay, relative_weights
from winnow.report.style import PRETRAINED, dark_color, method_colors, svg
from winnow.report.tables import MISSING, Styled

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure

    from winnow.index import Entry, Hits, Index
    from winnow.report.heatmaps import Weights

UNFOLDED = 3
"""Queries that are visible at once; the rest is folded."""


def write_comparison(path: str | Path, comparison: Comparison) -> None:
    """Write a comparison as one HTML page. Sections without content are skipped.

    Args:
        path: File to write, such as report.html.
        comparison: Methods, numbers, and pictures.
    """
    _write(
        path,
        "comparison.html.jinja",
        title=comparison.title,
        comparison=comparison,
        headline=headline(comparison),
        evidence=evidence(comparison),
        note=table_note(comparison),
        scores=_scores(comparison),
        switch=_switch(comparison),
        unfolded=UNFOLDED,
        example=_example(comparison),
        table=_table(comparison),
        figures=_figures(comparison),
        heat=_heat_maps(comparison.heatmaps),
        largest_fraction=max((one.fraction for one in comparison.prototypes), default=0) or 1,
        provenance=list(flatten(comparison.provenance)),
        settings=list(flatten(comparison.settings)),
    )


def write_search_page(
    path: str | Path, index: Index, names: Sequence[str], own: Sequence[int | None], hits: Hits, *, note: str = ""
) -> None:
    """Write queries and their neighbors, nearest first, as one HTML page.

    Args:
        path: File to write.
        index: Index that was searched.
        names: Queries: image files, or entries of the index.
        own: Entry of each query; None for a query that is a file.
        hits: Search results, one row per query.
        note: Remark about the search, such as its re-ranking.
    """
    from winnow.data import read_image

    queries = []
    for name, number, ids, distances in zip(names, own, hits.ids, hits.distances, strict=True):
        entry = None if number is None else index.entry(number)
        found = [(index.entry(int(i)), float(d)) for i, d in zip(ids, distances, strict=True) if i >= 0]
        label = None if entry is None else entry.label
        queries.append({
            "name": name if entry is None else _short_path(entry),
            "image": read_image(name) if entry is None else _thumbnail(entry),
            "neighbors": [_search_result(one, distance, label) for one, distance in found],
        })  # fmt: skip
    _write(
        path, "search.html.jinja", title=f"Search in {index.path.name}", count=len(index), note=note, queries=queries
    )


def data_uri(image: Image.Image, side: int = 256) -> str:
    """Return an image as a data URI (WebP), at most `side` pixels long."""
    image = image.convert("RGBA" if "A" in image.getbands() else "RGB")
    if max(image.size) > side:
        image.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=88, method=4)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def balanced_columns(count: int, most: int) -> int:
    """Return the number of columns that leaves the fewest gaps.

    The number is at most `most`, and the number of rows is minimal.
    """
    rows = max(1, -(-count // most))
    return max(1, -(-count // rows))


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested settings as names with dots and texts."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", MISSING if value is None or value == {} else str(value)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("winnow.report"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {
        "data_uri": data_uri, "heat_uri": _heat_uri, "largest": _largest, "paragraphs": _paragraphs, "percent": percent,
        "zip": zip,
    }  # fmt: skip
    environment.globals |= {"balanced_columns": balanced_columns, "palette_css": lambda: Markup(palette_css())}
    return environment


def _write(path: str | Path, template: str, **context: object) -> None:
    write_text(Path(path), _environment().get_template(template).render(context))


def _paragraphs(text: str) -> list[str]:
    return [part.strip() for part in text.split("\n\n") if part.strip()]


def _figure_uri(figure: Figure) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg(figure).encode()).decode("ascii")


def _swatch(color: str) -> str:
    """Return CSS variables for a color in light and dark mode."""
    return f"--light: {color}; --dark: {dark_color(color)}"


def _swatches(comparison: Comparison) -> list[str]:
    """Return the color of each table row: baseline first, then methods."""
    found = method_colors(method.name for method in comparison.methods)
    return ([] if comparison.baseline is None else [_swatch(PRETRAINED)]) + [_swatch(one) for one in found.values()]


def _scores(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the bars of the page's head: MAP@R of the baseline and of each method."""
    values = [(row["method"], row["MAP@R"]) for row in comparison_table(comparison)]
    longest = max(float(value) for _, value in values if value is not None) or 1.0
    return [
        {"name": name, "text": percent(float(value)), "width": f"{80 * float(value) / longest:.1f}%", "color": color,
         "pretrained": comparison.baseline is not None and number == 0}
        for number, ((name, value), color) in enumerate(zip(values, _swatches(comparison), strict=True))
        if value is not None
    ]  # fmt: skip


def _switch(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the methods of neighbors and heat maps, and whether each is visible at first.

    The reference and the best other method are.
    """
    first = {method.name for method in (comparison.methods[0], best_other(comparison)) if method is not None}
    shown = {name for query in comparison.queries for name in query.neighbors}
    shown |= {name for one in comparison.heatmaps for name in one.weights}
    listed = [method.name for method in comparison.methods if method.name in shown]
    listed += sorted(shown - set(listed))
    checked = first & shown or shown
    return [{"number": number, "name": name, "checked": name in checked} for number, name in enumerate(listed)]


def _heat_uri(weights: Weights) -> str:
    """Return the colors of pooling weights as a data URI of under a kilobyte."""
    return data_uri(heat_image(weights))


def _largest(weights: Weights) -> str:
    """Return the largest weight as a multiple of the mean."""
    return f"{relative_weights(weights).max():.1f}"


def _example(comparison: Comparison) -> dict[str, Any] | None:
    """Return a query with a relevant and an irrelevant neighbor, as far as they exist."""
    best: dict[str, Any] | None = None
    for query in comparison.queries:
        every = [one for found in query.neighbors.values() for one in found]
        relevant = next((one for one in every if one.relevant), None)
        irrelevant = next((one for one in every if not one.relevant), None)
        if relevant and irrelevant:
            return {"query": query, "relevant": relevant, "irrelevant": irrelevant}
        best = best or {"query": query, "relevant": relevant, "irrelevant": irrelevant}
    return best


def _table(comparison: Comparison) -> dict[str, Any]:
    """Return headings, and rows with name, description, color, and cells."""
    columns, rows = display_table(comparison)
    descriptions = [] if comparison.baseline is None else ["Features of the backbone, without training."]
    descriptions += [_describe(method) for method in comparison.methods]
    values = columns[2:]  # the name and n stand in the first cell
    lines = []
    for row, description, color in zip(rows, descriptions, _swatches(comparison), strict=True):
        cells = [row.get(column.key) for column in values]
        lines.append({
            "name": row["method"], "description": description, "color": color,
            "cells": [one if isinstance(one, Styled) else Styled(None, MISSING) for one in cells],
        })  # fmt: skip
    return {"headings": [column.heading for column in values], "rows": lines}


def _describe(method: Method) -> str:
    """Return the description of a method with its number of seeds and the time of one."""
    seconds = float(np.mean([run.seconds for run in method.runs]))
    time = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    count = len(method.runs)
    runs = f"{count} seeds, {time} each." if count > 1 else f"1 seed, {time}."
    return f"{method.description} {runs.replace(' ', chr(0xA0))}".strip()


def _figures(comparison: Comparison) -> list[dict[str, str]]:
    """Return bars of test metrics, and training curves if there are validations."""
    runs = {method.name: method.runs for method in comparison.methods}
    counts = {len(each) for each in runs.values()}
    n = f"{counts.pop()}" if len(counts) == 1 else "all"
    several = n != "1"
    bars = metric_bars(
        {name: [run.metrics for run in each] for name, each in runs.items()}, baseline=comparison.baseline
    )
    named = ", ".join(f"{one['name']} {one['text']}" for one in _scores(comparison))
    shown = ", ".join(name for name in METRICS if any(name in run.metrics for each in runs.values() for run in each))
    note = f"Bars: mean of {n} seeds; dots: single seeds; whiskers: std." if several else "n = 1 seed."
    best = max(comparison.methods, key=mean_map)
    found = [{
        "source": _figure_uri(bars),
        "alt": f"Bar chart of {shown} on test classes. MAP@R: {named}.",
        "finding": f"{best.name} has the highest MAP@R, {percent(mean_map(best))}.",
        "note": f"Test classes. {note}",
    }]  # fmt: skip
    histories = {name: [run.history for run in each] for name, each in runs.items()}
    if has_validation(histories):
        ends = {name: value for name, each in histories.items() if (value := _last_validation(each)) is not None}
        last = max(ends, key=ends.__getitem__)
        note = f"Thick lines: mean of {n} seeds; thin lines: single seeds." if several else "n = 1 seed."
        found.append({
            "source": _figure_uri(training_curves(histories, losses=False)),
            "alt": "Line chart of validation MAP@R by training step. MAP@R of the last validation: "
            + ", ".join(f"{name} {percent(value)}" for name, value in ends.items()) + ".",
            "finding": f"{last} has the highest validation MAP@R at the end, {percent(ends[last])}.",
            "note": f"Validation classes. {note}",
        })  # fmt: skip
    return found


def _last_validation(histories: Sequence[Sequence[Mapping[str, Any]]]) -> float | None:
    """Return the last validation MAP@R, mean over seeds; None without one."""
    last = [list(series.values())[-1] for one in histories if (series := series_of(one, "val/MAP@R"))]
    return float(np.mean(last)) if last else None


def _heat_maps(maps: Sequence[HeatMap]) -> dict[str, Any] | None:
    """Return heat maps with their scale.

    Poolings with uniform weights are shown once, in `uniform`.
    """
    if not maps:
        return None
    names = list(dict.fromkeys(name for one in maps for name in one.weights))
    flat = [name for name in names if all(is_uniform(one.weights[name]) for one in maps if name in one.weights)]
    stops = [f"rgb({', '.join(f'{255 * c:.0f}' for c in color)})" for color in colors(np.linspace(0, FULL_SCALE, 9))]
    example = next((one for one in maps if flat and flat[0] in one.weights), None)
    shown = [
        {"image": one.image, "name": one.name, "maps": [
            {"method": name, "image": overlay(one.image, weights), "largest": _largest(weights)}
            for name, weights in one.weights.items() if name not in flat
        ]} for one in maps
    ]  # fmt: skip
    return {
        "label": SCALE_LABEL,
        "gradient": f"linear-gradient(to right, {', '.join(stops)})",
        "ticks": [(tick, f"{100 * tick / FULL_SCALE:g}%") for tick in range(int(FULL_SCALE) + 1)],
        "full_scale": f"{FULL_SCALE:g}",
        "uniform": " and ".join(flat),
        "uniform_name": "" if example is None else example.name,
        "uniform_image": None if example is None else overlay(example.image, example.weights[flat[0]]),
        "shown": shown,
    }


def _search_result(entry: Entry, distance: float, label: str | None) -> dict[str, Any]:
    """Return a neighbor; whether it is relevant is None if either class is unknown."""
    known = label is not None and entry.label is not None
    return {
        "image": _thumbnail(entry), "name": entry.label or _short_path(entry), "distance": distance,
        "relevant": entry.label == label if known else None,
    }  # fmt: skip


def _thumbnail(entry: Entry) -> Image.Image:
    with Image.open(io.BytesIO(entry.thumbnail)) as image:
        return image.convert("RGB")


def _short_path(entry: Entry) -> str:
    """Return folder and file name of an entry."""
    return "/".join(entry.path.replace("\\", "/").split("/")[-2:])
