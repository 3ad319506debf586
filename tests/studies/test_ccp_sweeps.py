"""Comparisons of CCP: which runs they plan, that they go from settings to text, and that texts follow numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import TINY, MakeFolder
from winnow.studies import STUDIES, Task, ccp_alternate, ccp_sweeps, single_emoji
from winnow.studies.methods import Comparison
from winnow.training.learner import check_objective, check_parts

pytestmark = pytest.mark.filterwarnings("ignore:the backbone resnet20 starts from random weights")
SWEEPS = {"ccp-alternate": ccp_alternate}


@pytest.fixture
def tiny(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all comparisons of CCP take seconds."""
    folder = make_folder(classes=9, images=6)

    def compare(methods, task, **_):
        small = ["pooling=gap", "references.per_class=2", "references.pool=3"]
        tiny = [word for word in TINY if not word.startswith("pooling")]
        base = [f"data={folder}", *tiny, "train.device=cpu", "train.steps=8", "train.eval_every=1"]
        own = [[*method.words, *(small if "references=ccp" in method.words else small[:1])] for method in methods]
        return Comparison([replace(one, words=words) for one, words in zip(methods, own, strict=True)], (0,), base)

    monkeypatch.setattr(single_emoji, "make_single_emoji", lambda folder: folder)
    for module in SWEEPS.values():
        monkeypatch.setattr(module, "compare", compare)


@pytest.mark.parametrize("small", [True, False], ids=["small", "full"])
@pytest.mark.parametrize("name", SWEEPS)
def test_every_planned_run_is_what_its_name_says(name: str, small: bool, tmp_path: Path) -> None:
    compared = SWEEPS[name].comparison(Task(small=small, runs=tmp_path / "runs"))
    names = set()
    for method in compared.methods:
        run = compared.plan(method, 0, tmp_path)
        check_objective(run.config)
        check_parts(run.config)
        names.add(run.folder.path.name)
        references = run.config.references
        assert run.config.pooling["name"] == "gap"
        assert run.config.loss["name"] == method.name.split()[0].rstrip(",").lower()
        alternates = references["name"] == "ccp" and references["patience"] < 1000
        assert alternates == ("CCP" in method.name)
        assert (references["name"] == "memory") == ("XBM" in method.name)
        assert (references["name"] == "ccp" and not alternates) == ("one problem" in method.name)
    assert len(names) == len(compared.methods)
    assert (compared.file is None) == small


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", SWEEPS)
def test_a_comparison_goes_from_runs_to_text(name: str, tmp_path: Path) -> None:
    findings = STUDIES[name](Task(small=True, runs=tmp_path / "runs" / name))
    assert "missing" not in findings.text
    assert "agree" in findings.text
    assert all(row["runs"] == 1 for row in findings.rows)
    assert findings.figure.axes
    none = STUDIES[name](Task(small=True, runs=tmp_path / "none", only_finished=True))
    assert f"`winnow study {name} --small` trains the others" in none.text
    assert "missing" in none.text


def test_single_emoji_are_written_once_and_by_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_emoji, "CLASSES", {"train": 2, "val": 1, "test": 1})
    monkeypatch.setattr(single_emoji, "IMAGES", 3)
    folder = single_emoji.make_single_emoji(tmp_path / "a" / "set")
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))
    assert files == [f"{label:03d}/{index:02d}.png" for label in range(4) for index in range(3)]
    pixels = [np.asarray(Image.open(folder / one)) for one in files]
    assert all(one.shape == (64, 64, 3) and one.std() > 5 for one in pixels), "every cell holds a drawing"
    stamp = (folder / files[0]).stat().st_mtime_ns
    single_emoji.make_single_emoji(folder)
    assert (folder / files[0]).stat().st_mtime_ns == stamp
    assert sorted(path.name for path in folder.parent.iterdir()) == ["set"]


def test_settings_of_ccp_are_words() -> None:
    assert ccp_sweeps.ccp()[-1] == "references.preset=cub"
    assert ccp_sweeps.ccp(per_class=4, pool=7)[2:] == ["references.per_class=4", "references.pool=7"]


def test_alternating_is_checked_against_every_claim() -> None:
    steps = {"C2": 100, "C2 + CCP": 120}
    text = ccp_alternate.told("C2", {"C2": 1.0, "C2, one problem": 2.0, "C2 + CCP": 4.0}, steps, 1.5)
    assert text.count("agrees") == 3
    assert "doubt" not in text
    assert "deviate" not in text
    text = ccp_alternate.told("C2", {"C2": 5.0, "C2, one problem": 4.5, "C2 + CCP": 4.0}, {"C2": 9, "C2 + CCP": 8}, 0.7)
    assert text.count("does not agree") == 3
    assert text.count("by less than seeds deviate") == 1
    assert "in the direction only" in ccp_alternate.told(
        "C2", {"C2": 1.0, "C2, one problem": 2.0, "C2 + CCP": 4.0}, {"C2": 100, "C2 + CCP": 190}
    )
    assert "missing" in ccp_alternate.told("C2", {"C2": 1.0}, steps)


def test_short_problems_are_counted_without_the_last() -> None:
    run = {"problems": [{"steps": 40}, {"steps": 90}, {"steps": 10}]}
    assert ccp_alternate.solved_steps(run) == [40, 90]
    assert ccp_alternate.solved_steps({}) == []
    assert "1 took the fewest steps there can be (40), the median is 90" in ccp_alternate.told_steps([40, 90, 100], 40)
    assert "does not agree" in ccp_alternate.told_steps([40, 40, 100], 40)
    assert "cannot be told" in ccp_alternate.told_steps([], 40)
