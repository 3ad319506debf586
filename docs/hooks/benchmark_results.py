"""Charts and tables of the benchmarks in `results/bench`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from math import floor, log10
from statistics import geometric_mean
from typing import Any

from markup import escaped
from published import RESULTS

from benchmarks.record import load

KERNEL = re.compile("winnow, (.*) kernel")
WIDTH, LABELS, VALUES, LINE = 760, 290, 110, 26


def benchmark(name: str) -> str:
    """Every saved result of a benchmark: a chart of ratios, and all measurements folded."""
    return "\n".join(
        line for path in sorted((RESULTS / "bench").glob(f"{name}-*.json")) for line in _result(load(path))
    )


def kernels() -> str:
    """Time of each kernel of the fused pooling, by case."""
    from winnow.report.tables import Column, to_markdown

    cases: dict[str, dict[str, Any]] = {}
    for row in load(RESULTS / "bench" / "pooling-cuda.json")["rows"]:
        found = KERNEL.fullmatch(row["rival"])
        name = found[1] if found else row["rival"]
        if found or name in ("winnow", "winnow, replayed", "memory floor"):
            cells = cases.setdefault(row["case"], {"case": row["case"]})
            cells[name] = f"{row['seconds']['median'] * 1e6:.3g}"
    names = ["winnow", "winnow, replayed", "prototypes", "scores", "pool", "weights gradient", "gradient", "unclip"]
    columns = [Column("case", align="left"), *map(Column, [*names, "memory floor"])]
    return "Microseconds:\n\n" + to_markdown(list(cases.values()), columns)


def _result(result: dict[str, Any]) -> Iterator[str]:
    """Chart, caption, and folded table of one file."""
    machine = result["machine"]
    place = machine["gpu"] if result["settings"]["device"] == "cuda" else f"{machine['threads']} CPU cores"
    yield from (f"**{place}**, `{result['command']}`:", "")
    if chart := _chart(result):
        yield from (chart, "")
        yield (
            f"Median time relative to {result['against']}, log scale; less is faster. "
            f"Dots: geometric mean over the cases; lines: range over the cases. `results/bench/{result['name']}.json`."
        )
        yield ""
    yield f'??? abstract "All measurements, {len(result["rows"])} rows"'
    yield ""
    yield from (f"    {line}".rstrip() for line in _table(result).splitlines())
    yield from ("", *(f"    Note: {note}" for note in result["notes"]), "")


def _chart(result: dict[str, Any]) -> str:
    """Return a dot plot of the ratios of every method as inline SVG, or nothing without ratios."""
    ratios: dict[str, list[float]] = {}
    for row in result["rows"]:
        if row["ratio"] is not None and not KERNEL.fullmatch(row["rival"]):
            ratios.setdefault(row["rival"], []).append(row["ratio"])
    if len(ratios) < 2:
        return ""
    low, high = (log10(pick(map(pick, ratios.values()))) for pick in (min, max))
    ticks = [10.0**power for power in range(floor(low), floor(high) + 2)]
    if len(ticks) < 4:
        ticks = sorted({tick * step for tick in ticks for step in (1, 2, 5)})
    ticks = [tick for tick in ticks if low - 0.35 < log10(tick) < high + 0.35]
    start, end = min(low, log10(ticks[0])), max(high, log10(ticks[-1]))
    bottom = LINE * len(ratios) + 6

    def x(ratio: float) -> float:
        return round(LABELS + (WIDTH - LABELS - VALUES) * (log10(ratio) - start) / (end - start), 1)

    parts = []
    for tick in ticks:
        style = 'class="one"' if tick == 1 else 'class="grid"'
        parts.append(f'<line {style} x1="{x(tick)}" x2="{x(tick)}" y1="0" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{x(tick)}" y="{bottom + 16}" text-anchor="middle">{tick:g}×</text>')
    for number, (name, values) in enumerate(ratios.items()):
        y, mean = LINE * number + LINE // 2 + 3, geometric_mean(values)
        kind = "winnow" if re.match("winnow|GSP|exact", name) else "other"
        parts.append(f'<text x="{LABELS - 14}" y="{y + 4}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<line class="{kind}" x1="{x(min(values))}" x2="{x(max(values))}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle class="{kind}" cx="{x(mean)}" cy="{y}" r="5"/>')
        parts.append(f'<text x="{WIDTH - VALUES + 24}" y="{y + 4}">{mean:.3g}×</text>')
    label = "; ".join(f"{name} {geometric_mean(values):.3g}" for name, values in ratios.items())
    title = escape(f"Time relative to {result['against']}: {label}", quote=True)
    svg = f'<svg viewBox="0 0 {WIDTH} {bottom + 24}" role="img" aria-label="{title}">{"".join(parts)}</svg>'
    return f'<div class="ratios">{svg}</div>'


def _table(result: dict[str, Any]) -> str:
    """Return all measurements except single kernels, as Markdown."""
    from benchmarks.record import format_bytes, format_seconds
    from winnow.report.tables import Column, columns_of, to_markdown

    rows = []
    for row in result["rows"]:
        if KERNEL.fullmatch(row["rival"]):
            continue
        ratio, memory = row["ratio"], row["peak_bytes"]
        rows.append({
            "case": escaped(row["case"]), "method": escaped(row["rival"]),
            "median": format_seconds(row["seconds"]["median"]), "ratio": None if ratio is None else f"{ratio:.2f}",
            "memory": None if memory is None else format_bytes(memory),
            **{name: f"{value:.4g}" for name, value in row.get("facts", {}).items()},
        })  # fmt: skip
    text = ("case", "method")
    return to_markdown(rows, [Column(c.key, align="left" if c.key in text else "right") for c in columns_of(rows)])
