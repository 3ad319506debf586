"""Test curves, which change nothing else, and runs that take their last weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import TINY, MakeFolder
from winnow.training import Callback, RunDir, RunResult, load_config, train
from winnow.training.checkpoint import TrainState
from winnow.training.early_stopping import EarlyStopping
from winnow.training.results import ValidationEntry

pytestmark = pytest.mark.filterwarnings("ignore:the backbone resnet20 starts from random weights")

CCP = ("references=ccp", "references.patience=1", "references.proxies_per_class=2", "references.pool_size=4")


def args(folder: Path, *more: str) -> list[str]:
    return [f"data={folder}", *TINY, "train.device=cpu", "train.max_steps=8", "train.eval_steps=2", "train.lr=0.01",
            *more]  # fmt: skip


class Stop(Exception):
    pass


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, step: int) -> None:
        if step == self.at:
            raise Stop


def run(path: Path, settings: list[str]) -> tuple[RunDir, RunResult]:
    folder = RunDir(path)
    return folder, train(load_config(None, settings), folder)


def lines(folder: RunDir, *dropped: str) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in entry.to_dict().items() if key != "seconds" and not key.startswith(dropped)}
        for entry in folder.read_history()
    ]


def assert_equal(one: Any, other: Any) -> None:
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_equal(a, b)
    else:
        assert one == other


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        ("backbone.train=full", "backbone.freeze_batch_norm=false", "train.average=0.8"),
        ("backbone.train=frozen", *CCP, "train.schedule=cosine"),
    ],
    ids=["fine-tuned", "ccp"],
)
def test_a_test_curve_changes_nothing_else(more: tuple[str, ...], make_folder: MakeFolder, tmp_path: Path) -> None:
    images = make_folder()
    plain, without = run(tmp_path / "plain", args(images, *more))
    curved, result = run(tmp_path / "curved", args(images, *more, "train.test_curve=true"))
    assert_equal(plain.load(plain.best_file), curved.load(curved.best_file))
    states = [folder.load(folder.checkpoint_file) for folder in (plain, curved)]
    for key in ("learner", "optimizer", "average", "plateau", "problems"):
        assert_equal(states[0][key], states[1][key])
    assert lines(curved, "test/", "raw_test/") == lines(plain)
    assert (result.metrics, result.best_step, result.steps) == (without.metrics, without.best_step, without.steps)
    history = curved.read_history()
    assert all(set(entry.test) == set(entry.val) for entry in history)
    assert all(set(entry.raw_test) == set(entry.raw) for entry in history)
    selected = next(entry for entry in history if entry.step == result.best_step)
    assert selected.test == result.metrics["test"]


def test_where_test_classes_validate_the_curves_are_equal(make_folder: MakeFolder, tmp_path: Path) -> None:
    split = ("data.train_classes=1-4", "data.val_classes=test", "data.test_classes=5-6")
    folder, _ = run(tmp_path / "run", args(make_folder(), *split, "train.test_curve=true", "backbone.train=frozen"))
    assert all(entry.test == entry.val for entry in folder.read_history())


def test_a_run_may_resume_with_another_test_curve(make_folder: MakeFolder, tmp_path: Path) -> None:
    settings = args(make_folder(), "backbone.train=frozen")
    folder = RunDir(tmp_path / "run")
    with pytest.raises(Stop):
        train(load_config(None, settings), folder, callback=StopAt(5))
    train(load_config(None, [*settings, "train.test_curve=true"]), folder, resume=True)
    assert [bool(entry.test) for entry in folder.read_history()] == [False, False, False, True, True]


def test_a_line_of_the_log_keeps_its_metrics() -> None:
    entry = ValidationEntry(
        3, 1.5, {"loss": 2.0, "other/part": 1.0}, {"MAP@R": 0.1}, 1e-3, {"MAP@R": 0.2}, {"P@1": 0.3}, {"P@1": 0.4}
    )
    assert vars(ValidationEntry.from_dict(entry.to_dict())) == vars(entry)


def test_the_last_weights_are_selected_without_an_early_stop() -> None:
    stopping, state = EarlyStopping(1, last_step=4), TrainState()
    selected = []
    for step, value in enumerate([0.5, 0.4, 0.9, 0.3, 0.2]):
        state.step = step
        selected.append(stopping.update(state, value))
        assert not stopping.should_stop(state)
    assert selected == [True, False, False, False, True]
    assert (state.best_step, state.best) == (4, 0.2)


@pytest.mark.slow
@pytest.mark.parametrize("more", [("train.average=0.8",), (*CCP, "train.average=0")], ids=["average", "ccp"])
def test_a_fixed_budget_takes_the_last_weights_and_resumes_exactly(
    more: tuple[str, ...], make_folder: MakeFolder, tmp_path: Path
) -> None:
    fixed = ("train.schedule=cosine", "train.select_weights=last", "train.patience=1", "train.test_curve=true")
    settings = args(make_folder(), "backbone.train=full", *fixed, *more)
    whole, result = run(tmp_path / "whole", settings)
    assert (result.best_step, result.steps) == (8, 8)
    last = whole.read_history()[-1]
    assert (last.val, last.test) == (result.metrics["val"], result.metrics["test"])
    learner, best = whole.load(whole.checkpoint_file)["learner"], whole.load(whole.best_file)
    assert all(torch.equal(learner[key], best[key]) for key in best) == ("train.average=0.8" not in more)
    broken = RunDir(tmp_path / "broken")
    with pytest.raises(Stop):
        train(load_config(None, settings), broken, callback=StopAt(5))
    train(broken.read_config(), broken, resume=True)
    assert_equal(broken.load(broken.best_file), best)
    assert lines(broken) == lines(whole)
