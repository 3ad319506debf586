"""`--quick`: small sizes, results in a folder of their own, and an index of emoji."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import QUICK, QUICK_OUT, app, main
from tests.benchmarks.conftest import RunBenchmark


def test_quick_replaces_defaults_that_exist() -> None:
    commands = {one.callback.__name__: one.callback for one in app.registered_commands if one.callback is not None}
    assert set(QUICK) == set(commands)
    for name, values in QUICK.items():
        parameters = inspect.signature(commands[name]).parameters
        assert {"out_folder", *values} <= set(parameters)
        for key, value in values.items():
            default = parameters[key].default.default
            assert type(value) is type(default) or isinstance(default, float)
            assert value != default


def test_quick_results_have_ratios_and_a_folder_of_their_own(
    run_benchmark: RunBenchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_benchmark("pooling --quick --device cpu --size 9x8x4 --batch 2")
    (file,) = tmp_path.rglob("*.json")
    assert file.parent == tmp_path / QUICK_OUT
    found = json.loads(file.read_text())
    assert found["settings"]["repeats"] == QUICK["pooling"]["repeats"]
    assert all(row["ratio"] is not None for row in found["rows"])
    run_benchmark("pooling --quick --repeats 1 --device cpu --size 9x8x4 --batch 2")
    assert json.loads(file.read_text())["settings"]["repeats"] == 1, "an option that is given stays"


@pytest.mark.slow
def test_quick_makes_the_index_that_is_not_named(
    run_benchmark: RunBenchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("benchmarks.__main__.EMOJI", 12)
    run_benchmark("index --quick --images 2 --queries 2")
    (file,) = (tmp_path / QUICK_OUT).glob("index-*.json")
    assert {row["case"] for row in json.loads(file.read_text())["rows"]} >= {"2 images in 12"}


def test_an_index_is_asked_for_without_quick(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "index"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "INDEX: not set" in capsys.readouterr().err
