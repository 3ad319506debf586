"""`winnow datasets` as a user calls it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data import made_sets
from winnow.cli import run
from winnow.data.sets import DATASETS
from winnow.data.sets.cub200 import CUB200

Winnow = Callable[..., tuple[int, str, str]]


@pytest.fixture
def winnow(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Winnow:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("WINNOW_DATA", raising=False)
    monkeypatch.setitem(DATASETS._sets, "cub200", CUB200(train=6, test=6, classes=2))

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["winnow", "datasets", *map(str, words)])
        code = 0
        try:
            run()
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_every_set_is_listed_and_told(winnow: Winnow) -> None:
    code, out, _ = winnow("list")
    assert code == 0
    assert all(name in out for name in DATASETS)
    for name, one in DATASETS.items():
        code, out, _ = winnow("info", name)
        assert code == 0
        assert one.title in out
        assert all(source.url in out for source in one.sources)
    code, out, _ = winnow("info", "sop", "--json")
    assert json.loads(out)["images"] == {"train": 59551, "test": 60502}
    code, _, err = winnow("info", "cub20")
    assert code == 2
    assert "did you mean 'cub200'" in err


def test_a_set_is_got_verified_and_used_with_what_is_missing(winnow: Winnow, tmp_path: Path) -> None:
    made_sets.cub(tmp_path / "source")
    code, out, _ = winnow("get", "cub200", "--from", "source")
    assert code == 0
    assert "is whole: train 6 / test 6" in out
    code, out, _ = winnow("verify", "cub200", "data/cub200")
    assert code == 0
    gone = tmp_path / "data/cub200/CUB_200_2011/images/001.Bird_1/Bird_1_0000.jpg"
    content = gone.read_bytes()
    gone.unlink()
    code, out, err = winnow("verify", "cub200")
    assert code == 3
    assert "missing from train: 001.Bird_1/Bird_1_0000.jpg" in out
    assert "train has 5 of 6 images" in err
    assert not (tmp_path / "data/cub200/missing.json").exists()
    code, out, _ = winnow("verify", "cub200", "--allow-missing")
    assert code == 0
    assert DATASETS["cub200"].load("data/cub200").missing["train"]["found"] == 5
    gone.write_bytes(content)
    code, out, _ = winnow("verify", "cub200")
    assert code == 0
    assert not (tmp_path / "data/cub200/missing.json").exists()  # the note goes with its reason
    code, _, err = winnow("get", "cub200", "--from", "source")
    assert code == 2
    assert "already holds something" in err


def test_a_short_set_is_put_in_place_but_fails(winnow: Winnow, tmp_path: Path) -> None:
    made_sets.cub(tmp_path / "source")
    next((tmp_path / "source").rglob("*.jpg")).unlink()
    code, _, err = winnow("get", "cub200", "--from", "source", "--to", "here")
    assert code == 3
    assert "--allow-missing" in err
    code, _, _ = winnow("verify", "cub200", "here", "--allow-missing")
    assert code == 0
    code, _, err = winnow("verify", "cub200", "nowhere")
    assert code == 3
    assert "there is no folder nowhere" in err
