"""Collect the published numbers in results/leaderboard.csv, and write them into README and documentation.

python scripts/leaderboard.py            # write the CSV file and all tables
python scripts/leaderboard.py --check    # fail if a number differs from its source

Each row of the CSV names the file that it was computed from. A page contains a table between the lines
`<!-- leaderboard:NAME -->` and `<!-- /leaderboard -->`, or one number between the same markers inside a line, as
`<!-- leaderboard:cub-frozen.difference -->`. Numbers are MAP@R in percent, and points.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from winnow.report.claims import Estimate, estimate

ROOT = Path(__file__).resolve().parents[1]
CSV = "results/leaderboard.csv"
METRIC = "MAP@R"
_BLOCK = re.compile(
    r"(?P<open><!-- leaderboard:(?P<name>[\w.-]+) -->)(?P<body>.*?)(?P<close><!-- /leaderboard -->)", re.DOTALL
)
_NEVER = "–"


@dataclass(frozen=True)
class Row:
    """One comparison: a method, its baseline, and their paired difference, in percent and points."""

    key: str
    table: str
    dataset: str
    backbone: str
    dim: int
    method: str
    value: float
    baseline: str
    baseline_value: float
    difference: float
    low: float | None
    high: float | None
    n: int
    planned: int
    unit: str
    source: str


@dataclass(frozen=True)
class Comparison:
    """Where the numbers of a row come from.

    Args:
        key: Name of the row in pages.
        table: Table that lists it.
        dataset: Dataset with its condition.
        backbone: Network, and whether it was fine-tuned.
        dim: Size of the embedding.
        method: Label of the method.
        names: Names of the method in the source; the first that occurs is read.
        source: File below the repository.
        baseline: Names of the baseline in the source.
    """

    key: str
    table: str
    dataset: str
    backbone: str
    dim: int
    method: str
    names: tuple[str, ...]
    source: str
    baseline: tuple[str, ...]


GSP_ZSR = ("c2+gsp-zsr", "c2+gsp")
SHARP = ("c2+gsp-zsr,pooling.eps=20", "c2+gsp,pooling.eps=20")
LITE, FROZEN, TUNED = "frozen EfficientNet-Lite0", "frozen ResNet-50", "fine-tuned ResNet-50"
CUB, CARS, EMOJI = "CUB-200-2011", "Cars196", "Emoji collages"
PROTOCOLS, POOLINGS, DEMO = "results/protocols", "results/poolings.json", "results/demo.json"

COMPARISONS = (
    Comparison("emoji", "main", EMOJI, LITE, 128, "GSP+ZSR", ("GSP + ZSR",), DEMO, ("GAP",)),
    Comparison("cub-frozen", "main", CUB, FROZEN, 512, "GSP+ZSR", GSP_ZSR,
               f"{PROTOCOLS}/fair-cub200-resnet50-frozen.json", ("c2",)),
    Comparison("cub-tuned", "main", CUB, TUNED, 512, "GSP+ZSR", GSP_ZSR,
               f"{PROTOCOLS}/fair-cub200-resnet50.json", ("c2",)),
    Comparison("cars-tuned", "main", CARS, TUNED, 512, "GSP+ZSR", GSP_ZSR,
               f"{PROTOCOLS}/fair-cars196-resnet50-bf16.json", ("c2",)),
    Comparison("cub-frozen-delf", "others", CUB, FROZEN, 512, "DeLF", ("c2+delf",),
               f"{PROTOCOLS}/fair-cub200-resnet50-frozen.json", ("c2",)),
    Comparison("cub-frozen-sharp", "others", CUB, FROZEN, 512, "GSP+ZSR, `pooling.eps=20`", SHARP,
               f"{PROTOCOLS}/fair-cub200-resnet50-frozen.json", GSP_ZSR),
    *(Comparison(f"emoji-{key}", "poolings", EMOJI, LITE, dim, label, (f"{name}, C2",), POOLINGS, ("GAP, C2",))
      for key, label, name, dim in (
          ("netvlad", "NetVLAD, 8192-D", "NetVLAD 64x128", 8192), ("delf", "DeLF", "DeLF", 128),
          ("gsp-only", "GSP", "GSP", 128), ("gsp-zsr", "GSP+ZSR", "GSP + ZSR", 128),
          ("solar", "SOLAR", "SOLAR", 128), ("gmp", "GMP (projected)", "GMP, projected", 128),
          ("gsop", "GSoP", "GSoP", 128), ("weldon", "WELDON", "WELDON", 128), ("gem", "GeM", "GeMean", 128),
          ("crow", "CroW", "CroW", 128))),
)  # fmt: skip

DEMO_METHODS = ("GMP (projected)", "GSP", "GSP + ZSR")


def collect(root: Path = ROOT) -> list[Row]:
    """Return all rows, computed from their sources.

    Raises:
        SystemExit: If a source lacks a method.
    """
    rows = [read(root, one) for one in COMPARISONS]
    for name in DEMO_METHODS:
        label = name.replace(" + ", "+")
        key = "demo-" + re.sub(r"\W+", "-", label.lower()).strip("-")
        rows.append(
            read(root, Comparison(key, "demo", EMOJI, LITE, 128, label, (name,), "results/demo.json", ("GAP",)))
        )
    return rows


def read(root: Path, one: Comparison) -> Row:
    """Return the row of a comparison from its source: a protocol, a study, or the demo."""
    content = json.loads((root / one.source).read_text(encoding="utf-8"))
    measure = _read_protocol if "pairs" in content else _read_runs
    value, baseline, difference, planned = measure(content, one)
    unit = "models" if "pairs" in content else "seeds"
    assert difference.n is not None, "a paired difference has a number of pairs"
    shown = [None if bound is None else round(bound, 4) for bound in (difference.low, difference.high)]
    return Row(
        one.key, one.table, one.dataset, one.backbone, one.dim, one.method, round(value, 4),
        "GAP" if one.baseline != GSP_ZSR else "GSP+ZSR", round(baseline, 4), round(difference.mean, 4), *shown,
        difference.n, planned, unit, one.source,
    )  # fmt: skip


def _read_protocol(content: dict[str, Any], one: Comparison) -> tuple[float, float, Estimate, int]:
    rows = {row["method"]: row for row in content["rows"]}
    method, baseline = _first(one.names, rows, one.source), _first(one.baseline, rows, one.source)

    def value(name: str) -> float:
        cells = rows[name]["cells"]
        return float(next(c["value"] for c in cells if c["size"] == one.dim and c["metric"] == METRIC))

    pair = next(
        p for p in content["pairs"]
        if (p["method"], p["against"], p["size"], p["metric"]) == (method, baseline, one.dim, METRIC)
    )  # fmt: skip
    found = pair["difference"]
    difference = Estimate(found["mean"], found["std"], found["low"], found["high"], pair["models"])
    return value(method), value(baseline), difference, rows[method]["planned"]


def _read_runs(content: dict[str, Any], one: Comparison) -> tuple[float, float, Estimate, int]:
    scores: dict[str, dict[int, float]] = {}
    for run in content["runs"]:
        metrics = run["metrics"]["test"] if "metrics" in run else run
        scores.setdefault(run["method"], {})[run["seed"]] = 100 * metrics[METRIC]
    method = scores[_first(one.names, scores, one.source)]
    baseline = scores[_first(one.baseline, scores, one.source)]
    seeds = sorted(method.keys() & baseline.keys())
    difference = estimate([method[seed] - baseline[seed] for seed in seeds])
    return _mean(method.values()), _mean(baseline.values()), difference, len(method)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def _first(names: Sequence[str], known: Iterable[str], source: str) -> str:
    found = next((name for name in names if name in known), None)
    if found is None:
        raise SystemExit(f"{source}: none of the methods {', '.join(names)}. Known: {', '.join(known)}.")
    return found


# ---- text


def to_csv(rows: Sequence[Row]) -> str:
    """Return rows as CSV."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, [field.name for field in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return buffer.getvalue()


