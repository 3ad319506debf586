"""Charts and tables of the benchmarks in `results/bench`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import geometric_mean
from typing import Any

from charts import Mark, chart
from markup import escaped
from published import RESULTS

from benchmarks.record import load

KERNEL = re.compile("winnow, (.*) kernel")
OURS = re.compile("winnow|GSP|exact")


def benchmark(name: str) -> str:
    """Every saved result of a benchmark: a chart of ratios, and all measurements folded."""
    return "\n".join(
        line for path in sorted((RESULTS / "bench").glob(f"{name}-*.json")) for line in _result(load(path))
    )


def kernels() -> str:
    """Time of each kernel of the fused pooling, by case, folded."""
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
    table = to_markdown(list(cases.values()), columns)
    folded = "\n".join(f"    {line}".rstrip() for line in table.splitlines())
    return f'??? abstract "Time of each kernel in microseconds, {len(cases)} cases"\n\n{folded}\n'


def _result(result: dict[str, Any]) -> Iterator[str]:
    """Chart, caption, and folded table of one file."""
    machine = result["machine"]
    threads = machine["threads"]
    place = machine["gpu"] if result["settings"]["device"] == "cuda" else f"{threads} CPU core{'s' * (threads != 1)}"
    yield from (f"**{place}**, `{result['command']}`:", "")
    if chart := _chart(result):
        yield from (chart, "")
        yield (
            f"**{_finding(result)}** Median time relative to {result['against']}, log scale; less is faster. "
            f"Dots: geometric mean over the cases; lines: range over the cases. `results/bench/{result['name']}.json`."
            "\n{ .caption }"
        )
        yield ""
    yield f'??? abstract "All measurements, {len(result["rows"])} rows"'
    yield ""
    yield from (f"    {line}".rstrip() for line in _table(result).splitlines())
    yield from ("", *(f"    Note: {note}" for note in result["notes"]), "")


def _finding(result: dict[str, Any]) -> str:
    """Return the time of winnow relative to its baseline, or of the extremes of other methods relative to winnow."""
    means = {name: geometric_mean(values) for name, values in _ratios(result).items() if name != result["against"]}
    if OURS.match(result["against"]):
        means = {name: mean for name, mean in means.items() if not OURS.match(name)}
        low, high = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
        ends = f"{high} takes {means[high]:.2g} times as long, {low} {means[low]:.2g} times"
        return f"Relative to {result['against']}, {ends}."
    ours = {name: mean for name, mean in means.items() if OURS.match(name)} or means
    way = result["against"].rpartition(", ")[2]
    ours = {name: mean for name, mean in ours.items() if name.endswith(f", {way}")} or ours  # of the same kind
    texts = [f"{name} takes {mean:.3g} times" for name, mean in ours.items()]
    listed = ", ".join(texts[:-1]) + (" and " if len(texts) > 1 else "") + texts[-1]
    return f"{listed[:1].upper()}{listed[1:]} as long as {result['against']}."


def _ratios(result: dict[str, Any]) -> dict[str, list[float]]:
    """Return the ratios of all cases by method, without single kernels."""
    ratios: dict[str, list[float]] = {}
    for row in result["rows"]:
        if row["ratio"] is not None and not KERNEL.fullmatch(row["rival"]):
            ratios.setdefault(row["rival"], []).append(row["ratio"])
    return ratios


def _chart(result: dict[str, Any]) -> str:
    """Return a dot plot of the ratios of every method, or nothing without ratios."""
    ratios = _ratios(result)
    if len(ratios) < 2:
        return ""
    marks = [
        Mark(name, mean := geometric_mean(values), min(values), max(values), f"{mean:.3g}×",
             "gsp" if OURS.match(name) else "gap")
        for name, values in ratios.items()
    ]  # fmt: skip
    against = f"time relative to {result['against']}"
    return chart(marks, label=against.capitalize(), unit="median time, log scale", logarithmic=True)


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
