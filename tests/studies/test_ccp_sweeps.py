"""Comparisons of CCP: which runs they plan, that they go from settings to text, and that texts follow numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import TINY, MakeFolder
from tests.studies.planned import planned
from winnow.studies import STUDIES, Task, ccp_alternate, ccp_batch, ccp_geometry, ccp_pool, ccp_sweeps, synthetic_images
from winnow.studies.methods import Comparison

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")
SWEEPS = {"ccp-alternate": ccp_alternate, "ccp-pool": ccp_pool, "ccp-batch": ccp_batch,
          "ccp-geometry": ccp_geometry}  # fmt: skip


@pytest.fixture
def tiny(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all comparisons of CCP take seconds."""
    folder = make_folder(classes=9, images=6)

    def compare(methods, task, **_):
        small = ["references.proxies_per_class=2", "references.pool_size=3"] if "pool" not in methods[-1].facts else []
        tiny = [word for word in TINY if not word.startswith("pooling")]
        base = [f"data={folder}", *tiny, "pooling=gap", "train.device=cpu", "train.max_steps=8", "train.eval_steps=1"]
        own = [[*method.words, *(small if "references=ccp" in method.words else [])] for method in methods]
        return Comparison([replace(one, words=words) for one, words in zip(methods, own, strict=True)], (0,), base)

    monkeypatch.setattr(ccp_alternate, "LOSSES", {True: {"C2": ["loss=c2"]}})
    monkeypatch.setattr(ccp_pool, "PROXIES", (1, 2))
    monkeypatch.setattr(ccp_pool, "POOLS", {True: (3,)})
    monkeypatch.setattr(ccp_batch, "BATCHES", (8, 12))
    monkeypatch.setattr(synthetic_images, "write_single_emoji", lambda folder: folder)
    for module in SWEEPS.values():
        monkeypatch.setattr(module, "compare", compare)


@pytest.mark.parametrize("small", [True, False], ids=["small", "full"])
@pytest.mark.parametrize("name", SWEEPS)
def test_every_planned_run_is_what_its_name_says(name: str, small: bool, tmp_path: Path) -> None:
    compared = SWEEPS[name].comparison(Task(small=small, runs=tmp_path / "runs"))
    for method, config in planned(compared, tmp_path):
        references = config.references
        assert config.pooling.name == "gap"
        assert config.loss.name == method.name.split()[0].rstrip(",").lower()
        once = "one problem" in method.name
        assert (references.name == "ccp") == ("CCP" in method.name or once)
        assert getattr(references, "max_problems", None) == (1 if once else None)
        assert (references.name == "memory") == ("XBM" in method.name)
        if " of " in method.name:
            picked, pool = map(int, method.name.split(", ")[1].split(" of "))
            assert (references.proxies_per_class, references.pool_size) == (picked, pool)
        if "batch" in method.name:
            batch = config.train.classes_per_batch * config.train.samples_per_class
            assert f"batch {batch}" in method.name
    assert (compared.file is None) == small


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", [name for name in SWEEPS if name != "ccp-geometry"])
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
    monkeypatch.setattr(synthetic_images, "EMOJI_CLASSES", {"train": 2, "val": 1, "test": 1})
    monkeypatch.setattr(synthetic_images, "EMOJI_IMAGES", 3)
    folder = synthetic_images.write_single_emoji(tmp_path / "a" / "set")
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))
    assert files == [f"{label:03d}/{index:02d}.png" for label in range(4) for index in range(3)]
    pixels = [np.asarray(Image.open(folder / one)) for one in files]
    assert all(one.shape == (64, 64, 3) and one.std() > 5 for one in pixels), "every cell holds a drawing"
    stamp = (folder / files[0]).stat().st_mtime_ns
    synthetic_images.write_single_emoji(folder)
    assert (folder / files[0]).stat().st_mtime_ns == stamp
    assert sorted(path.name for path in folder.parent.iterdir()) == ["set"]


def test_settings_of_ccp_are_words() -> None:
    assert ccp_sweeps.ccp()[-1] == "references.preset=cub"
    assert ccp_sweeps.ccp(per_class=4, pool=7)[2:] == ["references.proxies_per_class=4", "references.pool_size=7"]