def _signed(value: float) -> str:
    text = f"{value:+.1f}".replace("-", "−")
    return "0.0" if text in ("+0.0", "−0.0") else text


def _number(value: float) -> str:
    text = f"{value:.1f}".replace("-", "−")
    return "0.0" if text == "−0.0" else text


def difference_text(row: Row) -> str:
    """Return the difference with its 95% interval, bold if the interval excludes 0."""
    if row.low is None or row.high is None:
        return f"{_signed(row.difference)} (no interval)"
    text = f"{_signed(row.difference)} [{_number(row.low)},\u00a0{_number(row.high)}]"  # the interval does not wrap
    return f"**{text}**" if row.low > 0 or row.high < 0 else text


def count_text(row: Row) -> str:
    """Return the number of pairs, and of all planned runs if some are missing."""
    return f"{row.n} {row.unit}" if row.n == row.planned else f"{row.n} of {row.planned} {row.unit}"


Cite = Callable[[str], str]


def _table(headings: Sequence[str], right: int, lines: Iterable[Sequence[str]]) -> str:
    rule = ["---" if not 0 < column <= right else "--:" for column in range(len(headings))]
    return "\n".join("| " + " | ".join(line) + " |" for line in (headings, rule, *lines))


def main_table(rows: Sequence[Row], cite: Cite) -> str:
    """Return GAP and GSP+ZSR on all datasets."""
    return _table(
        ["dataset, backbone", "GAP", "GSP+ZSR", "difference [95% interval]", "n", "source"], 3,
        ([f"{row.dataset}, {row.backbone}, {row.dim}-D", _number(row.baseline_value), _number(row.value),
          difference_text(row), count_text(row), cite(row.source)] for row in rows),
    )  # fmt: skip


