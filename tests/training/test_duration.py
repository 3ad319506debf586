"""Estimate of the time of a run: what it counts, and that it changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import TINY, MakeFolder
from winnow.models import Embedder
from winnow.training import RunCache, RunConfig, load_config, train
from winnow.training.build import load_splits, resolve_config
from winnow.training.callbacks import Callback, CallbackList
from winnow.training.duration import Duration, first_stop, measure_duration

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")


class Estimates(Callback):
    """Keep all estimates."""

    def __init__(self) -> None:
        self.found: list[Duration] = []

    def estimate(self, measure: Callable[[], Duration]) -> None:
        self.found.append(measure())


def tiny(folder: Path, *words: str) -> RunConfig:
    settings = [*TINY, "train.device=cpu", "backbone.train=frozen", "train.max_steps=4", *words]
    return load_config(None, [f"data={folder}", *settings])


@pytest.mark.parametrize("words", [[], ["backbone.train=full"], ["pooling=gap"]])
def test_model_and_random_numbers_stay_as_they_are(make_folder: MakeFolder, words: list[str]) -> None:
    config = tiny(make_folder(), *words)
    splits = load_splits(config)
    config = resolve_config(config, splits.train)
    torch.manual_seed(0)
    embedder = Embedder.create(config)
    before = {key: value.clone() for key, value in embedder.state_dict().items()}
    state = torch.get_rng_state()
    found = measure_duration(embedder, config, splits)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in embedder.state_dict().items())
    assert all(parameter.grad is None for parameter in embedder.parameters())
    assert found.steps == 4
    assert found.step > 0
    assert found.total == found.features + 4 * found.step


def test_only_features_that_are_not_cached_count(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder()
    frozen, full = Estimates(), Estimates()
    first = train(
        tiny(folder, "data.feature_cache=disk"), tmp_path / "first", callback=CallbackList(frozen, Callback())
    )
    second = train(tiny(folder, "data.feature_cache=disk"), tmp_path / "second", callback=frozen)
    assert [one.images for one in frozen.found] == [32, 0]
    assert frozen.found[0].features > 0
    assert frozen.found[1].features == 0
    silent = train(tiny(folder, "data.feature_cache=disk"), tmp_path / "silent")
    assert first.metrics == second.metrics == silent.metrics

    images = train(tiny(folder, "backbone.train=full"), tmp_path / "full", callback=full)
    assert [one.images for one in full.found] == [0]
    assert images.metrics == train(tiny(folder, "backbone.train=full"), tmp_path / "again").metrics


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["train.patience=2"], 3), (["train.patience=20"], 4), (["train.patience=1", "train.select_weights=last"], 4),
     (["references=ccp", "references.patience=1"], 2)],
)  # fmt: skip
def test_the_earliest_end_is_that_of_a_run_without_gains(
    make_folder: MakeFolder, tmp_path: Path, words: list[str], expected: int
) -> None:
    config = tiny(make_folder(), "train.eval_steps=1", "train.lr=1e-30", "data.feature_cache=ram", *words)
    assert first_stop(config) == expected
    if "references=ccp" not in words:  # whose next subproblems go on
        assert train(config, tmp_path / "run").steps == expected


def test_the_first_of_several_runs_is_estimated(make_folder: MakeFolder, tmp_path: Path) -> None:
    heard, cache = Estimates(), RunCache()
    folder = make_folder()
    shared = [
        train(tiny(folder, f"seed={seed}"), tmp_path / str(seed), callback=heard, cache=cache).metrics
        for seed in (0, 1)
    ]
    assert [one.images for one in heard.found] == [32]
    assert shared == [train(tiny(folder, f"seed={seed}"), tmp_path / f"alone{seed}").metrics for seed in (0, 1)]


def test_features_in_memory_are_always_computed(make_folder: MakeFolder, tmp_path: Path) -> None:
    heard = Estimates()
    for name in ("first", "second"):
        train(tiny(make_folder(name), "data.feature_cache=ram"), tmp_path / "runs" / name, callback=heard)
    assert [one.images for one in heard.found] == [32, 32]
