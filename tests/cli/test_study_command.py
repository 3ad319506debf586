"""`winnow study`: the list of studies, one study with its files, and rejected arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Winnow
from tests.conftest import MakeFolder
from tests.studies.grids import tiny_grid
from winnow.studies import STUDIES, Variant
from winnow.studies.settings import pooling

pytestmark = pytest.mark.filterwarnings("ignore:the backbone resnet20 starts from random weights")


def test_the_list_has_a_row_for_every_study_in_80_columns(winnow: Winnow) -> None:
    said = winnow("study", "--list")
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert max(map(len, lines)) <= 80
    names = {line.split()[0] for line in lines if line.startswith("  ")}
    assert set(STUDIES) <= names


def test_a_study_writes_its_files_and_reads_its_runs_again(
    winnow: Winnow, make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = tiny_grid(make_folder(), (Variant("GAP", pooling("gap")), Variant("GMP", pooling("gmp"))), (0,))
    monkeypatch.setattr("winnow.studies.STUDIES", {"tiny": grid})
    said = winnow("study", "tiny", "-o", "out", "train.max_steps=3", "--variants", "GAP")
    assert said.code == 0, said.err
    assert "`winnow study tiny train.max_steps=3 --quick -o out`" in " ".join(said.out.split())
    assert {path.name for path in (tmp_path / "out").glob("tiny.*")} >= {"tiny.md", "tiny.csv", "tiny.json", "tiny.svg"}
    assert (tmp_path / "out" / "runs" / "tiny-small" / "gap-seed0" / "result.json").is_file()  # as in version 0.1.0
    said = winnow("study", "tiny", "-o", "out", "train.max_steps=3", "--no-train", "--note", "Half their size.")
    assert said.code == 0, said.err
    content = json.loads((tmp_path / "out" / "tiny.json").read_text())
    assert content["note"] == "Half their size."
    assert content["missing"] == {"GMP": [0]}
    said = winnow("study", "tiny", "-o", "out")  # the run has three steps
    assert said.code == 2
    assert "train.max_steps" in said.err


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (("summary", "train.lr=1"), "train.lr=1"),
        (("all", "train.lr=1"), "train.lr=1"),
        (("all", "--note", "x"), "--note"),
        (("mu", "--seeds", "a"), "--seeds"),
        (("mv",), "mu"),
        ((), "NAME"),
    ],
)
def test_what_does_not_fit_is_named(winnow: Winnow, args: tuple[str, ...], named: str) -> None:
    said = winnow("study", *args)
    assert said.code == 2
    assert named in said.err


def test_the_old_name_of_a_study_is_accepted(winnow: Winnow, tmp_path: Path) -> None:
    said = winnow("study", "centres", "--only-finished", "-o", tmp_path)
    assert said.code != 0
    assert "centers" in said.err  # the study was found; it has no finished runs here
