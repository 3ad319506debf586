"""Numbers of whole runs in tables: last thirds, controls of CCP, budgets, and the figure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.protocols.finished import finish, make_request
from tests.protocols.test_methods import compared
from winnow.cli.main import app
from winnow.errors import ConfigError
from winnow.protocols import ProtocolRun, ProtocolTable, make_table, read_table, write_table
from winnow.protocols.plan import ProtocolRequest, rerun_command
from winnow.protocols.render import render_csv, render_markdown
from winnow.report.figures import method_curves
from winnow.training import ValidationEntry

EVERY, STEPS = 100, 900


def metrics(value: float) -> dict[str, float]:
    return {"MAP@R": value, "P@1": value + 0.1}


def curve(run: ProtocolRun, *, raw: bool, test: bool = True) -> list[ValidationEntry]:
    """Return a log whose four curves are different functions of method, fold, run, and step."""
    base = sum(run.method.encode()) % 7 / 50 + run.fold / 20 + run.run / 100
    entries = []
    for step in range(0, STEPS + 1, EVERY):
        late = raw and step > 0
        values = [metrics(base + step / 4000 + shift) for shift in (0.0, 0.01, 0.02, 0.03)]
        entries.append(
            ValidationEntry(
                step,
                float(step),
                {"loss": 1.0} if step else {},
                values[0],
                None,
                values[1] if late else {},
                values[2] if test else {},
                values[3] if late and test else {},
            )
        )
    return entries


def finished(
    protocol: str, folder: Path, *methods: str, averaged: Sequence[str] = (), **more: Any
) -> tuple[ProtocolRequest, list[ProtocolRun], ProtocolTable]:
    request = make_request(protocol, folder, *methods, **more)
    runs = request.plan()
    for run in runs:
        log = curve(run, raw=run.method in averaged, test=protocol == "fair")
        config = run.planned.config.model_dump(mode="json")
        finish(run, 0.2 + 0.01 * run.run + 0.02 * run.fold, history=log, steps=STEPS, config=config)
    return request, runs, make_table(request, runs)


def late_mean(runs: Sequence[ProtocolRun], method: str, group: str, metric: str) -> float:
    """Return the mean over runs and over the validations at the steps 700, 800, and 900."""
    logs = [run.planned.run_dir.read_history() for run in runs if run.method == method]
    return 100 * float(np.mean([[getattr(log[at], group)[metric] for at in (7, 8, 9)] for log in logs]))


def value(table: ProtocolTable, method: str, metric: str, dim: int = 4) -> float:
    row = next(row for row in table.rows if row.method == method)
    cell = row.find(dim, metric)
    assert cell is not None
    return cell.estimate.mean


def test_the_last_third_is_the_mean_over_its_validations_and_runs(tmp_path: Path) -> None:
    _, runs, table = finished("fair", tmp_path, "c2", "c2+average", averaged=["c2+average"])
    for metric in ("MAP@R", "P@1"):
        for method in ("c2", "c2+average"):
            own = value(table, method, f"last third {metric}")
            assert own == pytest.approx(late_mean(runs, method, "test", metric))
        raw = value(table, "c2+average", f"last third raw {metric}")
        assert raw == pytest.approx(late_mean(runs, "c2+average", "raw_test", metric))
        (pair,) = [one for one in table.pairs if one.metric == f"last third {metric}"]
        difference = late_mean(runs, "c2+average", "test", metric) - late_mean(runs, "c2", "test", metric)
        assert pair.difference.mean == pytest.approx(difference)
    assert table.rows[0].find(4, "last third raw MAP@R") is None
    assert table.rows[0].find(16, "last third MAP@R") is None  # concatenated embeddings have no curve
    assert (table.rows[0].steps, table.rows[0].trained_steps) == (100, STEPS)


def test_pages_and_files_hold_both_numbers(tmp_path: Path) -> None:
    _, _, table = finished("fair", tmp_path, "c2", "c2+average", averaged=["c2+average"])
    page = render_markdown(table)
    late = page[page.index("## Last third") : page.index("## Paired")]
    for name in ("c2", "c2+average"):
        (line,) = [line for line in late.splitlines() if line.startswith(f"| {name} |")]
        assert f"{value(table, name, 'last third MAP@R'):.2f}" in line
        assert f"| {STEPS} |" in line
    paired = page[page.index("## Paired") :]
    assert "| 4-D last third MAP@R |" in paired
    assert "| 4-D MAP@R |" in paired
    row = next(csv.DictReader(io.StringIO(render_csv(table))))
    assert float(row["4-D last third P@1"]) == pytest.approx(value(table, "c2", "last third P@1"), abs=1e-4)
    assert row["steps"] == str(STEPS)
    write_table(table, tmp_path)
    assert read_table(tmp_path / "table.json") == table


@pytest.mark.parametrize(("protocol", "group"), [("tuning", "val"), ("conventional", "val")])
def test_where_the_reported_classes_validate_their_curve_is_validation(
    protocol: str, group: str, tmp_path: Path
) -> None:
    _, runs, table = finished(protocol, tmp_path, "c2", "ms")
    for method in ("c2", "ms"):
        assert value(table, method, "last third MAP@R") == pytest.approx(late_mean(runs, method, group, "MAP@R"))
        cell = next(cell for cell in table.rows[0].cells if cell.metric == "last third P@1")
        assert cell.value == cell.estimate.mean  # of all runs, also where the best run is reported


def test_a_run_without_a_curve_leaves_the_method_without_a_last_third(tmp_path: Path) -> None:
    request = make_request("fair", tmp_path, "c2", "ms")
    runs = request.plan()
    for run in runs:
        lacks = run.method == "c2" and run.fold == 2
        finish(run, 0.2 + 0.01 * run.run, history=() if lacks else curve(run, raw=False), steps=STEPS)
    table = make_table(request, runs)
    assert table.rows[0].find(4, "last third MAP@R") is None
    assert table.rows[1].find(4, "last third MAP@R") is not None
    assert not [pair for pair in table.pairs if "last third" in pair.metric]
    assert table.rows[0].find(4, "MAP@R") is not None


def test_imported_runs_keep_their_curves(tmp_path: Path) -> None:
    request, runs, table = finished("conventional", tmp_path / "first", "c2", "c2+average", averaged=["c2+average"])
    write_table(table, request.folder)
    again = make_request("conventional", tmp_path / "second", "c2", "c2+average")
    planned = again.plan()
    assert again.import_results(planned, tmp_path / "first" / "table.json") == 6
    for one, other in zip(runs, planned, strict=True):
        logs = [run.planned.run_dir.read_history() for run in (one, other)]
        for a, b in zip(*logs, strict=True):
            assert (a.step, a.val) == (b.step, pytest.approx(b.val, abs=1e-6))
            assert a.raw == pytest.approx(b.raw, abs=1e-6) or a.step == 0
    for metric in ("last third MAP@R", "last third raw P@1"):
        assert value(make_table(again, planned), "c2+average", metric) == pytest.approx(
            value(table, "c2+average", metric), abs=1e-3
        )


# Controls of CCP


def test_ccp_is_compared_with_its_control() -> None:
    assert compared("c2", "c2+average", "c2+ccp") == [
        ("c2+average", "c2"), ("c2+ccp", "c2"), ("c2+ccp", "c2+average"),
    ]  # fmt: skip
    assert ("c2+gsp-zsr+ccp", "c2+average+gsp-zsr") in compared("c2", "c2+average+gsp-zsr", "c2+gsp-zsr+ccp")
    assert ("c2+ccp+average", "c2+average") in compared("c2", "c2+average", "c2+ccp", "c2+ccp+average")
    assert compared("c2+average", "c2+ccp") == [("c2+ccp", "c2+average")]
    rate, proxies = "train.lr=1e-4", "references.proxies_per_class=2"
    control = f"c2+average,{rate}"
    assert (f"c2+ccp,{rate},{proxies}", control) in compared("c2", control, f"c2+ccp,{rate},{proxies}")


def test_a_table_of_ccp_names_the_control_that_it_lacks(tmp_path: Path) -> None:
    _, _, table = finished("fair", tmp_path / "a", "c2", "c2+ccp")
    assert "`c2+average`" in render_markdown(table)
    _, _, table = finished("fair", tmp_path / "b", "c2", "c2+ccp", "c2+average")
    assert "control" not in render_markdown(table)
    _, _, table = finished("fair", tmp_path / "c", "c2", "c2+ccp", budget="fixed")
    assert "control" not in render_markdown(table)  # c2 itself: all methods have averaged weights
    _, _, table = finished("fair", tmp_path / "d", "ms+ccp-s", budget="fixed")
    assert "`ms`" in render_markdown(table)


# Budgets


@pytest.mark.parametrize("protocol", ["fair", "conventional", "tuning"])
@pytest.mark.parametrize("method", ["c2", "c2+ccp"])
def test_a_fixed_budget_ends_with_its_cosine(protocol: str, method: str, tmp_path: Path) -> None:
    request = make_request(protocol, tmp_path, method, budget="fixed")
    for run in request.plan():
        config = run.planned.config
        assert (config.train.schedule, config.train.select_weights, config.train.average) == ("cosine", "last", 0.998)
        assert config.train.max_steps == 3000
        assert config.train.test_curve == (protocol == "fair")
    assert "--budget fixed" in rerun_command(request)
    early = make_request(protocol, tmp_path, method)
    assert "--budget" not in rerun_command(early)
    first = early.plan()[0].planned.config
    assert (first.train.select_weights, first.train.average) == ("best", 0)
    assert first.train.schedule == ("plateau" if protocol == "conventional" else "constant")
    overridden = make_request(protocol, tmp_path, method, budget="fixed", overrides=["dim=4", "train.max_steps=50"])
    assert overridden.plan()[0].planned.config.train.max_steps == 50


def test_the_control_of_a_fixed_budget_is_the_loss_itself(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"c2 and c2\+average have the same settings"):
        make_request("fair", tmp_path, "c2", "c2+average", budget="fixed").plan()


def test_an_unknown_budget_is_an_error() -> None:
    error = CliRunner().invoke(app, ["protocol", "fair", "cub", "c2", "--budget", "fix"]).exception
    assert isinstance(error, ConfigError)
    assert "did you mean 'fixed'?" in str(error)


# The figure


def history(values: Mapping[int, float], key: str) -> list[dict[str, float]]:
    return [{"step": step, "MAP@R": 0.5, key: value} for step, value in values.items()]


def test_curves_are_means_with_bands_over_common_steps() -> None:
    runs = {
        "c2": [history({0: 0.1, 10: 0.2, 20: 0.3}, "test MAP@R"), history({0: 0.2, 10: 0.4}, "test MAP@R")],
        "ms": [history({0: 0.1, 10: 0.2, 20: 0.6}, "test MAP@R")],
    }
    val, test = method_curves(runs, {"c2": 5, "ms": 20}).axes
    assert "not used for selection" in test.get_title(loc="left")
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in test.get_lines()]
    assert drawn[0] == ([0, 10], pytest.approx([15, 30]))
    assert drawn[1] == ([5], pytest.approx([22.5]))  # the selected step
    assert drawn[2] == ([0, 10, 20], pytest.approx([10, 20, 60]))
    (band,) = test.collections  # a single run has none
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.max() == pytest.approx(30 + 100 * np.std([0.2, 0.4], ddof=1))
    assert len(val.collections) == 1


def test_the_figure_lies_next_to_the_table(tmp_path: Path) -> None:
    _, _, table = finished("fair", tmp_path, "c2", "c2+average", averaged=["c2+average"])
    paths = write_table(table, tmp_path)
    text = next(path for path in paths if path.name == "curves.svg").read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert "Test MAP@R" in text
    assert "c2+average" in text
    bare = {**json.loads(table.to_json()), "runs": []}
    assert "curves.svg" not in {path.name for path in write_table(ProtocolTable.from_dict(bare), tmp_path / "bare")}
