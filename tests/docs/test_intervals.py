"""Every interval on a page is one of the recorded results, or follows from the recorded runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NUMBER = r"([+−-]?\d+\.\d+)"
INTERVAL = re.compile(rf"{NUMBER}%?(?: points)?\*{{0,2}} \[{NUMBER}, {NUMBER}\]")

Interval = tuple[float, float, float]
"""Mean, lower, and upper limit."""


def intervals(text: str) -> Iterator[tuple[int, Interval]]:
    """Yield the decimals and the values of each interval in a text."""
    for found in INTERVAL.findall(text):
        mean, low, high = (float(one.replace("−", "-")) for one in found)
        yield len(found[0].partition(".")[2]), (mean, low, high)


def in_json(content: Any) -> Iterator[Interval]:
    """Yield the intervals that a result file contains."""
    if isinstance(content, dict):
        for name in ("mean", "margin", "difference"):
            values = tuple(content.get(key) for key in (name, "low", "high"))
            if all(isinstance(one, int | float) for one in values):
                yield values  # type: ignore[misc]
        for one in content.values():
            yield from in_json(one)
    elif isinstance(content, list):
        for one in content:
            yield from in_json(one)
    elif isinstance(content, str):
        yield from (found for _, found in intervals(content))


def values_of(run: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a run that pages compare, in percent; of a curve the mean over its last third."""
    steps = np.array(run.get("step", []))
    late = {key: float(np.mean(np.array(curve)[steps > 2 / 3 * steps.max()]))
            for key, curve in run.items() if key.startswith("test ") and len(curve) == len(steps)}  # fmt: skip
    test = {key: 100 * value for key, value in run.get("metrics", {}).get("test", {}).items()}
    return (
        late
        | test
        | {key: float(value) for key, value in run.items() if isinstance(value, int | float) and key != "seed"}
    )


def from_runs(content: Any) -> Iterator[Interval]:
    """Yield Student's intervals of the differences of any two methods over their seeds."""
    runs: dict[str, dict[int, dict[str, float]]] = {}
    for run in content.get("runs", []) if isinstance(content, dict) else []:
        if "seed" in run and (name := run.get("method", run.get("form"))) is not None:
            runs.setdefault(name, {})[run["seed"]] = values_of(run)
    for first, second in combinations(runs.values(), 2):
        seeds = sorted(first.keys() & second.keys())
        if len(seeds) < 2:
            continue
        for key in set.intersection(*(set(runs[seed]) for runs in (first, second) for seed in seeds)):
            differences = np.array([first[seed][key] - second[seed][key] for seed in seeds])
            mean = float(differences.mean())
            half = float(student.ppf(0.975, len(seeds) - 1) * differences.std(ddof=1) / np.sqrt(len(seeds)))
            yield mean, mean - half, mean + half


@cache
def recorded() -> np.ndarray:
    """Return all intervals of the result files, in both directions, (N, 3)."""
    found: list[Interval] = []
    for file in sorted((ROOT / "results").rglob("*.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        found += [*in_json(content), *from_runs(content)]
    found += [(-mean, -high, -low) for mean, low, high in found]
    return np.array(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_intervals_are_those_of_the_result_files(page: Path) -> None:
    for decimals, found in intervals(page.read_text(encoding="utf-8")):
        # Half a unit of the last digit, and a rounding of a number that is rounded already.
        near = (np.abs(recorded() - found) <= 0.51 * 10.0**-decimals + 1e-9).all(axis=1)
        assert near.any(), f"{found}: no result file has this interval"


def test_an_interval_that_no_file_has_is_found() -> None:
    (_, found), *more = intervals("GSP: **+12.34 [11.11, 13.57]** and 1.5, [1, 2]")
    assert not more
    assert not (np.abs(recorded() - found) <= 0.01).all(axis=1).any()