def method_table(rows: Sequence[Row], cite: Cite) -> str:
    """Return methods with their difference from a baseline, highest first."""
    lines = [
        [
            f"{row.method}, {row.dataset}, {row.backbone}", _number(row.value),
            f"{row.baseline} {_number(row.baseline_value)}", difference_text(row), count_text(row), cite(row.source),
        ]
        for row in sorted(rows, key=lambda row: -row.value)
    ]  # fmt: skip
    return _table(["method", METRIC, "baseline", "difference [95% interval]", "n", "source"], 1, lines)


def short_table(rows: Sequence[Row], cite: Cite) -> str:
    """Return methods on one dataset with their difference from GAP, highest first."""
    first = rows[0]
    gap = ["GAP", _number(first.baseline_value), _NEVER, count_text(first), cite(first.source)]
    ranked = sorted(rows, key=lambda row: -row.value)
    lines = [
        [row.method, _number(row.value), difference_text(row), count_text(row), cite(row.source)] for row in ranked
    ]
    lines.insert(sum(row.value > first.baseline_value for row in ranked), gap)
    return _table(["method", METRIC, "difference from GAP [95% interval]", "n", "source"], 2, lines)


TABLES: dict[str, Callable[[Sequence[Row], Cite], str]] = {
    "main": main_table, "others": method_table, "poolings": short_table, "demo": short_table,
}  # fmt: skip
CELLS: dict[str, Callable[[Row], str]] = {
    "value": lambda row: _number(row.value), "baseline": lambda row: _number(row.baseline_value),
    "difference": difference_text, "points": lambda row: _signed(row.difference), "n": count_text,
}  # fmt: skip


def fill(text: str, rows: Sequence[Row], cite: Cite, page: str) -> str:
    """Return a page with all its marked tables and numbers replaced.

    Raises:
        SystemExit: If a marker names no table, row, or cell.
    """

    def replace(found: re.Match[str]) -> str:
        name = found["name"]
        if name in TABLES:
            body = f"\n\n{TABLES[name]([row for row in rows if row.table == name], cite)}\n\n"
        else:
            key, _, cell = name.partition(".")
            row = next((row for row in rows if row.key == key), None)
            if row is None or cell not in CELLS:
                known = [*TABLES, *(f"{row.key}.{cell}" for row in rows for cell in CELLS)]
                near = difflib.get_close_matches(name, known, 1)
                hint = f" Did you mean {near[0]}?" if near else ""
                raise SystemExit(f"{page}: unknown leaderboard marker {name}.{hint}")
            body = CELLS[cell](row)
        return found["open"] + body + found["close"]

    return _BLOCK.sub(replace, text)


def pages(root: Path) -> list[Path]:
    """Return README and all documentation pages."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def cite_from(page: Path, root: Path) -> Cite:
    """Return the citation of a source on a page: README links to it, pages of the site name it."""
    if page.parent == root:
        return lambda source: f"[{Path(source).stem}]({source})"
    return lambda source: f"`{source}`"


def differences(root: Path = ROOT) -> dict[Path, str]:
    """Return each file whose text differs from its sources, with the right text."""
    rows = collect(root)
    wanted = {root / CSV: to_csv(rows)}
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        wanted[page] = fill(text, rows, cite_from(page, root), page.name)
    return {
        path: text for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a number differs")
    check = parser.parse_args().check
    found = differences()
    for path, text in found.items():
        if check:
            print(f"{path.relative_to(ROOT)}: differs from its sources. Run python scripts/leaderboard.py.")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: written")
    sys.exit(1 if check and found else 0)


if __name__ == "__main__":
    main()
