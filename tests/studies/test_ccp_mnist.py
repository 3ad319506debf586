"""The study of CCP in the plane, at a size that takes seconds; and what every study writes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.data.test_mnist import idx
from winnow.cli.main import app
from winnow.errors import ConfigError
from winnow.studies import STUDIES, Task, ccp_mnist, write_findings
from winnow.studies.base import markdown_rows
from winnow.studies.ccp_mnist_report import cover


def digits(folder: Path) -> None:
    """Ten classes told apart by which pixels are bright."""
    rng = np.random.default_rng(0)
    shapes = rng.integers(0, 256, (10, 28, 28))
    for part, count in (("train", 400), ("t10k", 60)):
        labels = rng.permutation(np.arange(count) % 10).astype(np.uint8)
        pixels = (0.7 * shapes[labels] + rng.integers(0, 76, (count, 28, 28))).astype(np.uint8)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(pixels))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))


def test_the_study_tells_of_every_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits(tmp_path)
    whole = ccp_mnist.make_config

    monkeypatch.setattr(ccp_mnist, "make_config", lambda words, _: whole([*words, "train.eval_steps=2"], 12))
    monkeypatch.setitem(ccp_mnist.METHODS, "CCP", ["references=ccp", "references.patience=1"])
    monkeypatch.setattr(ccp_mnist, "VALIDATION", 100)
    monkeypatch.setattr(ccp_mnist, "SEEDS", 1)
    findings = STUDIES["ccp-mnist"](Task(small=True, data=tmp_path, runs=tmp_path / "runs"))
    with monkeypatch.context() as none:
        none.setattr(ccp_mnist, "solve", None)  # kept runs are read
        assert STUDIES["ccp-mnist"](Task(small=True, data=tmp_path, runs=tmp_path / "runs")).rows == findings.rows
    ccp = [row for row in findings.rows if row["method"] == "CCP"]
    assert sum(row["steps"] for row in ccp) == 12
    assert all(0 < row["radius, converged"] < 2 for row in ccp)
    assert all(row["distance, converged"] < row["radius, converged"] for row in ccp)
    assert [row["radius, next"] is None for row in ccp] == [False] * (len(ccp) - 1) + [True]
    assert {row["method"] for row in findings.rows} == set(ccp_mnist.METHODS)
    paths = write_findings("ccp_mnist", findings, tmp_path / "out")
    assert {path.suffix for path in paths} == {".csv", ".md", ".svg", ".png", ".json"}
    with (tmp_path / "out" / "ccp_mnist.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(findings.rows)
    content = json.loads((tmp_path / "out" / "ccp_mnist.json").read_text())
    assert content["rows"] == findings.rows
    assert "commit" in content
    assert findings.text in (tmp_path / "out" / "ccp_mnist.md").read_text()


def test_covers_are_means_over_classes() -> None:
    labels = np.array([0, 0, 1, *range(2, 10)])
    points = torch.zeros(11, 2)
    points[0] = torch.tensor([3.0, 4.0])  # class 0: distances 5 and 0
    points[2] = torch.tensor([0.0, 1.0])  # class 1: 1; all others: 0
    radius, distance = cover(labels, points, torch.zeros(10, 2, 2))
    assert radius == pytest.approx((5 + 1) / 10)
    assert distance == pytest.approx((2.5 + 1) / 10)
    assert cover(labels, points, None) == (None, None)


def test_tables_show_what_is_missing() -> None:
    text = markdown_rows([{"a": 1, "b": 0.12345}, {"a": None, "b": "x|y"}], ["a", "b"])
    assert markdown_rows([], ["|a|"]).startswith("| \\|a\\| |\n|---|")
    assert text.splitlines()[2:] == ["| 1 | 0.1235 |", "| – | x\\|y |"]


def test_numbers_of_a_column_have_as_many_decimals() -> None:
    rows = [{"a": 20.0, "b": 0.001234, "c": 5, "d": 1e-7}, {"a": 20.12, "b": 12.5, "c": 7, "d": 2.5}, {"a": 9.3}]
    text = markdown_rows(rows, ["a", "b", "c", "d"])
    assert text.splitlines()[2:] == [
        "| 20.00 | 0.001234 | 5 | 1e-07 |",
        "| 20.12 | 12.5 | 7 | 2.5 |",
        "| 9.30 | – | – | – |",
    ]


@pytest.mark.parametrize("name", list(STUDIES))
def test_every_study_says_what_it_is(name: str) -> None:
    assert (STUDIES[name].__doc__ or "").splitlines()[0].endswith(".")


def test_the_command_lists_studies_and_refuses_others() -> None:
    said = CliRunner().invoke(app, ["study", "--list"])
    assert said.exit_code == 0
    assert all(f"{name}: " in said.output for name in STUDIES)
    for words in (["study"], ["study", "ccp-mnits"]):
        error = CliRunner().invoke(app, words).exception
        assert isinstance(error, ConfigError)
        assert "ccp-mnist" in str(error)
