"""Published numbers: each equals its source, and the check fails when one differs."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    path = ROOT / "scripts/leaderboard.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copy(tmp_path: Path, script: Any) -> Path:
    """Return a copy of all pages and sources."""
    for page in script.pages(ROOT):
        target = tmp_path / page.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(page, target)
    for source in {one.source for one in script.COMPARISONS} | {script.CSV}:
        (tmp_path / source).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / source, tmp_path / source)
    return tmp_path


def test_pages_and_csv_equal_their_sources(script: Any) -> None:
    assert sorted(path.name for path in script.differences()) == []


def test_a_changed_number_is_found_and_put_back(script: Any, copy: Path) -> None:
    page = copy / "docs/index.md"
    text = page.read_text()
    assert "20.7" in text
    page.write_text(text.replace("20.7", "20.8"))
    assert script.differences(copy) == {page: text}


def test_a_changed_source_is_found(script: Any, copy: Path) -> None:
    source = copy / "results/demo.json"
    content = json.loads(source.read_text())
    for run in content["runs"]:
        run["MAP@R"] *= 0.9
    source.write_text(json.dumps(content))
    found = {path.relative_to(copy).as_posix() for path in script.differences(copy)}
    assert {script.CSV, "docs/index.md", "docs/concepts/demo.md"} <= found


def test_differences_are_paired_by_seed(script: Any) -> None:
    runs = json.loads((ROOT / "results/demo.json").read_text())["runs"]
    scores = {name: [100 * r["MAP@R"] for r in runs if r["method"] == name] for name in ("GAP", "GSP + ZSR")}
    row = next(row for row in script.collect() if row.key == "emoji")
    interval = ttest_rel(scores["GSP + ZSR"], scores["GAP"]).confidence_interval(0.95)
    assert row.value == pytest.approx(np.mean(scores["GSP + ZSR"]), abs=1e-4)
    assert row.difference == pytest.approx(row.value - row.baseline_value, abs=1e-3)
    assert (row.low, row.high) == pytest.approx((interval.low, interval.high), abs=1e-4)
    assert (row.n, row.planned) == (3, 3)


def test_rows_of_protocols_are_those_of_the_file(script: Any) -> None:
    for row in script.collect():
        if row.unit != "models":
            continue
        content = json.loads((ROOT / row.source).read_text())
        values = {cell["value"] for line in content["rows"] for cell in line["cells"] if cell["size"] == row.dim}
        assert min(abs(value - row.value) for value in values) < 1e-3
        assert any(
            pair["models"] == row.n and abs(pair["difference"]["mean"] - row.difference) < 1e-3
            for pair in content["pairs"]
        )


def test_one_run_of_each_fold_has_an_interval_over_folds(script: Any) -> None:
    rows = {row.key: row for row in script.collect()}
    new = "references.max_steps=100"
    for key, method, baseline in (
        ("ccp-ms", "ms+ccp", "ms"),
        ("ccp-c2-once", "c2+ccp", "c2"),
        ("ccp-c2", f"c2+ccp,{new}", "c2"),
        ("ccp-c1", f"c1+ccp,{new}", "c1"),
    ):
        runs = json.loads((ROOT / rows[key].source).read_text())["runs"]
        ours, theirs = (
            [100 * r["metrics"]["test"]["MAP@R"] for r in sorted(runs, key=lambda r: r["fold"]) if r["method"] == name]
            for name in (method, baseline)
        )
        interval = ttest_rel(ours, theirs).confidence_interval(0.95)
        assert (rows[key].low, rows[key].high) == pytest.approx((interval.low, interval.high), abs=1e-4)
        assert script.count_text(rows[key]) == "4 folds"
    assert {row.unit for row in rows.values() if row.table == "main"} == {"seeds", "models"}, "several runs of a fold"


def test_recipes_are_the_best_run_beside_the_published_number(script: Any) -> None:
    rows = {row.key: row for row in script.collect()}
    best = rows["recipe-proxy-anchor-cub200"]
    runs = json.loads((ROOT / best.source).read_text())["runs"]
    values = [100 * r["metrics"]["test"]["R@1"] for r in runs if r["method"] == "recipe=proxy-anchor"]
    assert best.value == pytest.approx(max(values), abs=1e-4)
    assert (best.n, best.baseline_value) == (3, 69.9)
    table = script.recipe_table([row for row in rows.values() if row.table == "recipes"], str)
    line = next(line for line in table.splitlines() if line.startswith("| `best`, 256 pixels, CUB"))
    assert line.split(" | ")[2] == "–", "no number is published"


def test_the_csv_names_the_source_of_each_row() -> None:
    with (ROOT / "results/leaderboard.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len({row["key"] for row in rows}) == len(rows)
    assert all((ROOT / row["source"]).is_file() for row in rows)
    assert {"emoji", "cub-frozen", "cub-tuned", "cars-tuned"} <= {row["key"] for row in rows}


def test_numbers_inside_a_line_are_written(script: Any) -> None:
    text = "GSP gains <!-- leaderboard:cub-frozen.points -->?<!-- /leaderboard --> points."
    filled = script.fill(text, script.collect(), str, "page.md")
    assert re.search(r"-->\+\d\.\d<!--", filled)
    assert script.fill(filled, script.collect(), str, "page.md") == filled


@pytest.mark.parametrize(("name", "hint"), [("mian", "main"), ("cub-frozen.diference", "cub-frozen.difference")])
def test_an_unknown_marker_is_answered_with_the_nearest(script: Any, name: str, hint: str) -> None:
    with pytest.raises(SystemExit, match=f"Did you mean {hint}"):
        script.fill(f"<!-- leaderboard:{name} -->x<!-- /leaderboard -->", script.collect(), str, "page.md")


def test_intervals_without_zero_are_bold_and_missing_ones_are_said(script: Any) -> None:
    rows = {row.key: row for row in script.collect()}
    assert script.difference_text(rows["cub-frozen"]).startswith("**+")
    assert not script.difference_text(rows["cub-tuned"]).startswith("**")
    assert "no interval" in script.difference_text(rows["cub-frozen-delf"])
    assert script.count_text(rows["cub-frozen"]) == "8 of 12 models"