def test_alternating_is_checked_against_every_claim() -> None:
    steps = {"C2": 100, "C2 + CCP": 120}
    text = ccp_alternate.told("C2", {"C2": 1.0, "C2, one problem": 2.0, "C2 + CCP": 4.0}, steps, 1.5)
    assert text.endswith(
        "alternating is worth +2.00, agrees; CCP +3.00, agrees; +20 % steps in all, patience included, agrees"
    )
    text = ccp_alternate.told("C2", {"C2": 5.0, "C2, one problem": 4.5, "C2 + CCP": 4.0}, {"C2": 9, "C2 + CCP": 8}, 0.7)
    assert text.count("does not agree") == 2
    assert text.count("-0.50, cannot be told from what seeds deviate by") == 1
    assert "in the direction only" in ccp_alternate.told(
        "C2", {"C2": 1.0, "C2, one problem": 2.0, "C2 + CCP": 4.0}, {"C2": 100, "C2 + CCP": 190}
    )
    assert "missing" in ccp_alternate.told("C2", {"C2": 1.0}, steps)


@pytest.mark.parametrize("fair", [True, False])
def test_what_the_documents_have_otherwise_is_said(fair: bool) -> None:
    text = ccp_sweeps.where(False, fair=fair)
    assert "BN-Inception" in text
    assert "Cars196" in text
    assert ("two thirds of the training classes" in text) == ("patience of 40" in text) == (not fair)
    assert ccp_sweeps.where(True, fair=fair) == ccp_sweeps.WHERE[True]


def test_short_problems_are_counted_without_the_last() -> None:
    run = {"problems": [{"steps": 40}, {"steps": 90}, {"steps": 10}]}
    assert ccp_alternate.solved_steps(run) == [40, 90]
    assert ccp_alternate.solved_steps({}) == []
    text = ccp_alternate.told_steps({"C2": [40, 90, 100], "MS": [80], "Triplet": []}, 40)
    assert "solved 1 of 3 with C2, 0 of 1 with MS took the fewest steps there can be (40), agrees (" in text
    assert text.endswith("the median is 85 and the longest took 100")
    assert "does not agree" in ccp_alternate.told_steps({"C2": [40, 40, 100]}, 40)
    assert "agrees with MS alone" in ccp_alternate.told_steps({"C2": [40, 40, 100], "MS": [80]}, 40)
    assert "cannot be told" in ccp_alternate.told_steps({"C2": []}, 40)


def test_pools_are_checked_against_every_claim() -> None:
    def grid(one: tuple[float, ...], four: tuple[float, ...], eight: tuple[float, ...]) -> dict[tuple[int, int], float]:
        values = zip(ccp_pool.PROXIES, (one, four, eight), strict=True)
        return {(k, b): score for k, row in values for b, score in zip((k, 12, 20), row, strict=True)}

    text = ccp_pool.told(grid((10, 10, 10), (11, 12, 12), (12, 13, 13.5)), 9.0, (12, 20), 0.1)
    assert text.count("agrees") == 4
    assert "several proxies: +1.00 with 4, +1.25 with 8, in the mean of larger pools" in text
    assert "more proxies help: 10.00 with 1, 11.67 with 4, 12.83 with 8, in the mean over pools, agrees" in text
    text = ccp_pool.told(grid((13, 14, 14), (12, 11, 11), (11, 12, 12)), 13.0, (12, 20), 0.1)
    assert text.count("does not agree") == 4
    assert "to a single proxy: +1.00, does not agree, by more than seeds deviate" in text
    once = ccp_pool.told(grid((13, 14, 14), (12, 11, 11), (11, 12, 12)), 13.0, (12, 20))
    assert "to a single proxy: +1.00, cannot be told (one seed)" in once
    costly = ccp_pool.told(grid((13, 12, 12), (12, 11, 11), (11, 12, 12)), 13.0, (12, 20), 0.1)
    assert "to a single proxy: -1.00, does not agree" in costly
    assert "missing" in ccp_pool.told({(1, 1): 1.0}, 1.0, (12, 20))


def test_batches_are_checked_against_both_claims() -> None:
    rising, level = {16: 1.0, 32: 2.0, 64: 3.0, 128: 4.0}, {16: 3.8, 32: 4.0, 64: 4.0, 128: 4.1}
    text = ccp_batch.told(rising, level)
    assert text.count(", agrees") == 2
    assert "ahead of C2 alone with 4 of 4" in text
    assert "C2 goes from 1.00 to 4.00 (+3.00), cannot be told" in ccp_batch.told(rising, level, 3.5)
    text = ccp_batch.told(level | {128: 3.0}, rising)
    assert text.count("does not agree") == 2
    assert "missing" in ccp_batch.told(rising, {16: 1.0})
