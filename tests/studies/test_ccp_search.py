"""The search over CCP's settings: that it goes on, what it plans, and that the text follows the trials."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import TINY, MakeFolder
from winnow.errors import DataError, MissingExtraError
from winnow.studies import STUDIES, Task, ccp_search, synthetic_images
from winnow.studies.together import run_studies
from winnow.tuning import Search, parse_space

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")


def test_a_search_goes_from_trials_to_text(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna", reason="needs the optuna extra")
    base = [word for word in TINY if not word.startswith("pooling")]
    words = [f"data={make_folder(images=5)}", *base, "pooling=gap", "train.device=cpu", "train.max_steps=2",
             "train.eval_steps=1", "references=ccp", "references.pool_size=3"]  # fmt: skip
    space, _ = parse_space([f"{ccp_search.PULL}=1e-7..10:log", f"{ccp_search.PROXIES}=1..3"])
    monkeypatch.setattr(ccp_search, "make_search", lambda task: Search(None, words, space, task.runs))
    monkeypatch.setattr(synthetic_images, "write_single_emoji", lambda folder: folder)
    monkeypatch.setattr(ccp_search, "TRIALS", {True: 2})
    noted: list[str] = []
    task = Task(small=True, runs=tmp_path / "runs", note=noted.append)
    with pytest.raises(DataError, match="no trial of ccp-search is finished"):
        STUDIES["ccp-search"](Task(small=True, runs=tmp_path / "none", only_finished=True))
    first = STUDIES["ccp-search"](task)
    assert len(first.rows) == len(noted) == 2
    assert first.rows[0]["validation MAP@R"] >= first.rows[1]["validation MAP@R"]
    assert first.text.startswith("The best of 2 trials")
    monkeypatch.setattr(ccp_search, "TRIALS", {True: 3})
    some = STUDIES["ccp-search"](replace(task, only_finished=True))
    assert some.text.endswith("2 of 3 trials are in: `winnow study ccp-search --small` trains the others.")
    monkeypatch.setattr(ccp_search, "TRIALS", {True: 2})
    assert STUDIES["ccp-search"](task).rows == first.rows
    assert len(noted) == 2, "trials that are in are not made again"


@pytest.mark.parametrize("small", [True, False], ids=["small", "full"])
def test_the_whole_space_is_one_of_configs(small: bool, tmp_path: Path) -> None:
    search = ccp_search.make_search(Task(small=small, runs=tmp_path))
    for pull, proxies in ((1e-7, 1), (10.0, 16)):
        config = search.config({ccp_search.PULL: pull, ccp_search.PROXIES: proxies})
        assert (config.references.proximal_weight, config.references.proxies_per_class) == (pull, proxies)
        assert config.references.pool_size == 16
        assert config.loss.name == "c2"
        assert not config.train.run_test
    assert (search.file is None) == small
    if not small:  # two thirds of CUB's first hundred classes train, the last third judges
        config = search.first_config()
        assert (config.data.train_classes, config.data.val_classes) == ("1-66", "67-100")
        assert config.train.patience == 40


def test_without_optuna_it_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"winnow study ccp-search requires optuna.*winnow-dml\[optuna\]"):
        STUDIES["ccp-search"](Task(small=True))
    (ended,) = run_studies({"ccp-search": STUDIES["ccp-search"]}, lambda name: Task(small=True), tmp_path)
    assert ended.outcome == "left out"


def test_trials_are_checked_against_every_claim() -> None:
    good = [(1e-7, 16, 50.0), (1e-3, 2, 51.0), (1e-3, 8, 53.0), (1e-3, 16, 53.5), (1.0, 8, 40.0),
            (1e-6, 2, 48.0), (10.0, 8, 41.0), (1e-3, 8, 53.0)]  # fmt: skip
    text = ccp_search.told(good)
    assert text.count(" agrees") == 4
    assert "lambda = 0.001 and 16 proxies, 53.50" in text
    assert "+3.50 from few to 8, -1.25 beyond, agrees" in text
    bad = [(1e-7, 2, 60.0), (1e-3, 2, 61.0), (1e-3, 8, 50.0), (1e-3, 16, 52.0), (1.0, 8, 70.0), (1e-6, 2, 65.0),
           (10.0, 8, 71.0), (1e-3, 8, 50.0), (1e-3, 16, 52.0)]  # fmt: skip
    assert ccp_search.told(bad).count("does not agree") == 4
    same = [(pull, proxies, value) for pull in (1e-7, 1e-3, 1.0) for proxies in (2, 8, 16) for value in (50.0, 52.0)]
    assert ccp_search.told(same).count("cannot be told from what trials deviate by") == 3
    assert ccp_search.told(good[:5]).count(ccp_search.TOO_FEW) == 4
    assert f"saturates: {ccp_search.TOO_FEW}" in ccp_search.told(good[:-1]), "one trial with 8 proxies is no group"
    assert ccp_search.told([(1e-3, 2, 51.0)]).count(ccp_search.TOO_FEW) == 4
