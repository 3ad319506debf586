"""Collect the published numbers in results/leaderboard.csv, and write them into README and documentation.

python scripts/leaderboard.py            # write the CSV file and all tables
python scripts/leaderboard.py --check    # fail if a number differs from its source

Each row of the CSV names the file that it was computed from. A page contains a table between the lines
`<!-- leaderboard:NAME -->` and `<!-- /leaderboard -->`, or one number between the same markers inside a line, as
`<!-- leaderboard:cub-frozen.difference -->`. Numbers are percent and points, of the metric that a row names.
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
from winnow.training.recipes import RECIPES

ROOT = Path(__file__).resolve().parents[1]
CSV = "results/leaderboard.csv"
METRIC = "MAP@R"
_BLOCK = re.compile(
    r"(?P<open><!-- leaderboard:(?P<name>[\w.-]+) -->)(?P<body>.*?)(?P<close><!-- /leaderboard -->)", re.DOTALL
)
_NEVER = "–"


@dataclass(frozen=True)
class Row:
    """One comparison: a method, its baseline, and their paired difference, in percent and points.

    The baseline of a recipe is its published number: `baseline_value` is None without one.
    """

    key: str
    table: str
    dataset: str
    backbone: str
    dim: int
    method: str
    metric: str
    value: float
    baseline: str
    baseline_value: float | None
    difference: float | None
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
        baseline: Names of the baseline in the source; empty for a published number or the pretrained network.
        against: Label of the baseline.
        metric: Metric in the source.
    """

    key: str
    table: str
    dataset: str
    backbone: str
    dim: int
    method: str
    names: tuple[str, ...]
    source: str
    baseline: tuple[str, ...] = ()
    against: str = "GAP"
    metric: str = METRIC


GSP_ZSR = ("c2+gsp-zsr", "c2+gsp")
SHARP = ("c2+gsp-zsr,pooling.eps=20", "c2+gsp,pooling.eps=20")
LITE, FROZEN, TUNED = "frozen EfficientNet-Lite0", "frozen ResNet-50", "fine-tuned ResNet-50"
CUB, CARS, EMOJI = "CUB-200-2011", "Cars196", "Emoji collages"
PROTOCOLS, POOLINGS, DEMO = "results/protocols", "results/poolings.json", "results/demo.json"
CUB_FROZEN, CUB_TUNED = f"{PROTOCOLS}/fair-cub200-resnet50-frozen.json", f"{PROTOCOLS}/fair-cub200-resnet50.json"
CCP, RENEWED = f"{PROTOCOLS}/fair3-fixed-cub200-resnet50.json", f"{PROTOCOLS}/fair3-fixed-renewed-cub200-resnet50.json"
EVERY_100, NEW = "references.max_steps=100", "new proxies every 100 steps"
FOLDER = "results/folder_of_photos.json"
FOLDER_ROWS = (
    (60, 20, "CPU", LITE, (0, 1, 2)), (60, 20, "GPU", "fine-tuned EfficientNet-Lite0", (0,)),
    (24, 12, "CPU", LITE, (0, 1)),
)  # fmt: skip
"""Classes, images of each, device, network, and seeds of the runs on folders of photos."""
RECIPE_ROWS = (
    ("best", "`best`, 256 pixels", "recipe=best", "recipes-256", ("cub200", "cars196")),
    ("proxy-anchor", "`proxy-anchor`", "recipe=proxy-anchor", "recipes", ("cub200", "cars196")),
    ("best-60", "`best`, 224 pixels, 60 epochs", "recipe=best,train.max_steps=60,image.resize=256,image.crop=224",
     "recipes", ("cub200", "cars196")),
    ("potential-field", "`potential-field`, rate 1e-4", "recipe=potential-field,train.lr=1e-4,train.max_steps=60",
     "recipes", ("cub200",)),
    ("hist-head", "`hist-head`", "recipe=hist-head", "recipes", ("cub200",)),
)  # fmt: skip
"""Key, label, name in the table, middle of the name of the file, and datasets of the measured recipes."""

