"""`winnow datasets` as a user calls it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.cli.conftest import Winnow
from tests.data import synthetic_datasets
from winnow.data.datasets import CUB200, DATASETS


@pytest.fixture
def datasets(winnow: Winnow, monkeypatch: pytest.MonkeyPatch) -> Winnow:
    """Call `winnow datasets`, for which CUB is a small dataset."""
    monkeypatch.delenv("WINNOW_DATA", raising=False)
    monkeypatch.setitem(DATASETS._datasets, "cub200", CUB200(train=6, test=6, classes=2))
    return partial(winnow, "datasets")


def test_every_dataset_is_listed_and_described(datasets: Winnow) -> None:
    code, out, _ = datasets("list")
    assert code == 0
    assert all(name in out for name in DATASETS)
    for name, one in DATASETS.items():
        code, out, _ = datasets("info", name)
        assert code == 0
        assert one.title in out
        assert all(source.url in out for source in one.sources)
    code, out, _ = datasets("info", "sop", "--json")
    assert json.loads(out)["images"] == {"train": 59551, "test": 60502}
    code, _, err = datasets("info", "cub20")
    assert code == 2
    assert "did you mean 'cub200'" in err


def test_a_dataset_is_copied_verified_and_used_without_missing_images(datasets: Winnow, tmp_path: Path) -> None:
    synthetic_datasets.cub(tmp_path / "source")
    code, out, _ = datasets("get", "cub200", "--from", "source")
    assert code == 0
    assert "is complete: train 6 / test 6" in out
    code, out, _ = datasets("verify", "cub200", "data/cub200")
    assert code == 0
    gone = tmp_path / "data/cub200/CUB_200_2011/images/001.Bird_1/Bird_1_0000.jpg"
    content = gone.read_bytes()
    gone.unlink()
    code, out, err = datasets("verify", "cub200")
    assert code == 3
    assert "missing from train: 001.Bird_1/Bird_1_0000.jpg" in out
    assert "train has 5 of 6 images" in err
    assert not (tmp_path / "data/cub200/missing.json").exists()
    code, out, _ = datasets("verify", "cub200", "--accept-missing")
    assert code == 0
    assert DATASETS["cub200"].load("data/cub200").missing["train"]["found"] == 5
    gone.write_bytes(content)
    code, out, _ = datasets("verify", "cub200")
    assert code == 0
    assert not (tmp_path / "data/cub200/missing.json").exists()  # the record goes with its reason
    code, _, err = datasets("get", "cub200", "--from", "source")
    assert code == 2
    assert "folder is not empty" in err


def test_an_incomplete_dataset_is_copied_but_reported(datasets: Winnow, tmp_path: Path) -> None:
    synthetic_datasets.cub(tmp_path / "source")
    next((tmp_path / "source").rglob("*.jpg")).unlink()
    code, _, err = datasets("get", "cub200", "--from", "source", "--to", "here")
    assert code == 3
    assert "--accept-missing" in err
    code, _, _ = datasets("verify", "cub200", "here", "--accept-missing")
    assert code == 0
    code, _, err = datasets("verify", "cub200", "nowhere")
    assert code == 3
    assert "nowhere: folder of" in err
