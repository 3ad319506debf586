"""All studies in one go: failures and missing data end one study, not the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from winnow.cli.main import app
from winnow.errors import ConfigError, DataError
from winnow.studies import STUDIES, Findings, Task, toy_map
from winnow.studies.base import cost
from winnow.studies.methods import Comparison, Method
from winnow.studies.together import Ended, run_studies, summary


def broken(task: Task) -> Findings:
    """A fault."""
    raise RuntimeError("a fault")


def without_data(task: Task) -> Findings:
    """No data."""
    raise DataError("put it there")


def refused(task: Task) -> Findings:
    """No setting."""
    raise ConfigError("another setting")


def test_one_after_another_whatever_happens(tmp_path: Path) -> None:
    studies = {"a": broken, "b": without_data, "toy-map": toy_map.study, "c": refused}
    asked: list[str] = []

    def task(name: str) -> Task:
        asked.append(name)
        return Task(small=True)

    ended = list(run_studies(studies, task, tmp_path))
    assert asked == list(studies)
    assert [one.outcome for one in ended] == ["failed", "left out", "done", "failed"]
    assert "a fault" in ended[0].text
    assert "test_together" in ended[0].text, "where it happened"
    assert ended[1].text == "put it there"
    assert ended[3].text == "another setting"
    assert (tmp_path / "toy_map.json").is_file()
    assert [path.suffix for path in ended[2].paths] == [".csv", ".md", ".svg", ".png", ".json"]
    assert summary(ended).endswith("minutes")
    assert "1 done, 1 left out, 2 failed" in summary(ended)
    assert "2 done, in 2.0 minutes" in summary([Ended("a", 60, "done", ""), Ended("b", 60, "done", "")])


@pytest.mark.parametrize(("studies", "code"), [({"t": toy_map.study, "d": without_data}, 0), ({"x": broken}, 1)])
def test_the_command_runs_all(
    studies: dict[str, object], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("winnow.studies.STUDIES", studies)
    ran = CliRunner().invoke(app, ["study", "all", "--small", "-o", str(tmp_path)])
    assert ran.exit_code == code
    assert ("1 failed" in ran.output) == bool(code)
    error = CliRunner().invoke(app, ["study", "all", "--data", "x"]).exception
    assert isinstance(error, ConfigError)


@pytest.mark.parametrize("name", list(STUDIES))
def test_every_study_says_what_it_costs(name: str) -> None:
    assert cost(STUDIES[name]).endswith(".")


def test_the_list_tells_costs() -> None:
    said = CliRunner().invoke(app, ["study", "--list"]).output
    assert "toy-map: " in said
    assert said.count("Cost: ") == len(STUDIES)


def test_missing_data_is_told_once(tmp_path: Path) -> None:
    compared = Comparison([Method("GAP", ["pooling=gap"])], (0, 1), ["data=no/such/folder"])
    with pytest.raises(DataError, match="no/such/folder"):
        compared.train(Task(True, runs=tmp_path))
    assert compared.train(Task(True, runs=tmp_path, only_finished=True)) == {"GAP": []}