COMPARISONS = (
    Comparison("emoji", "main", EMOJI, LITE, 128, "GSP+ZSR", ("GSP + ZSR",), DEMO, ("GAP",)),
    Comparison("cub-frozen", "main", CUB, FROZEN, 512, "GSP+ZSR", GSP_ZSR, CUB_FROZEN, ("c2",)),
    Comparison("cub-tuned", "main", CUB, TUNED, 512, "GSP+ZSR", GSP_ZSR, CUB_TUNED, ("c2",)),
    Comparison("cars-tuned", "main", CARS, TUNED, 512, "GSP+ZSR", GSP_ZSR,
               f"{PROTOCOLS}/fair-cars196-resnet50-bf16.json", ("c2",)),
    Comparison("cub-frozen-delf", "others", CUB, FROZEN, 512, "DeLF", ("c2+delf",), CUB_FROZEN, ("c2",)),
    Comparison("cub-frozen-sharp", "others", CUB, FROZEN, 512, "GSP+ZSR, `pooling.eps=20`", SHARP, CUB_FROZEN, GSP_ZSR,
               "GSP+ZSR"),
    Comparison("ccp-ms", "ccp", CUB, TUNED, 128, "MS+CCP", ("ms+ccp",), CCP, ("ms",), "MS"),
    Comparison("ccp-c2", "ccp", CUB, TUNED, 128, f"C2+CCP, {NEW}", (f"c2+ccp,{EVERY_100}",), RENEWED, ("c2",),
               "C2"),
    Comparison("ccp-c1", "ccp", CUB, TUNED, 128, f"C1+CCP, {NEW}", (f"c1+ccp,{EVERY_100}",), RENEWED, ("c1",),
               "C1"),
    Comparison("ccp-c2-once", "ccp", CUB, TUNED, 128, "C2+CCP, one subproblem", ("c2+ccp",), CCP, ("c2",), "C2"),
    Comparison("gsp-emoji", "gsp", EMOJI, LITE, 128, "GSP", ("GSP",), DEMO, ("GAP",)),
    Comparison("gsp-cub-frozen", "gsp", CUB, FROZEN, 128, "GSP+ZSR", GSP_ZSR, CUB_FROZEN, ("c2",)),
    Comparison("gsp-cub-frozen-sharp", "gsp", CUB, FROZEN, 128, "GSP+ZSR, `pooling.eps=20`", SHARP, CUB_FROZEN, GSP_ZSR,
               "GSP+ZSR"),
    Comparison("gsp-cub-tuned", "gsp", CUB, TUNED, 128, "GSP+ZSR", GSP_ZSR, CUB_TUNED, ("c2",)),
    *(Comparison(f"folder-{classes}-{device.lower()}-{seed}", "folder", f"{classes} bird classes of {images} images",
                 network, 512, f"split {seed}", (f"{classes} classes x {images}, {device}, seed {seed}",), FOLDER,
                 against="pretrained")
      for classes, images, device, network, seeds in FOLDER_ROWS for seed in seeds),
    *(Comparison(f"recipe-{key}-{data}{'' if metric == 'P@1' else '-map'}", "recipes", title, TUNED, 512, label,
                 (name,), f"{PROTOCOLS}/conventional-{file}-{data}-resnet50.json", (), "published", metric)
      for key, label, name, file, sets in RECIPE_ROWS
      for data, title in (("cub200", CUB), ("cars196", CARS)) if data in sets
      for metric in ("P@1", METRIC)),
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
    if one.against == "pretrained":
        found = _read_trained(content, one)
    elif not one.baseline:
        found = _read_published(content, one)
    else:
        found = _read_protocol(content, one) if "pairs" in content else _read_runs(content, one)
    low, high = map(_rounded, (found.difference.low, found.difference.high))
    return Row(
        one.key, one.table, one.dataset, one.backbone, one.dim, one.method, one.metric, round(found.value, 4),
        one.against, _rounded(found.baseline), None if found.baseline is None else _rounded(found.difference.mean),
        low, high, found.n, found.planned, found.unit, one.source,
    )  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """Values of a method and its baseline, and their difference, over n of the planned pairs."""

    value: float
    baseline: float | None
    difference: Estimate
    n: int
    planned: int
    unit: str


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _read_protocol(content: dict[str, Any], one: Comparison) -> Measured:
    rows = {row["method"]: row for row in content["rows"]}
    method, baseline = _first(one.names, rows, one.source), _first(one.baseline, rows, one.source)
    value, against = (float(_cell(rows[name], one)["value"]) for name in (method, baseline))
    if one.dim == content["protocol"]["dim"] and (folds := _fold_differences(content, method, baseline, one.metric)):
        return Measured(value, against, estimate(folds), len(folds), content["protocol"]["parts"], "folds")
    pair = next(
        p for p in content["pairs"]
        if (p["method"], p["against"], p["size"], p["metric"]) == (method, baseline, one.dim, one.metric)
    )  # fmt: skip
    found = pair["difference"]
    difference = Estimate(found["mean"], found["std"], found["low"], found["high"], pair["models"])
    return Measured(value, against, difference, pair["models"], rows[method]["planned"], "models")


def _fold_differences(content: dict[str, Any], method: str, baseline: str, metric: str) -> list[float]:
    """Return the difference of single models in each fold if all folds have one run, else nothing.

    The bootstrap over the models of a fold, which gives the intervals of protocols, needs several runs of each fold.
    """
    runs: dict[str, dict[int, list[float]]] = {method: {}, baseline: {}}
    for run in content["runs"]:
        if run["method"] in runs:
            runs[run["method"]].setdefault(run["fold"], []).append(100 * run["metrics"]["test"][metric])
    if any(len(values) > 1 for folds in runs.values() for values in folds.values()):
        return []
    return [runs[method][fold][0] - runs[baseline][fold][0] for fold in sorted(runs[method].keys() & runs[baseline])]


def _read_runs(content: dict[str, Any], one: Comparison) -> Measured:
    scores: dict[str, dict[int, float]] = {}
    for run in content["runs"]:
        metrics = run["metrics"]["test"] if "metrics" in run else run
        scores.setdefault(run["method"], {})[run["seed"]] = 100 * metrics[one.metric]
    method = scores[_first(one.names, scores, one.source)]
    baseline = scores[_first(one.baseline, scores, one.source)]
    seeds = sorted(method.keys() & baseline.keys())
    difference = estimate([method[seed] - baseline[seed] for seed in seeds])
    return Measured(_mean(method.values()), _mean(baseline.values()), difference, len(seeds), len(method), "seeds")


def _read_published(content: dict[str, Any], one: Comparison) -> Measured:
    rows = {row["method"]: row for row in content["rows"]}
    row = rows[_first(one.names, rows, one.source)]
    value = _cell(row, one)["value"]
    recipe = row["method"].removeprefix("recipe=").partition(",")[0]
    known = RECIPES[recipe].published if one.metric == "P@1" else {}  # R@1 without a gallery
    published = known[content["set"]].value if content["set"] in known else None
    return Measured(value, published, Estimate(value - (published or 0.0)), row["finished"], row["planned"], "runs")


def _read_trained(content: dict[str, Any], one: Comparison) -> Measured:
    runs = {run["run"]: run for run in content["runs"]}
    run = runs[_first(one.names, runs, one.source)]
    value, baseline = (100 * metrics["test"][one.metric] for metrics in (run["metrics"], run["untrained"]))
    return Measured(value, baseline, Estimate(value - baseline), 1, 1, "run")


def _cell(row: dict[str, Any], one: Comparison) -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in row["cells"] if (c["size"], c["metric"]) == (one.dim, one.metric))
    return found


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


def _number(value: float | None) -> str:
    if value is None:
        return _NEVER
    text = f"{value:.1f}".replace("-", "−")
    return "0.0" if text == "−0.0" else text


def difference_text(row: Row) -> str:
    """Return the difference with its 95% interval, bold if the interval excludes 0."""
    if row.difference is None:
        return _NEVER
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
    lines.insert(sum(row.value > (first.baseline_value or 0.0) for row in ranked), gap)
    return _table(["method", METRIC, "difference from GAP [95% interval]", "n", "source"], 2, lines)


def folder_table(rows: Sequence[Row], cite: Cite) -> str:
    """Return trained models against the pretrained network, one run each."""
    return _table(
        ["folder, network, split", "pretrained", "trained", "difference", "source"], 3,
        ([f"{row.dataset}, {row.backbone}, {row.method}", _number(row.baseline_value), _number(row.value),
          _signed(row.difference or 0.0), cite(row.source)] for row in rows),
    )  # fmt: skip


def recipe_table(rows: Sequence[Row], cite: Cite) -> str:
    """Return R@1 of recipes with the published number, and their MAP@R."""
    maps = {(row.method, row.dataset): row.value for row in rows if row.metric == METRIC}
    return _table(
        ["recipe, dataset", "R@1", "published", METRIC, "n", "source"], 3,
        ([f"{row.method}, {row.dataset}", _number(row.value), _number(row.baseline_value),
          _number(maps[row.method, row.dataset]), count_text(row), cite(row.source)]
         for row in rows if row.metric != METRIC),
    )  # fmt: skip


TABLES: dict[str, Callable[[Sequence[Row], Cite], str]] = {
    "main": main_table, "others": method_table, "poolings": short_table, "demo": short_table, "gsp": method_table,
    "ccp": method_table, "more": method_table, "folder": folder_table, "recipes": recipe_table,
}  # fmt: skip
PARTS = {"more": ("others", "ccp")}
"""Tables whose rows are those of several tables."""
CELLS: dict[str, Callable[[Row], str]] = {
    "value": lambda row: _number(row.value), "baseline": lambda row: _number(row.baseline_value),
    "difference": difference_text, "points": lambda row: _signed(row.difference or 0.0), "n": count_text,
}  # fmt: skip


def fill(text: str, rows: Sequence[Row], cite: Cite, page: str) -> str:
    """Return a page with all its marked tables and numbers replaced.

    Raises:
        SystemExit: If a marker names no table, row, or cell.
    """

    def replace(found: re.Match[str]) -> str:
        name = found["name"]
        if name in TABLES:
            body = f"\n\n{TABLES[name]([row for row in rows if row.table in PARTS.get(name, (name,))], cite)}\n\n"
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
